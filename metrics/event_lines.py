"""An event as a line of the log.

By hand, because `json` takes three times as long, which counts when ten thousand clients come back
at once.
"""

from dataclasses import fields
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import Final

from metrics.events import MAX_INT64, MAX_TEXT_CHARS, AuthInterval, LatencyBucket, SessionEvent

MAX_TEXTS_KEPT: Final = 1_024
"""At most 4 MiB, if strangers fill them."""

_Row = SessionEvent | AuthInterval | LatencyBucket
_ROWS: Final = (SessionEvent, AuthInterval, LatencyBucket)
_NAMES: Final[dict[type, list[str]]] = {
    row: [f',"{column.name}":' for column in fields(row)] for row in _ROWS
}
"""Of each kind of row, how the names of its cells stand in a line."""
_CELLS: Final = {row: attrgetter(*(column.name for column in fields(row))) for row in _ROWS}
"""What reads them."""
_TEXTS: Final[dict[str, str]] = {}
"""Most texts of a line stand in the next one too: names, addresses, versions, reasons."""


def to_json_line(event: SessionEvent) -> str:
    """Write an event as one line, without its newline.

    Whatever a client sent stands inside a JSON string in ASCII: no line can be forged, no
    terminal be reached. Text and numbers are bounded.
    """
    return _object(event)


def _object(row: _Row) -> str:
    """Write a row without its nulls."""
    kind = type(row)
    cells: tuple[object, ...] = _CELLS[kind](row)
    parts: list[str] = []
    for name, cell in zip(_NAMES[kind], cells):  # noqa: B905 - `strict` takes a third longer
        if cell is None:
            continue
        parts.append(name)
        if isinstance(cell, str):
            parts.append(_text(cell))
        elif type(cell) is int and 0 <= cell <= MAX_INT64:
            parts.append(str(cell))
        else:
            parts.append(_value(cell))
    return "{" + "".join(parts)[1:] + "}"


def _text(text: str) -> str:
    known = _TEXTS.get(text)
    if known is not None:
        return known
    written = encode_basestring_ascii(bounded_text(text))
    if len(text) <= MAX_TEXT_CHARS:
        if len(_TEXTS) >= MAX_TEXTS_KEPT:
            _TEXTS.clear()
        _TEXTS[text] = written
    return written


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(bounded_int(value))
    if isinstance(value, tuple):
        return f"[{','.join(map(_object, value))}]"
    raise AssertionError(f"no value of the log: {type(value)}")


def bounded_text(text: str) -> str:
    """Cut what a client sent to `MAX_TEXT_CHARS`, and replace what no reader could decode."""
    if len(text) > MAX_TEXT_CHARS:
        text = text[: MAX_TEXT_CHARS - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def bounded_int(number: int) -> int:
    """Keep a number within a signed 64-bit integer: a token may claim to live for ever."""
    return max(-MAX_INT64 - 1, min(MAX_INT64, number))
