"""JSON from strangers: an object, or None; never an exception.

Stricter than RFC 8259 asks, as RFC 7519 section 4 and RFC 7515 section 4 allow: UTF-8 only, no
name twice in an object (two readers could each see another one), no NaN or Infinity.
"""

import json
from typing import Any, Final, NoReturn


def read_object(data: bytes) -> dict[str, Any] | None:
    """Read a JSON object; None: it is something else, is malformed, or is nested too deeply."""
    try:
        value = _DECODER.decode(data.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique_names, parse_constant=_no_constant)
"""Made once: `json.loads` would make one for each text, which costs more than a token's JSON."""
