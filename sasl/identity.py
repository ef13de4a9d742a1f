"""Identity of a client: its principal, and its groups, such as those that a token names.

Rules:

- An identity is immutable, and its size is bounded: a mechanism rejects a login that exceeds the
  bounds here, with a reason. Nothing is truncated, because an ACL may deny a group.
- Names are compared as Kafka compares principals: character by character, without normalization, so
  look-alikes are different names.
- All groups of a token count, or the token is refused: an ACL may deny any of them. A token without
  the claim has no groups. A token is refused if some of its groups are elsewhere (OpenID Connect
  Core section 5.6.2, which Microsoft Entra ID uses above 200 groups; Entra's `hasgroups`).
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, final

from sasl.untrusted import ABSENT, BrokenPath, value_at

USER_TYPE: Final = "User:"
"""Type of a principal that authenticates (`KafkaPrincipal.USER_TYPE`)."""
GROUP_TYPE: Final = "Group:"
"""Type of a principal that stands for the members of a group, as in an example of KIP-257."""

MAX_GROUPS: Final = 256
"""Maximum number of groups of an identity. Microsoft Entra ID puts at most 200 in a token; each
group takes part in each decision."""
MAX_GROUP_CHARACTERS: Final = 250
"""Maximum length of a group's name in characters: with its type, it fits into events."""
MAX_ALL_GROUP_CHARACTERS: Final = 16_384
"""Maximum length of all groups of an identity together, as principals, in characters: 200 GUIDs
take half of that. Caches keep thousands of identities, and each event of a login names the groups.
"""
MAX_PRINCIPAL_CHARACTERS: Final = 4_096
"""Maximum length of a principal that a token names, in characters. Those of certificates have at
most 512, and operators create SCRAM users."""


@final
class Identity:
    """Identity of a client."""

    __slots__ = ("groups", "principal")

    def __init__(self, principal: str, groups: Iterable[str] = ()) -> None:
        """`groups` are principals as well."""
        self.principal: Final = principal
        """Principal with its type, e.g. `User:alice`."""
        self.groups: Final = tuple(sorted(set(groups)))
        """Groups as principals, e.g. `Group:analysts`, sorted."""

    @property
    def principals(self) -> tuple[str, ...]:
        """All principals that rules such as ACLs may name: its own first, then its groups."""
        return (self.principal, *self.groups)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"Identity({self.principal!r}, {self.groups!r})"

    def _values(self) -> tuple[str, tuple[str, ...]]:
        return self.principal, self.groups


class LoginFacts(NamedTuple):
    """Facts of a login in addition to its identity, by which it can be blocked: the claims that
    identify a token (RFC 7519 section 4.1). None if the login has no such claim."""

    issuer: str | None = None
    """`iss`, as `kept` returns it, like the next two."""
    subject: str | None = None
    """`sub`."""
    token_id: str | None = None
    """`jti`."""
    issued_at: float | None = None
    """`iat` in Unix seconds, rounded down."""
    is_token: bool = False
    """True if the login was a token."""
    is_readable: bool = True
    """False if a broker accepted a login that the proxy could not read although the mechanism has
    a name in it: the client may be anyone."""


MAX_FACT_CHARACTERS: Final = 512
"""Number of characters up to which a claim is kept as it is."""


def kept(text: object) -> str | None:
    """Return the text of a claim, or its SHA-256 if it is long, so that the memory of a session is
    bounded; None if it is not a text."""
    if not isinstance(text, str):
        return None
    if len(text) <= MAX_FACT_CHARACTERS:
        return text
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"


def is_group_name(name: str) -> bool:
    """Return whether a text may be the name of a group.

    `*` is not a name: an ACL for `Group:*` could be meant for the members of every group. Names
    with control characters, surrounding blanks or lone surrogates are invalid, too.
    """
    return (
        0 < len(name) <= MAX_GROUP_CHARACTERS
        and name != "*"
        and name == name.strip()
        and name.isprintable()
    )


_ELSEWHERE: Final = "_claim_names"
"""Claim with the names of claims in another document (OpenID Connect Core 5.6.2)."""
_LEFT_OUT: Final = "hasgroups"
"""Claim of Microsoft Entra ID for omitted `groups`: tokens of its implicit flow name at most
five."""
_GROUPS: Final = "groups"


class BadGroups(Exception):
    """The token's groups are rejected; the text has the reason, and quotes nothing of the token."""


def groups_of(
    claims: Mapping[str, Any], path: str, prefix: str = "", reserved: tuple[str, ...] = ()
) -> frozenset[str]:
    """Return the groups at `path`, as principals, each name after `prefix`. Raises BadGroups, also
    for a name that begins with one of `reserved`."""
    _check_that_they_are_here(claims, path)
    try:
        value = value_at(claims, path)
    except BrokenPath:
        raise BadGroups("crosses a value that is not an object") from None
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
    """Raise BadGroups if the token refers to another document for its groups, or omits them."""
    elsewhere = claims.get(_ELSEWHERE, {})
    names = (path, path.partition(".")[0])
    if not isinstance(elsewhere, dict) or not elsewhere.keys().isdisjoint(names):
        raise BadGroups(f"is not in the token, which refers to another document ({_ELSEWHERE})")
    if path == _GROUPS and path not in claims and claims.get(_LEFT_OUT, False) is not False:
        raise BadGroups(f"is not in the token, although it has groups ({_LEFT_OUT})")
