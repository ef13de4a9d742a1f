"""Salts of SCRAM: their generation, and the forms of salts that other tools generate.

The form of a salt must not reveal whether a user exists. Salts that are generated here have the
form of those that Kafka's own tools generate. AlterUserScramCredentials may add others, such as 64
random bytes or hexadecimal text, and salts for users who do not exist then have the same forms.

A form is the coding and the length of a salt. Other properties are not imitated: the dashes of a
UUID, a prefix, a length of more than `MAX_SALT_BYTES`, a salt that several users share.
"""

import re
import secrets
from base64 import b64decode, b64encode
from typing import Final, NamedTuple

MAX_SALT_BYTES: Final = 1024
"""Maximum length in bytes of a form; a longer salt counts as one of this length, because the time
of each login grows with the longest form."""

_BITS: Final = 130
"""Size of a generated salt in bits: a random number in base 36, as Kafka's
`ScramFormatter.secureRandomString` writes it."""
_DIGITS: Final = "0123456789"
_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_BASE_36: Final = _DIGITS + _LOWER
_PAIRS_OF_DIGITS: Final = [high + low for high in _BASE_36 for low in _BASE_36]
_TEN_DIGITS: Final = 36**10
"""Number of values of ten digits in base 36, which a machine integer can hold."""

_KAFKAS: Final = re.compile(rb"1[0-9a-z]{25}|[1-9a-z][0-9a-z]{21,24}")
"""Pattern of salts of 130 bits, except for one in a hundred thousand, which is shorter."""
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
"""Alphabets of salts, each before those that contain it."""
_LETTERS: Final = {
    coding: bytes(alphabet[byte % len(alphabet)] for byte in range(256))
    for coding, alphabet in _ALPHABETS.items()
}
"""Tables for `bytes.translate` that turn random bytes into random letters. Unless the size of an
alphabet divides 256, some letters are more frequent, but a single salt is too short to reveal it.
"""


class SaltForm(NamedTuple):
    """Form of a salt; ordered, so that users can be counted cumulatively."""

    coding: str
    """Coding: Kafka's, padded base 64, or one of the alphabets."""
    length: int
    """Length in bytes, decoded if it is padded base 64; 0 for Kafka's form, whose length varies."""


KAFKAS_FORM: Final = SaltForm(_KAFKAS_CODING, 0)


def new_salt() -> bytes:
    """Return a random salt in the form of Kafka's own tools."""
    return salt_of(secrets.randbits(_BITS))


def salt_of(number: int) -> bytes:
    """Return the low 130 bits of a number in base 36, as Kafka writes a salt."""
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
    """Return the form of a salt: the one with the smallest alphabet that fits."""
    if _KAFKAS.fullmatch(salt):
        return KAFKAS_FORM
    if salt.endswith(b"=") and (padded := _padded_bytes(salt)):
        return SaltForm(_PADDED, min(padded, MAX_SALT_BYTES))
    narrowest = next(
        coding for coding, alphabet in _ALPHABETS.items() if not salt.translate(None, alphabet)
    )
    return SaltForm(narrowest, min(len(salt), MAX_SALT_BYTES))


def _padded_bytes(salt: bytes) -> int:
    """Return the number of bytes that are encoded in base 64; 0 if it is not canonical base 64."""
    try:
        found = b64decode(salt, validate=True)
    except ValueError:
        return 0
    return len(found) if b64encode(found) == salt else 0


def salt_in(form: SaltForm, number: int, random: bytes) -> bytes:
    """Return a salt of this form, made from a number of 130 bits, or from `random` bytes.

    `random` must be as long as the form. The time hardly depends on the form.
    """
    kafkas = salt_of(number)
    if form.coding == _KAFKAS_CODING:
        return kafkas
    if form.coding == _PADDED:
        return b64encode(random[: form.length])
    return random[: form.length].translate(_LETTERS[form.coding])
