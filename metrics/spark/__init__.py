"""Who can re-authenticate, and what a session lifetime would break: events → sessions → readiness.

Functions from DataFrames to DataFrames that know no session, path or clock, and one module that
reads, calls and writes (`job`). docs/readiness.md says what each table means.
"""

from typing import Final

PYSPARK: Final = "pyspark>=4.3,<5"
"""The extra `spark`, as pip takes it wherever this package came from."""
