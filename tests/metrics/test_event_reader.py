"""Events selected from the log, each in words, and what would have helped."""

import json
from pathlib import Path
from typing import Any

import pytest

from metrics import event_reader
from metrics.event_reader import Wanted, lines_of_files, select
from metrics.event_words import advice, in_words
from tests.support.tables import table

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


@pytest.mark.parametrize(("kind", "event", "words", "helps"), table(__file__, "event_words"))
def test_an_event_in_words(kind: str, event: dict[str, Any], words: str, helps: str | None) -> None:
    assert (in_words({"kind": kind} | event), advice({"kind": kind} | event)) == (words, helps)
