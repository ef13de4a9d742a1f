"""SASL re-authentication proxy for Apache Kafka."""

from typing import Final

__version__: Final = "0.1.0"
"""The version of this program, also in pyproject.toml: to read it from the installed package's
metadata would delay the start."""
