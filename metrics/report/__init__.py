"""Readiness report for people and programs: a page and JSON, written without Spark."""
