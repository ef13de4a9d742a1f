"""Memberships: the groups of SCRAM users and of certificates, from a file.

    {"groups": {"analysts": ["User:alice", "User:CN=report,O=Example"], "interns": []}}

The file is JSON, and is accepted as a whole or not at all. If it is incomplete or one name is
invalid, the last valid file stays in force: a partial list could omit a group that an ACL denies.
"""

from collections.abc import Mapping
from typing import Any, Final

from sasl.identity import (
    GROUP_TYPE,
    MAX_ALL_GROUP_CHARACTERS,
    MAX_GROUP_CHARACTERS,
    MAX_GROUPS,
    Identity,
    is_group_name,
)
from sasl.untrusted import read_object

MAX_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of the file in bytes. A Secret of Kubernetes has at most 1 MiB."""
_GROUPS: Final = "groups"


class BadMemberships(Exception):
    """The file is invalid; the text has the reason."""


class Memberships:
    """Groups by principal."""

    def __init__(self, groups: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """`groups` maps principals to their groups, both with their types."""
        self._groups = groups or {}

    @classmethod
    def parse(cls, document: bytes) -> "Memberships":
        """Return the memberships in a file. Raises BadMemberships."""
        if len(document) > MAX_BYTES:
            raise BadMemberships(f"is larger than {MAX_BYTES} bytes")
        members = read_object(document)
        if members is None:
            raise BadMemberships("is not a JSON object, or is incomplete")
        if members.keys() != {_GROUPS} or not isinstance(members[_GROUPS], dict):
            raise BadMemberships(f"must have `{_GROUPS}`, an object, and nothing else")
        found: dict[str, list[str]] = {}
        for group, principals in members[_GROUPS].items():
            as_principal = GROUP_TYPE + group  # one text for all its members
            for principal in _checked(group, principals):
                found.setdefault(principal, []).append(as_principal)
        for principal, groups in found.items():
            if len(groups) > MAX_GROUPS:
                raise BadMemberships(f"has {principal!a:.80} in more than {MAX_GROUPS} groups")
            if sum(map(len, groups)) > MAX_ALL_GROUP_CHARACTERS:
                raise BadMemberships(
                    f"has {principal!a:.80} in groups of more than {MAX_ALL_GROUP_CHARACTERS}"
                    " characters together"
                )
        return cls({principal: tuple(groups) for principal, groups in found.items()})

    def identity(self, principal: str) -> Identity:
        """Return the identity of a client that logged in as this principal."""
        return Identity(principal, self._groups.get(principal, ()))

    def __str__(self) -> str:
        return f"{len(self._groups)} clients have groups"


def _checked(group: str, principals: Any) -> list[str]:
    """Return the members of a group. Raises BadMemberships."""
    if not is_group_name(group):
        raise BadMemberships(
            f"has a group {group!a:.80}: names have 1 to {MAX_GROUP_CHARACTERS} printable"
            " characters without blanks around them, and are not *"
        )
    if not isinstance(principals, list) or not all(isinstance(one, str) for one in principals):
        raise BadMemberships(f"has no list of principals for the group {group!a:.80}")
    for principal in principals:
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name) or principal.startswith(GROUP_TYPE):
            raise BadMemberships(
                f"has {principal!a:.80} in the group {group!a:.80}: members are principals such as"
                " User:alice"
            )
    if len(set(principals)) < len(principals):
        raise BadMemberships(f"names a member of the group {group!a:.80} twice")
    return principals
