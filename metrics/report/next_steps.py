"""Recommended next steps: principals to enforce or to probe, software to upgrade, ACLs to add.

Pure functions over collected rows: mappings with the columns of the tables.

The denied clients chose the names in the kafka-acls commands, which are to be read and pasted. So
every name is quoted and cannot be taken for an option. There is no command for a name that
kafka-acls would take for another name or for "all of them", or that a page cannot show as it is.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from metrics.events import MAX_TEXT_CHARS
from metrics.report.libraries import LIBRARIES, is_older, library_of
from metrics.report.verdicts import Verdict
from metrics.rollout import Stage

Row = Mapping[str, Any]
_WAVES = (0, 1, 11, 111, 1_111)
"""Places at which a wave of principals begins."""
_MAY_BE_ENFORCED = (Stage.READY, Stage.ENFORCED)
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


def overrides_block(names: Sequence[str], *, of: int) -> str:
    """Write `reauth.overrides` for principals that can be enforced, to paste in a listener, as a
    whole or wave by wave.

    Names are quoted ASCII, so no principal's name can change the meaning of the block. A name that
    was truncated in the log would match no principal, and is left out. `of`: the number of
    principals that can be enforced in total.
    """
    whole = [name for name in names if len(name) < MAX_TEXT_CHARS]
    lines = []
    for number, name in enumerate(whole):
        if number in _WAVES:
            lines.append(f"  # wave {_WAVES.index(number) + 1}\n")
        lines.append(_override(name, "enforce"))
    if len(whole) < len(names):
        lines.append(
            f"  # left out, as their names are cut in the log: {len(names) - len(whole)}\n"
        )
    if len(names) < of:
        lines.append(f"  # left out, but in the tables: {of - len(names)}\n")
    return "reauth.overrides:\n" + "".join(lines) if whole else ""


def _override(name: str, mode: str) -> str:
    return f"  - principal: {_quoted(name)}\n    reauth.enforcement: {mode}\n"


def exceptions(principals: Sequence[Row], *, of: int) -> str:
    """Write the enforcement of all principals, except those that are not ready.

    Empty if one of these cannot be named, and would be enforced: its name is cut in the log, or it
    is beyond `principals`, which should be `of` in total.
    """
    names = [row["principal"] for row in principals if row["stage"] not in _MAY_BE_ENFORCED]
    if not of or len(principals) < of or any(len(name) >= MAX_TEXT_CHARS for name in names):
        return ""
    lines = [_override(name, "probe") for name in names]
    return "".join(
        ["reauth.enforcement: enforce\n", *(["reauth.overrides:\n"] * bool(lines)), *lines]
    )


def _quoted(name: str) -> str:
    """Write a YAML string, in which JSON's surrogate pairs would be two characters each."""
    written = (
        json.dumps(each)[1:-1] if ord(each) <= 0xFFFF else f"\\U{ord(each):08x}" for each in name
    )
    return f'"{"".join(written)}"'


def upgrades(software: Sequence[Row]) -> list[dict[str, Any]]:
    """Return advice for each library and version whose clients break.

    `software` are the rows of `metrics.readiness.sessions.breaking_software`.
    """
    return [
        {
            "software": row["client_software_name"],
            "version": row["client_software_version"],
            "clients": row["clients"],
            "principals": row["principals"],
            "principal_count": row["principal_count"],
        }
        | _advice(row["client_software_name"], row["client_software_version"])
        for row in software
    ]


def _advice(software: str | None, version: str | None) -> dict[str, Any]:
    library = library_of(software)
    if library is None:
        advice = "find out which library this is, by its client id and host, and look it up below"
        return {"library": None, "upgrade_to": None, "advice": advice}
    if library.since is None:
        advice = library.note
    elif is_older(version, library.since) is False:
        advice = (
            f"this version should re-authenticate (since {library.since}): look at how the "
            "client refreshes its credentials, and at its log"
        )
    else:
        advice = f"upgrade to {library.since} or later; {library.note}"
    return {"library": library.name, "upgrade_to": library.since, "advice": advice}


def library_table() -> list[dict[str, Any]]:
    """Return the table of libraries for the report."""
    return [
        {"library": each.name, "since": each.since, "note": each.note, "source": each.source}
        for each in LIBRARIES
    ]


def to_probe(principals: Sequence[Row]) -> list[str]:
    """Return the principals whose worst clients are unproven; `probe` can prove them."""
    return [row["principal"] for row in principals if row["verdict"] == Verdict.UNPROVEN]


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
        *(f"--operation={each.title().replace('_', '')}" for each in operations),
        resource,
    ]
    return f"kafka-acls --bootstrap-server HOST:PORT {shlex.join(words)}"
