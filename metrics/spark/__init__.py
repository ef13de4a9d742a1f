"""Readiness report by Spark: its session, sources, states, and the engine on it."""

from typing import Final

PYSPARK: Final = "pyspark>=4.3,<5"
"""The requirement of the extra `spark`, as pip takes it wherever this package came from."""
