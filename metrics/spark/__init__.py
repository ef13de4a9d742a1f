"""Readiness report with Spark: session, sources, states, and queries of events."""
