"""Profiles of the differential test of ACLs: a user's rights to its own resources.

Each profile has resources of its own, topics, groups and transactional ids called `one` and
`two` behind the profile's name, so that profiles neither wait for nor disturb each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from proxy.acl.model import Operation
from tests.support.kafka.java import is_since
from tests.support.messages import Values
from tests.support.tables import table

#: Further resources beside `one` and `two`, with the same rights: what a program uses up (`.d`),
#: and groups of the newer protocols.
FORKS = ("", ".d0", ".d1", ".d2", ".d3", ".d5", ".d6", ".id", ".cg", ".sg", ".st")

PROFILES: Mapping[str, Sequence[str]] = {
    name: acls
    for name, acls in table(__file__, "profiles")
    if name != "blocks" or is_since("4.4")  # before, a block never applied
}

#: These send every version; the others the lowest, one in the middle and the highest.
THOROUGH = ("none", "all", "one", "deny-all")

#: Those whose rights to topics differ enough to have topics deleted.
DELETERS = (
    *THOROUGH,
    "only-delete",
    "only-describe",
    "only-read",
    "deny-delete",
    "deny-describe",
    "groups-and-delete",
    "prefixed",
    "cluster-all",
)


class Names:
    """The resources of one profile on one side."""

    def __init__(self, side: str, profile: str) -> None:
        self.side = side
        self.profile = profile
        self.user = f"{side}.{profile}"
        self.prefix = f"{self.user}."

    def __call__(self, short: str) -> str:
        """The whole name of a resource; `*` is itself."""
        return short if short == "*" else f"{self.prefix}{short}"

    def short(self, text: str) -> str:
        """The text without this side's names."""
        return text.replace(self.prefix, "").replace(self.user, "ME").replace(f"{self.side}.", "")


def creations(names: Names, acls: Sequence[str]) -> Iterator[Values]:
    """The entries of CreateAcls; those that name `one` or `two` apply to their forks too."""
    for acl in acls:
        forks = FORKS if ":one:" in acl or ":two:" in acl else ("",)
        for fork in forks:
            yield creation(
                acl,
                names.user,
                lambda short, fork=fork: names(f"{short}{fork}" if fork else short),  # type: ignore[misc]
            )


def all_creations(side: str, profiles: Mapping[str, Sequence[str]] = PROFILES) -> list[Values]:
    """The ACLs of all profiles of one side."""
    return list(
        chain.from_iterable(
            creations(Names(side, profile), acls) for profile, acls in profiles.items()
        )
    )


# --- ACLs in one line each

_LITERAL_PATTERN = 3

RESOURCE_TYPES = {"topic": 2, "group": 3, "cluster": 4, "txn": 5, "token": 6, "user": 7}
OPERATIONS = {operation.name: operation.value for operation in Operation}


def creation(acl: str, principal: str, name: Callable[[str], str]) -> Values:
    """One entry of CreateAcls from `+topic:one:READ`.

    `-` denies, `name^` is a prefix, `+*topic` is for everybody, `@host` ends it. `name` turns the
    short names of the resources into whole ones.
    """
    rule, _, host = acl[1:].partition("@")
    kind, _, resource = rule.partition(":")
    resource, _, operation = resource.rpartition(":")
    everybody, kind = kind.startswith("*"), kind.removeprefix("*")
    prefixed, resource = resource.endswith("^"), resource.removesuffix("^")
    return {
        "resource_type": RESOURCE_TYPES[kind],
        "resource_name": name(resource) if kind != "cluster" else "kafka-cluster",
        "resource_pattern_type": _LITERAL_PATTERN + prefixed,
        "principal": "User:*" if everybody else f"User:{principal}",
        "host": host or "*",
        "operation": OPERATIONS[operation],
        "permission_type": 3 if acl[0] == "+" else 2,
    }


def as_filter(entry: Values) -> Values:
    """The filter of DescribeAcls and DeleteAcls that finds just this entry."""
    return {
        "resource_type_filter": entry["resource_type"],
        "resource_name_filter": entry["resource_name"],
        "pattern_type_filter": entry["resource_pattern_type"],
        "principal_filter": entry["principal"],
        "host_filter": entry["host"],
        "operation": entry["operation"],
        "permission_type": entry["permission_type"],
    }
