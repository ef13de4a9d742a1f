"""Groups of a token, from the claim that `sasl.oauthbearer.groups.claim.name` names.

Laws:

- All groups count, or the token is refused: an ACL may deny any of them.
- A token without the claim has no groups. One that says its groups, or more of them, are elsewhere
  (OpenID Connect Core section 5.6.2, as Microsoft Entra ID does for members of more than 200; or
  Entra's `hasgroups`) is refused.
"""

from collections.abc import Mapping
from typing import Any, Final

from sasl.claim_paths import ABSENT, BrokenPath, value_at
from sasl.identity import (
    GROUP_TYPE,
    MAX_ALL_GROUP_CHARACTERS,
    MAX_GROUP_CHARACTERS,
    MAX_GROUPS,
    is_group_name,
)

_ELSEWHERE: Final = "_claim_names"
"""Claim that names the claims which are in another document (OpenID Connect Core 5.6.2)."""
_LEFT_OUT: Final = "hasgroups"
"""Claim by which Microsoft Entra ID says that it left out `groups`: its tokens of the implicit flow
name five at most."""
_GROUPS: Final = "groups"


class BadGroups(Exception):
    """The token's groups are not accepted; the text says why, without what the token has."""


def groups_of(
    claims: Mapping[str, Any], path: str, prefix: str = "", reserved: tuple[str, ...] = ()
) -> frozenset[str]:
    """Return the groups at `path`, as principals, each name after `prefix`. Raises BadGroups, also
    for a name that begins with one of `reserved`."""
    _check_that_they_are_here(claims, path)
    try:
        value = value_at(claims, path)
    except BrokenPath:
        raise BadGroups("leads through what is no object") from None
    if value is ABSENT:
        return frozenset()
    names = value if isinstance(value, list) else [value]
    if len(names) > MAX_GROUPS:
        raise BadGroups(f"names more than {MAX_GROUPS} groups")
    groups = frozenset(GROUP_TYPE + _checked(name, prefix, reserved) for name in names)
    if sum(map(len, groups)) > MAX_ALL_GROUP_CHARACTERS:
        raise BadGroups(f"has more than {MAX_ALL_GROUP_CHARACTERS} characters in all groups")
    return groups


def _checked(name: object, prefix: str, reserved: tuple[str, ...]) -> str:
    if not isinstance(name, str):
        raise BadGroups("must be text or a list of texts")
    if not is_group_name(name) or len(prefix) + len(name) > MAX_GROUP_CHARACTERS:
        raise BadGroups(
            f"must have names of 1 to {MAX_GROUP_CHARACTERS - len(prefix)} printable characters"
            " without blanks around them, and not *"
        )
    if name.startswith(reserved):
        raise BadGroups("has a name that begins with another issuer's principal.prefix")
    return prefix + name


def _check_that_they_are_here(claims: Mapping[str, Any], path: str) -> None:
    """Raise BadGroups if the token says that its groups are in another document, or left out."""
    elsewhere = claims.get(_ELSEWHERE, {})
    names = (path, path.partition(".")[0])
    if not isinstance(elsewhere, dict) or not elsewhere.keys().isdisjoint(names):
        raise BadGroups(f"is not in the token, which refers to another document ({_ELSEWHERE})")
    if path == _GROUPS and path not in claims and claims.get(_LEFT_OUT, False) is not False:
        raise BadGroups(f"is not in the token, which says that there are groups ({_LEFT_OUT})")
