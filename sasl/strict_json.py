"""JSON from strangers: an object, or None; never an exception.

Stricter than RFC 8259 asks, as RFC 7519 section 4 and RFC 7515 section 4 allow: UTF-8 only, no
name twice in an object (two readers could each see another one), no NaN or Infinity. Nesting is
limited (RFC 8259 section 9): Python's decoder recurses, to a depth that differs from version to
version, and before 3.14 it overruns the stack of a thread that has a small one.
"""

import json
import re
from typing import Any, Final, NoReturn

MAX_NESTED: Final = 32
"""Arrays and objects within each other; claims and key sets have fewer than ten."""

_NO_BRACKETS: Final = re.compile(r'[^][{}"]++|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Strings, whether they end or not, and all else that opens and closes nothing."""


def read_object(data: bytes) -> dict[str, Any] | None:
    """Read a JSON object; None: it is something else, is malformed, or is nested too deeply."""
    try:
        text = data.decode()
        if text.count("[") + text.count("{") > MAX_NESTED and _is_deep(text):
            return None
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_deep(text: str) -> bool:
    """Whether anything is nested more deeply than allowed, or is not closed."""
    brackets = _NO_BRACKETS.sub("", text).replace("{", "[").replace("}", "]")
    for _ in range(MAX_NESTED):
        brackets = brackets.replace("[]", "")  # the innermost level
    return bool(brackets)


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique_names, parse_constant=_no_constant)
"""Made once: `json.loads` would make one for each text, which costs more than a token's JSON."""
