r"""Character classes of Java's patterns, as ranges of code points; pure.

POSIX's (`\p{Alpha}`) are those of ASCII. Unicode's general categories (`\p{L}`, `\p{Lu}`) are those
of Python's version of Unicode; what is not assigned there may be a letter to a later Java.
"""

import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final

Ranges = Sequence[tuple[int, int]]
"""Ranges of code points (first, last), in ascending order and with gaps between them."""

_HIGHEST: Final = sys.maxunicode


def _of(*ranges: str) -> Ranges:
    return [(ord(one[0]), ord(one[-1])) for one in ranges]


_POSIX: Final[Mapping[str, Ranges]] = {
    "Lower": _of("az"),
    "Upper": _of("AZ"),
    "ASCII": _of("\x00\x7f"),
    "Alpha": _of("AZ", "az"),
    "Digit": _of("09"),
    "Alnum": _of("09", "AZ", "az"),
    "Punct": _of("!/", ":@", "[`", "{~"),
    "Graph": _of("!~"),
    "Print": _of(" ~"),
    "Blank": _of("\t\t", "  "),
    "Cntrl": _of("\x00\x1f", "\x7f\x7f"),
    "XDigit": _of("09", "AF", "af"),
    "Space": _of("\t\r", "  "),
}
_PROPERTIES: Final = {
    "IsLetter": "L",
    "IsDigit": "Nd",
    "IsPunctuation": "P",
    "IsControl": "Cc",
}
"""Binary properties that are general categories (Java's `Pattern`, "Binary properties")."""


def named_ranges(name: str) -> tuple[Ranges, Ranges]:
    """Return the characters of a class, and those for which Java's versions may differ.

    Raises re.error for an unknown name.
    """
    if name in _POSIX:
        return _POSIX[name], ()
    categories = _categories()
    unassigned = categories["Cn"]
    if name == "IsAlphabetic":
        # Besides letters these are marks and signs, which Unicode lists individually
        letters = _merged((*_category("L"), *_category("Nl")))
        return letters, _merged((*_category("Mn"), *_category("Mc"), *_category("So"), *unassigned))
    if name in ("IsLowercase", "IsUppercase"):
        return _cased()[name == "IsUppercase"], unassigned
    found = _category(_PROPERTIES.get(name, name.removeprefix("Is")))
    if not found or name.startswith("C"):  # unassigned code points may become letters
        raise re.error(f"\\p{{{name}}} is not supported here")
    return found, unassigned


def complement(ranges: Ranges) -> Ranges:
    """Return all characters that are not in `ranges`."""
    begins = [0, *(last + 1 for _, last in ranges)]
    ends = [*(first - 1 for first, _ in ranges), _HIGHEST]
    return [(first, last) for first, last in zip(begins, ends, strict=True) if first <= last]


def written(ranges: Ranges) -> str:
    """Return the ranges as text for between the brackets of a Python character class."""
    return "".join(
        _escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}"
        for first, last in ranges
    )


def _escaped(code: int) -> str:
    return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"


@cache
def _categories() -> Mapping[str, Ranges]:
    """Return all characters by general category; the first call takes a quarter of a second."""
    found = defaultdict[str, list[tuple[int, int]]](list)
    begin, category = 0, unicodedata.category("\0")
    for code in range(1, _HIGHEST + 1):
        if (other := unicodedata.category(chr(code))) != category:
            found[category].append((begin, code - 1))
            begin, category = code, other
    found[category].append((begin, _HIGHEST))
    return found


@cache
def _category(name: str) -> Ranges:
    """Return the characters of a general category, or of all that begin with one letter."""
    return _merged(
        one for key, ranges in _categories().items() if key.startswith(name) for one in ranges
    )


@cache
def _cased() -> tuple[Ranges, Ranges]:
    """Return the lower-case and the upper-case characters, including those that are not letters."""
    held = (one for name in ("L", "Nl", "So", "Mn") for one in _category(name))
    letters = [chr(code) for first, last in held for code in range(first, last + 1)]
    lower = _merged((ord(one), ord(one)) for one in letters if one.islower())
    return lower, _merged((ord(one), ord(one)) for one in letters if one.isupper())


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged
