"""Readiness report with Spark: session, sources, states, and queries of events."""

from typing import Final

SPARK_PACKAGES: Final = "'duckdb>=2.0' 'pyspark>=4.3,<5'"
"""The requirements of the extra `spark`, quoted for a shell."""
