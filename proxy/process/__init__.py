"""Parent process: checks before a start, child processes, listening sockets, reload, drain."""
