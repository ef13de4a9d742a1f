"""Readiness analysis, from session events to verdicts, in two parts.

*Events to usage* reads events: `usage`, `expired_uses`, and parts of `authentications`, `sessions`
and `what_if` build its queries, which DuckDB (`duckdb_engine`) or Spark (`metrics.spark.job`)
runs. They are written in Spark's SQL; DuckDB gets the functions that it lacks as macros.
*Usage to report* always runs in DuckDB. `analysis` runs all queries in order, and `job` reads the
events, runs the analysis and writes the report. docs/readiness.md explains each table.
"""
