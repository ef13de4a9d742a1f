"""Example quota callbacks, ready to use."""
