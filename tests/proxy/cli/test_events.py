"""Commands `reauth-proxy events status` and `list`, and `reauth-proxy why`."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from metrics.delivery.selection import Selection, parse_target
from proxy.cli import app
from proxy.delivery.loop import End, opened
from tests.support.delivery import Lines
from tests.support.proxy_process import refusal
from tests.support.settings import mapping

LINE = b'{"kind":"closed"}\n'


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["events", *arguments])


def status_of(*arguments: str) -> dict[str, Any]:
    result = invoke("status", *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    (status,) = json.loads(result.stdout)
    assert isinstance(status, dict)
    return status


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """A closed file and an open one."""
    folder = tmp_path / "events"
    folder.mkdir()
    for name, lines in (("events-a.jsonl", 3), ("events-b.jsonl.open", 2)):
        (folder / name).write_bytes(lines * LINE)
        os.utime(folder / name, (1_780_272_000, 1_780_272_000))
    return folder


def test_what_waits_is_shown_and_nothing_changed(events: Path) -> None:
    before = sorted(events.iterdir())
    options = ["--events", str(events), "--to", "kafka:session-events"]
    assert status_of(*options) == {
        "folder": str(events),
        "target": "kafka:session-events",
        "waiting_bytes": 5 * len(LINE),
        "oldest_waiting_ms": 1_780_272_000_000,
        "delivered_ms": None,
    }
    assert sorted(events.iterdir()) == before


def test_what_was_delivered_is_shown(events: Path) -> None:
    with opened(events, parse_target("kafka:t"), Lines(), Selection(), End(1.0)) as loop:
        assert loop.attempt()
    after = status_of("--events", str(events), "--to", "kafka:t")
    assert (after["waiting_bytes"], after["oldest_waiting_ms"]) == (0, None)
    assert after["delivered_ms"] == round((events / "delivery.json").stat().st_mtime * 1000)
    assert status_of("--events", str(events), "--to", "kafka:other")["delivered_ms"] is None


def test_an_attempt_that_failed_is_no_delivery(events: Path) -> None:
    sink = Lines(fails=True)
    with opened(events, parse_target("kafka:t"), sink, Selection(), End(1.0)) as loop:
        assert not loop.attempt()
    options = ["--events", str(events), "--to", "kafka:t"]
    assert (events / "delivery.json").exists()
    assert status_of(*options)["delivered_ms"] is None
    table = invoke("status", *options).stdout.splitlines()
    assert table[1].endswith("never")
    assert " up to " in table[1]


@pytest.mark.usefixtures("events")
def test_a_configuration_names_folder_and_target(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")  # no wheel for Python 3.15
    config = tmp_path / "proxy.yaml"

    def configure(**events: Any) -> None:
        config.write_text(json.dumps(mapping(events=events)))

    configure(directory="events")
    refused = invoke("status", "--config", str(config))
    assert refused.exit_code == 1
    assert refused.stderr.endswith("events.deliver.to is not set: nothing is delivered\n")
    configure(directory="events", deliver={"to": "kafka:t", "kafka": {"bootstrap.servers": "b:1"}})
    assert status_of("--config", str(config))["waiting_bytes"] == 5 * len(LINE)
    table = invoke("status", "--config", str(config)).stdout.splitlines()
    assert table[0].split() == ["TARGET", "WAITING", "OLDEST", "DELIVERED"]
    assert table[1].split()[:3] == ["kafka:t", "90", "B"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["status", "--events", "x"], "give --config, or --events and --to"),
        (["status", "--to", "kafka:t"], "give --config, or --events and --to"),
        (["status"], "give --config or --events, or set REAUTH_PROXY_CONFIG"),
        (["status", "--events", "x", "--to", "ftp://x"], "--to: must be kafka:TOPIC"),
        (["list", "--since", "soon"], "'soon' is not 90s, 4h or a time"),
        (["list", "--kind", "kill"], "--kind: 'kill' is not one of"),
        (["list", "--events", "kafka:t"], "bootstrap"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REAUTH_PROXY_CONFIG", raising=False)
    result = invoke(*arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert problem in result.stderr
    assert result.stderr.startswith("reauth-proxy")


def event(kind: str, ago_ms: int, **more: Any) -> str:
    given = {"timestamp_ms": time.time_ns() // 1_000_000 - ago_ms, "client_id": "orders"}
    return json.dumps({"kind": kind, "connection_id": f"c-{ago_ms}", **given, **more})


@pytest.fixture
def history(tmp_path: Path) -> Path:
    folder = tmp_path / "events"
    folder.mkdir()
    lines = (
        event("closed", 7_200_000, principal="User:alice", close_reason="idle"),
        event("failed", 4_000, claimed_principal="User:al\x1bice", failure_reason="expired"),
        event("failed", 3_000, claimed_principal="User:al\x1bice", failure_reason="expired"),
        event("closed", 2_000, principal="User:alice", close_reason="client_closed"),
        event("authenticated", 1_000, principal="User:bob"),
        "half a line",
    )
    (folder / "events-a.jsonl.open").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("why", "--client-id", "orders"), ["failed", "closed"]),
        (("why", "--client-id", "orders", "--since", "3h"), ["closed", "failed", "closed"]),
        (("why", "--principal", "alice"), ["closed"]),
        (("events", "list"), ["failed", "failed", "closed", "authenticated"]),
        (("events", "list", "--kind", "authenticated", "--kind", "closed"), ["closed", "auth"]),
        (("events", "list", "--since", "2030-01-01"), []),
    ],
)
def test_events_are_listed(history: Path, command: tuple[str, ...], expected: list[str]) -> None:
    options = ("--events", str(history))
    result = CliRunner().invoke(app, [*command, *options, "-o", "json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [one["kind"][:4] for one in found] == [kind[:4] for kind in expected]
    table = CliRunner().invoke(app, [*command, *options])
    assert "\x1b" not in table.stdout
    told = "would help: another token: reauth-proxy token explain" in table.stderr
    assert told is ("failed" in expected)
    joined = "login failed: expired, 2 times since 20" in table.stdout
    assert joined is (expected.count("failed") == 1)
    assert ("1 lines are not events of this schema" in table.stderr) is bool(expected)


@pytest.mark.parametrize(
    ("command", "status", "problem"),
    [
        ("why", 2, "give --client-id or --principal"),
        ("why --client-id x", 2, "give --events or --config"),
        ("why --client-id x --events nowhere", 2, "nowhere cannot be read"),
        ("events status --events /no/such --to kafka:t", 1, "/no/such cannot be read: No such"),
    ],
)
def test_what_cannot_be_read_is_told(
    command: str, status: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REAUTH_PROXY_CONFIG", raising=False)
    assert problem in refusal(*command.split(), status=status)
