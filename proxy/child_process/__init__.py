"""Common part of all child processes: signals, their end with the parent, heartbeats."""
