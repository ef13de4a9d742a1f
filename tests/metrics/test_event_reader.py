"""Events selected from the log, each in words, and what would have helped."""

import json
from pathlib import Path
from typing import Any

import pytest

from metrics import event_reader
from metrics.event_reader import Wanted, lines_of_files, select
from metrics.event_words import advice, in_words

T = 1_780_000_000_000


def line(kind: str, **more: Any) -> bytes:
    given = {"timestamp_ms": T, "connection_id": "c-1", "sequence": 0, "client_id": "orders"}
    return json.dumps({"kind": kind, **given, **more}).encode() + b"\n"


LOG = [
    line("authenticated", principal="User:alice", sequence=1),
    line("failed", claimed_principal="User:alice", connection_id="c-2", failure_reason="expired"),
    line("closed", close_reason="authentication_failed", connection_id="c-2", sequence=1),
    line("summary", principal="User:alice", sequence=2),
    line("used", principal="User:alice", connection_id="", sequence=3),
    line("closed", principal="User:bob", client_id="b", close_reason="idle", connection_id="c-3"),
    line("closed", principal="User:alice", close_reason="drained", timestamp_ms=T - 1, sequence=9),
]


@pytest.mark.parametrize(
    ("wanted", "kinds"),
    [
        ({}, "closed authenticated failed closed closed"),
        ({"principal": "User:alice"}, "closed authenticated failed"),
        ({"client_id": "b"}, "closed"),
        ({"kinds": frozenset({"summary", "used"})}, "summary used"),
        ({"since_ms": T}, "authenticated failed closed closed"),
        ({"endings": True}, "closed failed closed"),
        ({"endings": True, "client_id": "orders"}, "closed failed"),
    ],
)
def test_events_are_selected_in_the_order_of_their_times(
    wanted: dict[str, Any], kinds: str
) -> None:
    found = select([*LOG, *LOG], Wanted(**wanted))
    assert [event["kind"] for event in found.events] == kinds.split()
    assert (found.more, found.unread) == (0, 0)


def test_only_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "MAX_EVENTS", 3)
    found = select((line("failed", sequence=n, timestamp_ms=T + n) for n in range(9)), Wanted())
    assert [event["sequence"] for event in found.events] == [6, 7, 8]
    assert found.more == 6


@pytest.mark.parametrize(
    "bad",
    [
        b"\n",
        b"[" * 100_000,
        b"[]\n",
        b'{"kind":"closed"}\n',
        line("closed", timestamp_ms="1"),
        line("closed", timestamp_ms=True),
        line("closed", close_reason=["idle"]),
        line("expired-killed", since_auth_ms=1.5),
        line("closed", principal={}),
        b"\xff\xfe\n",
    ],
)
def test_other_lines_are_counted(bad: bytes) -> None:
    assert select([bad, LOG[0]], Wanted()).unread == 1


def test_files_before_the_time_and_links_are_not_read(tmp_path: Path) -> None:
    for name in ("events-a.jsonl", "events-b.jsonl.open", "other.txt"):
        (tmp_path / name).write_bytes(LOG[0])
    (tmp_path / "events-c.jsonl").symlink_to(tmp_path / "events-a.jsonl")
    assert [*lines_of_files(tmp_path, None)] == 2 * LOG[:1]
    assert [*lines_of_files(tmp_path, 2**50)] == []


KILLED = {
    "principal": "User:alice",
    "enforcement": "enforce",
    "session_lifetime_ms": 60_000,
    "since_auth_ms": 63_000,
}
OVERRIDE = 'reauth.overrides: [{principal: "User:alice", reauth.enforcement: probe}]'
TOKEN = "reauth.enforce.token.expiry: false"


@pytest.mark.parametrize(
    ("kind", "event", "words", "helps"),
    [
        ("expired-killed", KILLED, "closed: session of 1 min used 3 s after its end", OVERRIDE),
        (
            "expired-killed",
            KILLED | {"credential_lifetime_ms": 60_000},
            "closed: session of 1 min used 3 s after its end",
            f"{OVERRIDE}, and {TOKEN}",
        ),
        (
            "expired-killed",
            KILLED | {"enforcement": "observe"},
            "closed: session of 1 min used 3 s after its end",
            TOKEN,
        ),
        (
            "expired-killed",
            KILLED | {"throttled_ms": 90_000, "throttled_by": "producer_byte_rate of user=alice"},
            "closed: session of 1 min used 3 s after its end, throttled for 1 min 30 s at"
            " producer_byte_rate of user=alice",
            "a higher producer_byte_rate of user=alice: the client could not re-authenticate while"
            " throttled",
        ),
        (
            "would-be-killed",
            KILLED,
            "enforce would close it: session of 1 min used 3 s after its end",
            None,
        ),
        ("failed", {"failure_reason": "timeout"}, "login failed: timeout", None),
        (
            "failed",
            {"failure_reason": "refused_by_broker"},
            "login failed: refused by broker",
            "credentials that the broker accepts: its log has the reason",
        ),
        (
            "failed",
            {"failure_reason": "wrong_audience", "authentications": 2},
            "re-authentication failed: wrong audience",
            "another token: reauth-proxy token explain names the claim",
        ),
        (
            "closed",
            {"close_reason": "drained"},
            "closed: the proxy was stopped or replaced, or an operator drained it",
            None,
        ),
        ("closed", {"close_reason": "broker_fault"}, "closed: broker fault", None),
        ("closed", {}, "closed: unknown", None),
        ("denied", {"operation": "READ", "denials": 3}, "denied: READ, 3 times", None),
        ("used", {"operation": "WRITE", "requests": 7}, "used: WRITE, 7 times", None),
        (
            "administered",
            {"resource_name": "orders", "error_code": 36},
            "administered orders: error 36",
            None,
        ),
        ("administered", {}, "administered the request: unknown outcome", None),
        ("authenticated", {"session_lifetime_ms": 0}, "logged in without an end", None),
        ("reauthenticated", KILLED, "re-authenticated after 1 min 3 s, for 1 min", None),
        (
            "demoted",
            {"decided_by": "auto", "decision_reason": "sessions killed"},
            "probed by auto: sessions killed",
            None,
        ),
        ("promoted", {"decided_by": "root", "decision_reason": "x"}, "enforced by root: x", None),
        ("of-tomorrow", {}, "of-tomorrow", None),
    ],
)
def test_an_event_in_words(kind: str, event: dict[str, Any], words: str, helps: str | None) -> None:
    assert (in_words({"kind": kind} | event), advice({"kind": kind} | event)) == (words, helps)
