"""The readiness report as people and programs read it: a page, and JSON. Knows no Spark."""
