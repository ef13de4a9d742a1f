"""Records of use, and the ACLs compared with them."""

import json
from pathlib import Path
from typing import Any

from metrics.event_schema import SessionEvent
from metrics.events import EventKind
from tests.support.metrics import EPOCH_MS
from tests.support.readiness import USES, Answers, answers, later, login, use

TOPIC, GROUP, CLUSTER = "TOPIC", "GROUP", "CLUSTER"


def acl(kind: str, name: str, operation: str, *, who: str = "User:alice", **more: str) -> Any:
    return {
        "resource_type": kind,
        "pattern_type": "LITERAL",
        "name": name,
        "principal": who,
        "host": "*",
        "operation": operation,
        "permission": "ALLOW",
    } | more


def compared(tmp_path: Path, events: list[SessionEvent], *acls: Any, users: Any = ()) -> Answers:
    (tmp_path / "acls.json").write_text(json.dumps(acls))
    (tmp_path / "users.json").write_text(json.dumps([{"user": one} for one in users]))
    return answers(events, acls=tmp_path / "acls.json", users=tmp_path / "users.json")


def test_uses_are_added_up_per_day_and_client_each_once() -> None:
    found = answers([login(), *USES])
    rows = found.table("used_by_day", "day, requests, client_id")
    assert [(one["principal"], one["client_id"], one["requests"]) for one in rows] == [
        (None, "app", 10),
        ("User:alice", "other", 10),
        ("User:alice", "app", 15),
        ("User:alice", "app", 10),
    ]
    assert rows[2]["last_ms"] == EPOCH_MS
    assert found.lines["lines"] == 1


CREATE_ID = ("IDEMPOTENT_WRITE", CLUSTER, "kafka-cluster")
NEEDED: list[tuple[list[tuple[str, str, str]], list[Any]]] = [
    ([("READ", TOPIC, "a"), ("DESCRIBE", TOPIC, "a")], [(TOPIC, "a", ["READ"])]),
    (
        [("DESCRIBE", TOPIC, "a"), ("READ", TOPIC, "b")],
        [(TOPIC, "a", ["DESCRIBE"]), (TOPIC, "b", ["READ"])],
    ),
    (
        [("ALTER_CONFIGS", TOPIC, "a"), ("DESCRIBE_CONFIGS", TOPIC, "a"), ("READ", TOPIC, "a")],
        [(TOPIC, "a", ["ALTER_CONFIGS", "READ"])],
    ),
    ([("WRITE", TOPIC, "*"), ("WRITE", TOPIC, "a")], [(TOPIC, "a", ["WRITE"])]),
    ([CREATE_ID, ("WRITE", TOPIC, "a")], [(TOPIC, "a", ["WRITE"])]),
    ([CREATE_ID], [(CLUSTER, "kafka-cluster", ["IDEMPOTENT_WRITE"])]),
]
"""Uses of a principal, and the smallest set of ACLs that allows them."""


def test_the_smallest_set_of_acls() -> None:
    uses = [(number, one) for number, (given, _) in enumerate(NEEDED) for one in given]
    log = [use(*one, principal=f"User:{n}", sequence=at) for at, (n, one) in enumerate(uses)]
    rows = answers(log).table("needed_acls", "principal, resource_type, resource_name")
    found = [(one["resource_type"], one["resource_name"], one["operations"]) for one in rows]
    assert found == [one for _, needed in NEEDED for one in needed]


def test_acls_that_are_used_and_those_that_are_not(tmp_path: Path) -> None:
    rules = [
        (acl(TOPIC, "orders", "READ"), True, False),
        (acl(TOPIC, "orders", "DESCRIBE"), False, False),
        (acl(TOPIC, "orders", "ALL"), True, True),
        (acl(TOPIC, "ord", "READ", pattern_type="PREFIXED"), True, True),
        (acl(TOPIC, "ord", "READ"), False, False),
        (acl(TOPIC, "*", "READ"), True, True),
        (acl(TOPIC, "*", "READ", pattern_type="PREFIXED"), False, False),
        (acl(GROUP, "orders", "READ"), False, False),
        (acl(TOPIC, "orders", "READ", who="User:*"), True, False),
        (acl(TOPIC, "orders", "READ", who="User:bob"), False, False),
        (acl(TOPIC, "orders", "READ", who="Group:a"), True, False),
        (acl(TOPIC, "orders", "READ", who="Group:b"), False, False),
        (acl(TOPIC, "orders", "READ", host="10.0.0.7"), True, False),
        (acl(TOPIC, "orders", "READ", host="10.0.0.8"), False, False),
        (acl(TOPIC, "orders", "READ", host="10.0.0.0/8"), True, False),
    ]
    log = [login(groups=("Group:a",)), use("READ", TOPIC, "orders")]
    rows = compared(tmp_path, log, *(rule for rule, *_ in rules)).table("acl_use")
    fields = ("resource_type", "pattern_type", "name", "principal", "host", "operation")
    found = {tuple(one[field] for field in fields): one for one in rows}
    assert len(found) == len(rules)
    for rule, used, wider in rules:
        one = found[tuple(rule[field] for field in fields)]
        assert (one["requests"], one["is_wider"]) == (10 if used else 0, wider), rule
        assert one["names"] == (["orders"] if used else [])
        assert one["last_ms"] == (EPOCH_MS if used else None)


VERDICTS = {
    "User:none": ([], "denied"),
    "User:allowed": (["ALLOW READ"], "ready"),
    "User:both": (["ALLOW READ", "DENY READ"], "denied"),
    "User:other": (["ALLOW READ", "DENY WRITE"], "ready"),
}
"""Principals with the ACLs that they have now, and the verdict."""


def test_a_denial_that_an_acl_allows_now_does_not_count(tmp_path: Path) -> None:
    resource = {"operation": "READ", "resource_type": TOPIC, "resource_name": "a"}
    log, acls = [use("READ", TOPIC, "b", principal="User:bob")], []
    for number, (who, (rules, _)) in enumerate(VERDICTS.items(), start=2):
        session = {"principal": who, "connection_id": f"c-{number}"}
        log += [
            login(**session),
            later(EventKind.WOULD_BE_DENIED, 1, denials=3, **resource, **session),
            use("READ", TOPIC, "a", principal=who, sequence=number),
        ]
        for permission, operation in map(str.split, rules):
            acls.append(acl(TOPIC, "a", operation, who=who, permission=permission))
    rows = compared(tmp_path, log, *acls).table("authorizer_verdicts")
    assert {one["principal"]: (one["verdict"], one["would_be_denied"]) for one in rows} == {
        "User:bob": ("ready", 0)
    } | {who: (verdict, 3 * (verdict == "denied")) for who, (_, verdict) in VERDICTS.items()}


def test_principals_that_were_never_seen(tmp_path: Path) -> None:
    acls = [acl(TOPIC, "a", "READ", who=f"User:{one}") for one in ("alice", "bob", "carol", "*")]
    given = [login(), use("READ", TOPIC, "a", principal="User:bob")]
    rows = compared(tmp_path, given, *acls, users=("alice", "dave")).table("unseen_principals")
    assert [(one["principal"], one["has_acl"], one["has_credential"]) for one in rows] == [
        ("User:carol", True, False),
        ("User:dave", False, True),
    ]
