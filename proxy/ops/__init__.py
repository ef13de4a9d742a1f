"""Operator interfaces of a running proxy: HTTP, metrics, sessions, the status page."""
