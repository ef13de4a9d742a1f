"""Kafka's error codes: `ErrorCode`, made of `error_codes.txt`.

mypy reads `error_codes.pyi`; `make schemas` generates both.
"""

from enum import IntEnum
from pathlib import Path

_LINES = Path(__file__).with_name("error_codes.txt").read_text().splitlines()[1:]

ErrorCode = IntEnum(
    "ErrorCode",
    [(name, int(code)) for name, code in (line.split(" ") for line in _LINES)],
    module=__name__,
)
"""Error codes of responses; a later Kafka may send others."""
