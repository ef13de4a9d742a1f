"""ACLs that would allow the denied operations, as kafka-acls commands to read and paste.

The denied clients chose the names in these commands. So every name is quoted and cannot be taken
for an option. There is no command for a name that kafka-acls would take for another name or for
"all of them", or that a page cannot show as it is.
"""

import shlex
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from metrics.events import MAX_TEXT_CHARS

Row = Mapping[str, Any]

_OPTIONS = {
    "TOPIC": "--topic",
    "GROUP": "--group",
    "CLUSTER": "--cluster",
    "TRANSACTIONAL_ID": "--transactional-id",
    "DELEGATION_TOKEN": "--delegation-token",
    "USER": "--user-principal",
}
"""The kafka-acls option for a resource type, by its name in docs/events.md."""

_WILDCARD = "*"

_TRIMMED = "".join(map(chr, range(0x21)))
"""The characters that Java's `String.trim` removes from both ends: AclCommand applies it to
principals and to all resource names except transactional ids (Kafka 4.1.0)."""


def missing_acls(resources: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one row per principal and resource: the denied operations, and the command.

    If no command is possible, `command` is null and `note` is the reason. `place` ranks a
    principal's resources. `resources` are the rows of
    `metrics.readiness.sessions.denied_resources`.
    """
    rows = []
    for row in resources:
        numbers = {name: row[name] for name in ("denied", "would_be_denied", "place")}
        rows.append(needed_acl(row) | numbers)
    return sorted(rows, key=itemgetter("principal", "resource_type", "resource_name"))


def needed_acl(row: Row) -> dict[str, Any]:
    """Return what a principal needs for a resource, with the command, or the reason for none."""
    principal, operations = row["principal"], row["operations"]
    kind, name = str(row["resource_type"]), str(row["resource_name"])
    note = _obstacle(principal, kind, name)
    if not operations:
        note = "the log does not say which operation"
    return {
        "principal": principal,
        "resource_type": kind,
        "resource_name": name,
        "operations": operations,
        "command": None if note else _command(principal, kind, name, operations),
        "note": note,
    }


def _obstacle(principal: str, kind: str, name: str) -> str | None:
    """Return the reason why no command can allow exactly this; None if one can."""
    texts = (principal, name)
    if kind == "UNKNOWN":
        return "no ACL can allow a version that the proxy cannot judge: the client must be upgraded"
    if kind not in _OPTIONS:
        return "kafka-acls has no option for such a resource"
    if principal.partition(":")[2] == _WILDCARD or name == _WILDCARD:
        return "to kafka-acls * stands for all of them"
    if kind == "TOPIC" and _WILDCARD in name:  # a subscription to `orders-.*`
        return "a pattern is no topic's name"
    if any(len(text) >= MAX_TEXT_CHARS for text in texts):
        return "the name is cut in the log"
    if not all(text.isprintable() for text in texts):
        return "the name has characters that nobody sees"
    if any(text.strip(_TRIMMED) != text for text in texts):
        return "kafka-acls would take the blanks from the name, and allow another one"
    return None


def _command(principal: str, kind: str, name: str, operations: Sequence[str]) -> str:
    option = _OPTIONS[kind]
    resource = option if kind == "CLUSTER" else f"{option}={name}"
    words = [
        "--add",
        f"--allow-principal={principal}",
        *(f"--operation={_camel(each)}" for each in operations),
        resource,
    ]
    return f"kafka-acls --bootstrap-server HOST:PORT {shlex.join(words)}"


def _camel(operation: str) -> str:
    """Return an operation as kafka-acls spells it: `DESCRIBE_CONFIGS` becomes `DescribeConfigs`."""
    return "".join(part.capitalize() for part in operation.split("_"))
