"""Denials → the ACLs that would allow what was denied, as kafka-acls commands to read and paste.

The names in them were chosen by whoever was denied. So every one is quoted, none can be taken for
an option, and none that kafka-acls would take for "all of them" becomes a command.
"""

import shlex
from collections.abc import Mapping, Sequence
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
"""kafka-acls' option for a resource type, as docs/events.md names it."""

_WILDCARD = "*"


def missing_acls(denials: Sequence[Row]) -> list[dict[str, Any]]:
    """Give one row per principal and resource: what was denied, and the command, or null."""
    groups: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in denials:
        key = (row["principal"], str(row["resource_type"]), str(row["resource_name"]))
        group = groups.setdefault(key, {"operations": set(), "denied": 0, "would_be_denied": 0})
        group["operations"].add(str(row["operation"]))
        group["denied"] += row["denied"]
        group["would_be_denied"] += row["would_be_denied"]
    rows = []
    for (principal, kind, name), group in sorted(groups.items()):
        operations = sorted(group["operations"])
        rows.append(
            {"principal": principal, "resource_type": kind, "resource_name": name}
            | group
            | {"operations": operations, "command": _command(principal, kind, name, operations)}
        )
    return rows


def _command(principal: str, kind: str, name: str, operations: Sequence[str]) -> str | None:
    """Null: it would allow more than was asked for, or something else."""
    everybody = principal.partition(":")[2] == _WILDCARD
    cut = any(len(text) >= MAX_TEXT_CHARS for text in (principal, name))
    several = name == _WILDCARD or (kind == "TOPIC" and _WILDCARD in name)  # `orders-*`: no name
    if kind not in _OPTIONS or several or everybody or cut:
        return None
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
    """`DESCRIBE_CONFIGS` is `DescribeConfigs` to kafka-acls."""
    return "".join(part.capitalize() for part in operation.split("_"))
