"""What strangers wrote, made fit for a line of the log."""

from collections.abc import Iterable
from typing import Final

_MAX_JUDGED: Final = 1_024
_MAX_SHOWN: Final = 200
_PIECE_OF_SECRET: Final = 8
"""Characters of a secret in a row that are too many to show."""


def fit_for_log(text: str, secrets: Iterable[str]) -> str:
    """Make one short line of ASCII of what others wrote; withhold it if it repeats a secret."""
    judged = text[:_MAX_JUDGED].casefold()
    if any(_holds_piece_of(secret.casefold(), judged) for secret in secrets):
        return "(what was answered is not shown: it repeats the secret)"
    short = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    return ascii(short)[1:-1]


def _holds_piece_of(secret: str, text: str) -> bool:
    size = min(len(secret), _PIECE_OF_SECRET)
    return any(secret[at : at + size] in text for at in range(len(secret) - size + 1))
