"""Parser of `java.util.Properties` files: comments, continued lines, escapes."""

import re
from collections.abc import Iterator
from typing import Final

_SEPARATOR: Final = re.compile(r"(?<!\\)(?:\\\\)*(?P<end>[ \t\f]*[=:][ \t\f]*|[ \t\f]+)")
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.S)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties in the text of a file; the last value of a key counts."""
    properties = {}
    for line in filter(None, _logical_lines(text)):
        separator = _SEPARATOR.search(line)
        key, value = (
            (line, "")
            if separator is None
            else (line[: separator.start("end")], line[separator.end() :])
        )
        properties[_unescaped(key)] = _unescaped(value)
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    parts: list[str] = []
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not parts and (not line or line[0] in "#!"):
            continue
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        parts.append(line[:-1] if continues else line)
        if not continues:
            yield "".join(parts)
            parts = []
    if parts:
        yield "".join(parts)


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)

    # Java's escapes are UTF-16 code units: a pair is one character, a lone surrogate none
    return _ESCAPE.sub(plain, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
