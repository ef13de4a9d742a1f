"""Sanitizer of untrusted text for log lines."""

from collections.abc import Iterable
from typing import Final

_MAX_CHECKED: Final = 1_024
_MAX_SHOWN: Final = 200
_MAX_SECRET_PART: Final = 8
"""Number of consecutive characters of a secret for which a text is withheld."""


def fit_for_log(text: str, secrets: Iterable[str]) -> str:
    """Return untrusted text as one short line of ASCII; withhold it if it repeats a secret."""
    checked = text[:_MAX_CHECKED].casefold()
    if any(_contains_part_of(secret.casefold(), checked) for secret in secrets):
        return "(the response is not shown: it repeats a secret)"
    short = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    return ascii(short)[1:-1]


def _contains_part_of(secret: str, text: str) -> bool:
    size = min(len(secret), _MAX_SECRET_PART)
    return any(secret[at : at + size] in text for at in range(len(secret) - size + 1))
