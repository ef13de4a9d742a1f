"""Untrusted input: JSON objects, the claims in them, and text for log lines.

`read_object` is stricter than RFC 8259 demands, as RFC 7519 section 4 and RFC 7515 section 4 allow:
UTF-8 only, no duplicate names in an object (of which two readers could choose different ones), no
NaN or Infinity. Nesting is limited (RFC 8259 section 9): Python's decoder recurses, to a depth that
differs between versions, and before 3.14 it can overrun a small stack of a thread.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

MAX_NESTING: Final = 32
"""Maximum depth of arrays and objects; those of claims and key sets are below ten."""

_NO_BRACKETS: Final = re.compile(r'[^][{}"]++|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Pattern of strings, closed or not, and of all other text except brackets."""


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


def unverified_claims(token: str) -> dict[str, Any] | None:
    """Return the claims of a signed JWT, which are not verified; None if `token` is not a JWT."""
    parts = token.split(".")
    if len(parts) != 3:  # header, claims, signature (RFC 7515 section 7.1)
        return None
    padded = parts[1] + "=" * (-len(parts[1]) % 4)
    try:
        payload = base64.b64decode(padded, altchars=b"-_", validate=True)
    except ValueError:
        return None
    return read_object(payload)


_MAX_CHECKED: Final = 1_024
_MAX_SHOWN: Final = 200
_MAX_SECRET_PART: Final = 8
"""Number of consecutive characters of a secret for which a text is withheld."""


def fit_for_log(text: str, secrets: Iterable[str]) -> str:
    """Return untrusted text as one short line of ASCII; withhold it if it repeats a secret."""
    checked = text[:_MAX_CHECKED].casefold()
    if any(_contains_part_of(secret.casefold(), checked) for secret in secrets):
        return "(the response is not shown: it repeats a secret)"
    short = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    return ascii(short)[1:-1]


def _contains_part_of(secret: str, text: str) -> bool:
    size = min(len(secret), _MAX_SECRET_PART)
    return any(secret[at : at + size] in text for at in range(len(secret) - size + 1))


ABSENT: Final = object()
"""Value of a claim that the token does not have; null is a value."""


class BrokenPath(Exception):
    """A path crosses a value that is not an object."""


def value_at(claims: Mapping[str, Any], path: str) -> object:
    """Return the value at a path; `ABSENT` if it is missing. Raises BrokenPath.

    A claim whose name is the whole path comes first: names may have dots, as in
    `https://example.com/groups`.
    """
    if path in claims:
        return claims[path]
    found: object = claims
    for name in path.split("."):
        if not isinstance(found, dict):
            raise BrokenPath
        if name not in found:
            return ABSENT
        found = found[name]
    return found
