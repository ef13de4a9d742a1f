"""Groups of a token, from the claim that `sasl.oauthbearer.groups.claim.name` names.

Laws:

- All groups count, or the token is refused: an ACL may deny any of them.
- A token without the claim has no groups. One that says its groups are elsewhere (OpenID Connect
  Core section 5.6.2, as Microsoft Entra ID does for members of more than 200) is refused.
"""

from collections.abc import Mapping
from typing import Any, Final

from sasl.identity import GROUP_TYPE, MAX_GROUP_CHARACTERS, MAX_GROUPS, is_group_name

_ELSEWHERE: Final = "_claim_names"
"""Claim that names the claims which are in another document (OpenID Connect Core 5.6.2)."""
_ABSENT: Final = object()
"""Value of a claim that the token does not have; null is a value."""


class BadGroups(Exception):
    """The token's groups are not accepted; the text says why, without what the token has."""


def groups_of(claims: Mapping[str, Any], path: str) -> frozenset[str]:
    """Return the groups at `path`, as principals: the name of a claim, or names with dots between
    them that lead through objects. Raises BadGroups."""
    value = _at(claims, path)
    if value is _ABSENT:
        return frozenset()
    names = value if isinstance(value, list) else [value]
    if len(names) > MAX_GROUPS:
        raise BadGroups(f"names more than {MAX_GROUPS} groups")
    return frozenset(GROUP_TYPE + _checked(name) for name in names)


def _checked(name: object) -> str:
    if not isinstance(name, str):
        raise BadGroups("must be text or a list of texts")
    if not is_group_name(name):
        raise BadGroups(
            f"must have names of 1 to {MAX_GROUP_CHARACTERS} printable characters without"
            " blanks around them, and not *"
        )
    return name


def _at(claims: Mapping[str, Any], path: str) -> object:
    """Return the value at a path; `_ABSENT` if there is none. Raises BadGroups."""
    if path in claims:  # names of claims may have dots: https://example.com/groups
        return claims[path]
    names = path.split(".")
    elsewhere = claims.get(_ELSEWHERE, {})
    if not isinstance(elsewhere, dict) or not elsewhere.keys().isdisjoint((path, names[0])):
        raise BadGroups(f"is not in the token, which refers to another document ({_ELSEWHERE})")
    found: object = claims
    for name in names:
        if not isinstance(found, dict):
            raise BadGroups("leads through what is no object")
        if name not in found:
            return _ABSENT
        found = found[name]
    return found
