"""Operators' interfaces to a running proxy: HTTP, metrics, sessions, the status page."""
