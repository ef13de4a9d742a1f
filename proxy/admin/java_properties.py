"""Syntax of `java.util.Properties`: comments, continued lines, escapes."""

import re
from collections.abc import Iterator
from typing import Final

_SEPARATOR: Final = re.compile(r"(?<!\\)(?:\\\\)*(?P<end>[ \t\f]*[=:][ \t\f]*|[ \t\f]+)")
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.S)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Read such a file; the last of a key wins."""
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
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        parts.append(line[:-1] if goes_on else line)
        if not goes_on:
            yield "".join(parts)
            parts = []
    if parts:
        yield "".join(parts)


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        letter = match[1]
        return chr(int(letter[1:], 16)) if len(letter) == 5 else _ESCAPED.get(letter, letter)

    # Java's letters are UTF-16: two escapes may be one of ours, and half of one is none
    return _ESCAPE.sub(plain, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
