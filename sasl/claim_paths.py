"""Paths to claims: the name of one, or names with dots between them that lead through objects."""

from collections.abc import Mapping
from typing import Any, Final

ABSENT: Final = object()
"""Value of a claim that the token does not have; null is a value."""


class BrokenPath(Exception):
    """A path leads through what is no object."""


def value_at(claims: Mapping[str, Any], path: str) -> object:
    """Return the value at a path; `ABSENT` if there is none. Raises BrokenPath.

    A claim whose name is the whole path comes first: names may have dots, as
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
