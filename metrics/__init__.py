"""Metrics for Prometheus, the session event log, and the readiness report made from it."""
