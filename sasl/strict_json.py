"""Strict JSON parser for untrusted input: an object, or None; never an exception.

Stricter than RFC 8259 demands, as RFC 7519 section 4 and RFC 7515 section 4 allow: UTF-8 only, no
duplicate names in an object (of which two readers could choose different ones), no NaN or Infinity.
Nesting is limited (RFC 8259 section 9): Python's decoder recurses, to a depth that differs between
versions, and before 3.14 it can overrun the stack of a thread that has a small one.
"""

import json
import re
from typing import Any, Final, NoReturn

MAX_NESTING: Final = 32
"""Maximum depth of arrays and objects; those of claims and key sets are below ten."""

_NO_BRACKETS: Final = re.compile(r'[^][{}"]++|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Pattern of strings, closed or not, and of everything else but brackets."""


def read_object(data: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; return None if it is invalid, not an object, or nested too deeply."""
    try:
        text = data.decode()
        if text.count("[") + text.count("{") > MAX_NESTING and _is_deep(text):
            return None
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_deep(text: str) -> bool:
    """Return whether anything is nested more deeply than `MAX_NESTING`, or not closed."""
    brackets = _NO_BRACKETS.sub("", text).replace("{", "[").replace("}", "]")
    for _ in range(MAX_NESTING):
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
"""Decoder, created once: `json.loads` creates one at each call, which takes as long as parsing."""
