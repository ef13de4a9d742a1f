"""Subject of a certificate as Java's `X500Principal.getName()` writes it; pure.

That is RFC 2253 with three peculiarities of Java: a type without a keyword of RFC 2253 is written
as a dotted number with the hexadecimal DER as its value; `=` and `#` are escaped wherever they
stand; and a value that is not one of the string types that Java reads is hexadecimal too. ACLs
compare these texts character by character.

The bytes are untrusted until an authority has signed them, and the name in them is chosen by the
client even then: a subject that cannot be parsed, is too long, or has control characters is
refused.
"""

import unicodedata
from collections.abc import Iterator
from typing import Final

from proxy.errors import ClientFault

MAX_CHARACTERS: Final = 512
"""Maximum length of a name in characters. The limits that RFC 5280 appendix A.1 sets for a common
name, a unit, an organization, a place, a state and a country add up to less; and the time that a
pattern takes is a power of the length."""

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""Keywords of attribute types, by object identifier (RFC 2253 section 2.3)."""
_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "utf-8",  # PrintableString
    0x14: "utf-8",  # T61String
    0x16: "utf-8",  # IA5String
    0x1B: "utf-8",  # GeneralString
    0x1E: "utf-16-be",  # BMPString
}
"""Encodings with which Java reads a value, by its tag. Any other value is written in
hexadecimal."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_MAX_BYTES: Final = 8 * MAX_CHARACTERS
"""Maximum length of a subject in bytes: a longer one cannot be a name of so few characters."""
_UNPRINTABLE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode's categories of control characters, surrogates, and line and paragraph separators."""

_TOO_LONG: Final = f"has more than {MAX_CHARACTERS} characters"

_OID: Final = 0x06
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_VERSION: Final = 0xA0
"""Tags of DER (X.690); `_VERSION` is the tag of a certificate's version (RFC 5280 section 4.1)."""
_LONG_LENGTH: Final = 0x80
_MAX_LENGTH_BYTES: Final = 3


class NamelessError(ClientFault):
    """The certificate yields no name; the text says why, and quotes nothing of it."""


def subject_of(certificate: bytes) -> str:
    """Return the subject's name in a certificate (DER). Raises NamelessError."""
    try:
        # The outermost name is the last one.
        names = [_relative_name(one) for one in _subject(certificate)]
        name = ",".join(reversed(names))
    except (ValueError, IndexError):  # UnicodeError is a ValueError
        raise NamelessError("its subject cannot be read") from None
    return checked(name)


def checked(name: str, what: str = "its subject") -> str:
    """Return the name if it may be a principal's. Raises NamelessError, which calls it `what`."""
    if not name:
        raise NamelessError(f"{what} is empty")
    if len(name) > MAX_CHARACTERS:
        raise NamelessError(f"{what} {_TOO_LONG}")
    if not name.isprintable() and any(unicodedata.category(one) in _UNPRINTABLE for one in name):
        raise NamelessError(f"{what} has control characters")
    return name


def _subject(certificate: bytes) -> Iterator[memoryview]:
    """Yield the relative names (X.501 RelativeDistinguishedName) of a certificate's subject."""
    ((_, whole),) = _items(memoryview(certificate), _SEQUENCE)
    (_, signed), *_ = _items(whole)
    fields = list(_items(signed))
    # Fields: version (optional), serial number, signature, issuer, validity, subject
    tag, subject = fields[5 if fields[0][0] == _VERSION else 4]
    if tag != _SEQUENCE:
        raise ValueError
    if len(subject) > _MAX_BYTES:
        raise NamelessError(f"its subject {_TOO_LONG}")
    for _, relative in _items(subject, _SET):
        yield relative


def _items(data: memoryview, tag: int | None = None) -> Iterator[tuple[int, memoryview]]:
    """Yield the tag and the content of each value in `data`; raise ValueError unless all have
    `tag`."""
    pos = 0
    while pos < len(data):
        its_tag, size = data[pos], data[pos + 1]
        pos += 2
        if size & _LONG_LENGTH:
            width = size & ~_LONG_LENGTH
            if not 0 < width <= _MAX_LENGTH_BYTES:
                raise ValueError
            size = int.from_bytes(data[pos : pos + width], "big")
            pos += width
            if size < _LONG_LENGTH or size.bit_length() <= 8 * (width - 1):
                raise ValueError  # DER has exactly one encoding of a length
        if pos + size > len(data) or tag not in (None, its_tag):
            raise ValueError
        yield its_tag, data[pos : pos + size]
        pos += size


def _relative_name(attributes: memoryview) -> str:
    """Return one relative name as text: usually one attribute, else all of them in their order."""
    return "+".join(_attribute(one) for _, one in _items(attributes, _SEQUENCE))


def _attribute(attribute: memoryview) -> str:
    (oid_tag, oid), (tag, value) = _items(attribute)
    if oid_tag != _OID:
        raise ValueError
    number = _dotted(bytes(oid))
    keyword, encoding = _KEYWORDS.get(number), _ENCODINGS.get(tag)
    if keyword is None or encoding is None:
        whole = attribute[len(attribute) - _size_with_head(value) :]
        return f"{keyword or number}=#{whole.hex()}"
    return f"{keyword}={_escaped(str(value, encoding))}"


def _size_with_head(value: memoryview) -> int:
    size = len(value)
    return size + 2 + (0 if size < _LONG_LENGTH else (size.bit_length() + 7) // 8)


def _dotted(oid: bytes) -> str:
    """Return an object identifier in dotted form (X.690 section 8.19)."""
    if not oid or oid[-1] & 0x80:
        raise ValueError
    numbers, number = [], 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(value: str) -> str:
    """Return the value escaped as in RFC 2253 section 2.4, and as Java does."""
    text = "".join(
        f"\\{one}" if one in _ESCAPED else "\\00" if one == "\0" else one for one in value
    )
    inner = text.strip(" \r")
    begin = len(text) - len(text.lstrip(" \r"))
    spaces_before, spaces_after = text[:begin], text[begin + len(inner) :]
    return _each_escaped(spaces_before) + inner + _each_escaped(spaces_after)


def _each_escaped(spaces: str) -> str:
    return "".join(f"\\{one}" for one in spaces)
