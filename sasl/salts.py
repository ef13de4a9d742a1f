"""Salts in the one form that all of them have, so that none tells by whom it was made."""

import secrets
from typing import Final

_BITS: Final = 130
"""Kafka's `ScramFormatter.secureRandomString`: a random number of 130 bits, in base 36."""
_BASE_36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_PAIRS_OF_DIGITS: Final = [high + low for high in _BASE_36 for low in _BASE_36]
_TEN_DIGITS: Final = 36**10
"""As many as an integer of the machine holds."""


def new_salt() -> bytes:
    """A random salt of the form that Kafka's own tools give to the users they make."""
    return salt_of(secrets.randbits(_BITS))


def salt_of(number: int) -> bytes:
    """The salt that a number makes: its low 130 bits in base 36, as Kafka writes it.

    All salts share this form, so that a salt never tells by which tool, or whether, a user exists.
    """
    rest, last = divmod(number & (1 << _BITS) - 1, _TEN_DIGITS)
    first, middle = divmod(rest, _TEN_DIGITS)
    digits = _digits(first, 3) + _digits(middle, 5) + _digits(last, 5)
    return digits.lstrip("0").encode() or b"0"


def _digits(number: int, pairs: int) -> str:
    digits = ""
    for _ in range(pairs):
        digits = _PAIRS_OF_DIGITS[number % 1296] + digits
        number //= 1296
    return digits
