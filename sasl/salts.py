"""Salts: the form of those that are made here, and of those that others made.

Who asks for a salt must not learn by its form whether there is such a user. What users are given
here has the form that Kafka's own tools give; AlterUserScramCredentials brings whatever another
tool made, 64 random bytes or text in hexadecimal, and salts for users who do not exist are then
made in the same forms.

A form is how a salt is written and how long it is. What else a salt has can still be told: the
dashes of a UUID, a prefix, a length of more than `MAX_BYTES`, that several users share it.
"""

import re
import secrets
from base64 import b64decode, b64encode
from typing import Final, NamedTuple

MAX_BYTES: Final = 1024
"""A longer salt counts as one of so many: the work of each login grows with the longest form."""

_BITS: Final = 130
"""Kafka's `ScramFormatter.secureRandomString`: a random number of 130 bits, in base 36."""
_DIGITS: Final = "0123456789"
_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_BASE_36: Final = _DIGITS + _LOWER
_PAIRS_OF_DIGITS: Final = [high + low for high in _BASE_36 for low in _BASE_36]
_TEN_DIGITS: Final = 36**10
"""As many as an integer of the machine holds."""

_KAFKAS: Final = re.compile(rb"1[0-9a-z]{25}|[1-9a-z][0-9a-z]{21,24}")
"""What 130 bits make, but for one salt in a hundred thousand, which is shorter."""
_KAFKAS_CODING: Final = "Kafka's"
_PADDED: Final = "base 64, padded"
_ALPHABETS: Final = {
    "hexadecimal": _BASE_36[:16].encode(),
    "upper-case hexadecimal": _BASE_36[:16].upper().encode(),
    "base 36": _BASE_36.encode(),
    "base 62": (_BASE_36 + _LOWER.upper()).encode(),
    "base 64": (_BASE_36 + _LOWER.upper() + "+/").encode(),
    "ASCII": bytes(range(0x20, 0x7F)),
    "bytes": bytes(range(256)),
}
"""Each before those that it is a part of."""
_LETTERS: Final = {
    coding: bytes(alphabet[byte % len(alphabet)] for byte in range(256))
    for coding, alphabet in _ALPHABETS.items()
}
"""For `bytes.translate`: random bytes become random letters. Where an alphabet does not divide 256,
some letters are more frequent than others, which a single salt is too short to show."""


class SaltForm(NamedTuple):
    """How a salt is written. Ordered, so that users can be counted up to one."""

    coding: str
    """Kafka's, padded base 64, or one of the alphabets."""
    length: int
    """In bytes: of what stands in padded base 64, or else of the salt. 0: Kafka's, which varies."""


KAFKAS_FORM: Final = SaltForm(_KAFKAS_CODING, 0)


def new_salt() -> bytes:
    """A random salt of the form that Kafka's own tools give to the users they make."""
    return salt_of(secrets.randbits(_BITS))


def salt_of(number: int) -> bytes:
    """The salt that a number makes: its low 130 bits in base 36, as Kafka writes it."""
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


def form_of(salt: bytes) -> SaltForm:
    """The form of a salt, whoever made it: the narrowest that it has."""
    if _KAFKAS.fullmatch(salt):
        return KAFKAS_FORM
    if salt.endswith(b"=") and (padded := _padded_bytes(salt)):
        return SaltForm(_PADDED, min(padded, MAX_BYTES))
    narrowest = next(
        coding for coding, alphabet in _ALPHABETS.items() if not salt.translate(None, alphabet)
    )
    return SaltForm(narrowest, min(len(salt), MAX_BYTES))


def _padded_bytes(salt: bytes) -> int:
    """How many bytes stand in base 64; 0: it is none that an encoder writes."""
    try:
        found = b64decode(salt, validate=True)
    except ValueError:
        return 0
    return len(found) if b64encode(found) == salt else 0


def salt_in(form: SaltForm, number: int, random: bytes) -> bytes:
    """The salt of a form that is made of a number of 130 bits, or of `random` bytes.

    There must be as many of these as the form is long. The work hardly depends on the form.
    """
    kafkas = salt_of(number)
    if form.coding == _KAFKAS_CODING:
        return kafkas
    if form.coding == _PADDED:
        return b64encode(random[: form.length])
    return random[: form.length].translate(_LETTERS[form.coding])
