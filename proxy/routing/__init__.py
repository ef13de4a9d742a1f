"""Routing: which broker a client means, and where it is."""
