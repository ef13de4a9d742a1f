"""Identity of a client: its principal, and the groups it is a member of.

Laws:

- An identity is immutable, and its size is bounded: a mechanism refuses a login that would bring
  more than the bounds here, with a reason. Nothing is cut off, because an ACL may deny a group.
- Names are compared as Kafka compares principals: character by character, without normalization, so
  that a look-alike is another name.
"""

from collections.abc import Iterable
from typing import Final, final

USER_TYPE: Final = "User:"
"""Type of a principal that authenticates (`KafkaPrincipal.USER_TYPE`)."""
GROUP_TYPE: Final = "Group:"
"""Type of a principal that stands for the members of a group (KIP-257 has it as an example)."""

MAX_GROUPS: Final = 256
"""Maximum number of groups of an identity. Identity providers that bound them in tokens have 200
(Microsoft Entra ID), and each group takes part in each decision."""
MAX_GROUP_CHARACTERS: Final = 250
"""Maximum length of a group's name in characters: with its type, events have room for it."""
MAX_ALL_GROUP_CHARACTERS: Final = 16_384
"""Maximum length of all groups of an identity together, as principals, in characters: 200 GUIDs
have half as many. Caches keep thousands of identities, and each event of a login names the groups.
"""
MAX_PRINCIPAL_CHARACTERS: Final = 4_096
"""Maximum length of a principal that a token names, in characters. Those of certificates have at
most 512, and SCRAM users are created by an operator."""


@final
class Identity:
    """Who a client is."""

    __slots__ = ("groups", "principal")

    def __init__(self, principal: str, groups: Iterable[str] = ()) -> None:
        """Know a client by its principal; `groups` are principals, too."""
        self.principal: Final = principal
        """Principal with its type, e.g. `User:alice`."""
        self.groups: Final = tuple(sorted(set(groups)))
        """Groups as principals, e.g. `Group:analysts`, sorted."""

    @property
    def principals(self) -> tuple[str, ...]:
        """All principals that ACLs and other rules may name: its own first, then its groups."""
        return (self.principal, *self.groups)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"Identity({self.principal!r}, {self.groups!r})"

    def _values(self) -> tuple[str, tuple[str, ...]]:
        return self.principal, self.groups


def is_group_name(name: str) -> bool:
    """Return whether a text may be the name of a group.

    `*` may not: an ACL for `Group:*` could be meant for the members of every group. Control
    characters, blanks around a name and lone surrogates are not either.
    """
    return (
        0 < len(name) <= MAX_GROUP_CHARACTERS
        and name != "*"
        and name == name.strip()
        and name.isprintable()
    )
