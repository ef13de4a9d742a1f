"""What operators ask a running proxy: HTTP, metrics, sessions, the status page."""
