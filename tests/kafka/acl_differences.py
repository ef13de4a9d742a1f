"""Where the proxy means to authorize or administer otherwise than Kafka, and what shows it.

Each row is the first cell of a row of docs/compatibility.md, which says why.
"""

from collections.abc import Mapping, Sequence

#: Who may describe `one`, but not all that begins with `on`; and who not even `one`.
_MAY_DESCRIBE_ONE = (
    "one",
    "only-read",
    "groups-and-read",
    "groups-and-write",
    "groups-and-describe",
    "groups-and-delete",
    "here",
    "everybody",
)
_MAY_NOT_DESCRIBE_ONE = ("deny-all", "deny-describe", "prefixed-deny", "deny-everybody")

#: By difference: parts of the names of the cases that show it.
DELIBERATE: Mapping[str, Sequence[str]] = {
    "CreateAcls with ANY in one of several entries": tuple(
        f"{profile}: 30 CreateAcls, one of two odd: {{'{field}': 1}}"
        for profile in ("all", "cluster-alter")
        for field in ("resource_type", "operation", "permission_type")
    ),
    "ConsumerGroupHeartbeat with a regular expression": (
        "with a regex: .*",  # a profile's topics are denied to everybody
        *(
            f"{profile}: 68 ConsumerGroupHeartbeat of {group} with a regex: {regex} v"
            for group in ("one.cg", "two.cg", "missing")
            for regex, profiles in (
                ("on.*", (*_MAY_DESCRIBE_ONE, *_MAY_NOT_DESCRIBE_ONE)),
                ("one", _MAY_NOT_DESCRIBE_ONE),
            )
            for profile in profiles
        ),
    ),
    "ShareFetch of an unknown topic id": ("78 ShareFetch of an unknown id",),
    "AlterShareGroupOffsets of a denied topic": ("91 AlterShareGroupOffsets of ",),
    "StreamsGroupHeartbeat with internal topics": (
        "prefixed-read: 88 StreamsGroupHeartbeat of one.st with topic one",
        "prefixed-read: 89 StreamsGroupDescribe",  # of the group that was not made
    ),
    "AddPartitionsToTxn with a denied and a missing topic": (
        "24 AddPartitionsToTxn of one: one two missing",
        "24 AddPartitionsToTxn of two: one two missing",
    ),
}


def explained_by(case: str) -> str | None:
    """The deliberate difference that a case shows."""
    for difference, parts in DELIBERATE.items():
        if any(part in case for part in parts):
            return difference
    return None
