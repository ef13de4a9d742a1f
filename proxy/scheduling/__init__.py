"""Fair turns, bounded memory, long work in steps."""
