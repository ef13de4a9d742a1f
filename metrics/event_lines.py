"""Builder of one line of the event log.

It does not use `json`, which is several times slower: that matters when ten thousand clients
reconnect at once.
"""

from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import Final, final

from metrics.events import MAX_INT64, MAX_TEXT_CHARS

MAX_CACHED_TEXTS: Final = 1_024
"""Maximum number of cached encoded texts: 4 MiB at most, if all are long."""

_SURELY_FITS: Final = 2**61
"""Bound of the numbers that compiled code compares without creating objects."""

_SMALL: Final = [str(number) for number in range(256)]
"""Decimal forms of small numbers; most numbers in a line are small."""

_KEYS: Final[dict[str, str]] = {}
"""Encoded names of fields."""
_TEXTS: Final[dict[str, str]] = {}
"""Encoded forms of recent texts: names, addresses, versions and reasons recur."""


@final
class Line:
    """JSON object that is written field by field; fields that are null are left out.

    All text from clients is written as ASCII JSON strings, so it can neither forge a line nor
    control a terminal. Text and numbers are bounded.
    """

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells: list[str] = []

    def number(self, name: str, value: int) -> None:
        """Add a whole number."""
        self._cells.append(_key(name))
        small = 0 <= value < len(_SMALL)
        self._cells.append(_SMALL[value] if small else str(bounded_int(value)))

    def optional_number(self, name: str, value: int | None) -> None:
        """Add a whole number that may be null."""
        if value is not None:
            self.number(name, value)

    def text(self, name: str, value: str) -> None:
        """Add a text that recurs in other lines, and is cached."""
        self._cells.append(_key(name))
        self._cells.append(_quoted(value))

    def optional_text(self, name: str, value: str | None) -> None:
        """Add a text that recurs, and may be null."""
        if value is not None:
            self.text(name, value)

    def unique_text(self, name: str, value: str) -> None:
        """Add a text that does not recur in the lines of other connections, and is not cached."""
        self._cells.append(_key(name))
        self._cells.append(encode_basestring_ascii(bounded_text(value)))

    def texts(self, name: str, values: Sequence[str]) -> None:
        """Add a list of texts that recur, unless it is empty."""
        if values:
            self._cells.append(_key(name))
            self._cells.append(f"[{','.join([_quoted(value) for value in values])}]")

    def flag(self, name: str, value: bool) -> None:
        """Add true or false."""
        self._cells.append(_key(name))
        self._cells.append("true" if value else "false")

    def rows(self, name: str, rows: list[str]) -> None:
        """Add a list of objects, each of them finished."""
        self._cells.append(_key(name))
        self._cells.append(f"[{','.join(rows)}]")

    def finish(self) -> str:
        """Return the line, without its newline."""
        return "{" + "".join(self._cells)[1:] + "}"


def _key(name: str) -> str:
    """Return a field's encoded name; the cache has at most one per field of the schema."""
    known = _KEYS.get(name)
    if known is None:
        known = _KEYS[name] = f',"{name}":'
    return known


def _quoted(text: str) -> str:
    known = _TEXTS.get(text)
    if known is not None:
        return known
    written = encode_basestring_ascii(bounded_text(text))
    if len(text) <= MAX_TEXT_CHARS:
        if len(_TEXTS) >= MAX_CACHED_TEXTS:
            _TEXTS.clear()
        _TEXTS[text] = written
    return written


def bounded_text(text: str) -> str:
    """Truncate a text to `MAX_TEXT_CHARS`, and replace lone surrogates, which cannot be decoded."""
    if len(text) > MAX_TEXT_CHARS:
        text = text[: MAX_TEXT_CHARS - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def bounded_int(number: int) -> int:
    """Clamp a number to a signed 64-bit integer: a token may claim any lifetime."""
    if -_SURELY_FITS <= number <= _SURELY_FITS:
        return number
    return max(-MAX_INT64 - 1, min(MAX_INT64, number))
