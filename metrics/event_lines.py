"""Builder of one line of the event log.

By hand, because `json` takes several times as long, which counts when ten thousand clients come
back at once.
"""

from json.encoder import encode_basestring_ascii
from typing import Final, final

from metrics.events import MAX_INT64, MAX_TEXT_CHARS

MAX_CACHED_TEXTS: Final = 1_024
"""The number of texts that are kept encoded: 4 MiB at most, if all are long."""

_SURELY_FITS: Final = 2**61
"""The largest number that compiled code compares without making objects of both sides."""

_SMALL: Final = [str(number) for number in range(256)]
"""The decimal forms of small numbers, which most numbers of a line are."""

_KEYS: Final[dict[str, str]] = {}
_TEXTS: Final[dict[str, str]] = {}
"""The encoded form of recent texts: names, addresses, versions and reasons come again."""


@final
class Line:
    """An object of JSON, cell by cell; what is null is left out.

    Whatever a client sent stands inside a JSON string in ASCII: no line can be forged, no
    terminal be reached. Text and numbers are bounded.
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
        """Add a text that comes again in other lines."""
        self._cells.append(_key(name))
        self._cells.append(_quoted(value))

    def optional_text(self, name: str, value: str | None) -> None:
        """Add such a text that may be null."""
        if value is not None:
            self.text(name, value)

    def unique_text(self, name: str, value: str) -> None:
        """Add a text that no other connection's lines have, and that is worth no remembering."""
        self._cells.append(_key(name))
        self._cells.append(encode_basestring_ascii(bounded_text(value)))

    def flag(self, name: str, value: bool) -> None:
        """Add true or false."""
        self._cells.append(_key(name))
        self._cells.append("true" if value else "false")

    def rows(self, name: str, rows: "list[Line]") -> None:
        """Add a list of objects."""
        written = ",".join([row.finish() for row in rows])
        self._cells.append(_key(name))
        self._cells.append(f"[{written}]")

    def cells(self) -> str:
        """Give what stands in it so far, for other lines that begin alike (`add_cells`)."""
        return "".join(self._cells)

    def add_cells(self, cells: str) -> None:
        """Add the cells of another line."""
        self._cells.append(cells)

    def finish(self) -> str:
        """Give the line, without its newline."""
        return "{" + self.cells()[1:] + "}"


def _key(name: str) -> str:
    """Return a field's name as it stands in a line; there are as many as the log has fields."""
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
    """Cut what a client sent to `MAX_TEXT_CHARS`, and replace what no reader could decode."""
    if len(text) > MAX_TEXT_CHARS:
        text = text[: MAX_TEXT_CHARS - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def bounded_int(number: int) -> int:
    """Keep a number within a signed 64-bit integer: a token may claim to live for ever."""
    if -_SURELY_FITS <= number <= _SURELY_FITS:
        return number
    return max(-MAX_INT64 - 1, min(MAX_INT64, number))
