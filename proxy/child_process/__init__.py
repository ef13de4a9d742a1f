"""What a child process owes its parent: signals, its end, heartbeats."""
