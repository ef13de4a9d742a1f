"""Duties of every child process: signals, its end with the parent, heartbeats."""
