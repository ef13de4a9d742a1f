"""What happened: metrics for Prometheus, the session event log, and what Spark makes of it."""
