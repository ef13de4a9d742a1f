"""Sanitizer of untrusted text for log lines."""

from collections.abc import Iterable
from typing import Final

_MAX_CHECKED: Final = 1_024
_MAX_SHOWN: Final = 200
_MAX_SECRET_PART: Final = 8
"""The number of consecutive characters of a secret that withhold a text."""


def fit_for_log(text: str, secrets: Iterable[str]) -> str:
    """Make one short line of ASCII of what others wrote; withhold it if it repeats a secret."""
    judged = text[:_MAX_CHECKED].casefold()
    if any(_holds_part_of(secret.casefold(), judged) for secret in secrets):
        return "(what was answered is not shown: it repeats the secret)"
    short = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    return ascii(short)[1:-1]


def _holds_part_of(secret: str, text: str) -> bool:
    size = min(len(secret), _MAX_SECRET_PART)
    return any(secret[at : at + size] in text for at in range(len(secret) - size + 1))
