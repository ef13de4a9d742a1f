"""Readiness analysis: one text in SQL from events to verdicts, for DuckDB and for Spark.

Functions that give the text of a query and know no database, path or clock; one that asks them in
order (`analysis`); one engine (`duckdb_engine`; the other is `metrics.spark.engine`); and the job
that reads, asks and writes (`job`). docs/readiness.md says what each table means.

The text is what both understand. Where Spark has a function that DuckDB lacks, DuckDB is given a
macro of that name; the few things that are spelled differently are methods of `Dialect`.
"""
