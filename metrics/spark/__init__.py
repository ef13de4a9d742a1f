"""Readiness analysis in Spark: events to sessions to verdicts, and what-if by lifetime.

Functions from DataFrames to DataFrames that know no session, path or clock, and one module that
reads, calls and writes (`job`). docs/readiness.md says what each table means.
"""

from typing import Final

PYSPARK: Final = "pyspark>=4.3,<5"
"""The requirement of the extra `spark`, as pip takes it wherever this package came from."""
