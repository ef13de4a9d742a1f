"""Readiness report over HTTP: the last whole one, its age and its figures."""
