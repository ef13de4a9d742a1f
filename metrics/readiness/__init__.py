"""Readiness analysis, from session events to verdicts, in two parts.

*Events to usage* reads events: `usage`, `expired_uses`, and parts of `authentications`, `sessions`
and `what_if` give the text of its queries, which DuckDB (`duckdb_engine`) or Spark
(`metrics.spark.engine`) answers. The text is in Spark's SQL; DuckDB knows the functions that it
lacks as macros. *Usage to report* is DuckDB's alone. `analysis` asks all queries in their order,
and `job` reads, asks and writes. docs/readiness.md says what each table means.
"""
