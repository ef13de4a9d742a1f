"""Sockets: the relay, read buffers, TLS bytes, listening ports."""
