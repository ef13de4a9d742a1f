"""Readiness report with Spark: its session, sources, states, and the queries of events."""

from typing import Final

SPARK_PACKAGES: Final = "'duckdb>=2.0' 'pyspark>=4.3,<5'"
"""The requirements of the extra `spark`, as a shell hands them to pip."""
