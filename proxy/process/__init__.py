"""Parent process: checks before a start, workers and their sockets, drain."""
