"""Routing of clients to brokers: discovery, addresses that clients are given, destinations."""
