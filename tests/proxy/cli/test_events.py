"""Command `reauth-proxy events status`."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from metrics.delivery.selection import Selection
from metrics.delivery.target import parse_target
from proxy.cli import app
from proxy.delivery.loop import End, opened
from tests.support.delivery import Lines

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
    config = tmp_path / "proxy.yaml"
    listener: dict[str, Any] = {"name": "a", "address": "127.0.0.1:0", "routing": "sidecar"}
    listener |= {"sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}
    upstream = {"bootstrap.servers": "127.0.0.1:9092"}

    def configure(**events: Any) -> None:
        found = {"upstream": upstream, "listeners": [listener], "events": events}
        config.write_text(json.dumps(found))

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
    ("options", "problem"),
    [
        (["--events", "x"], "give --config, or --events and --to"),
        (["--to", "kafka:t"], "give --config, or --events and --to"),
        ([], "give --config or --events, or set REAUTH_PROXY_CONFIG"),
        (["--events", "x", "--to", "ftp://x"], "--to: must be kafka:TOPIC"),
        (["--events", "/no/such", "--to", "kafka:t"], "/no/such cannot be read: No such file"),
    ],
)
def test_mistakes_are_one_line(options: list[str], problem: str) -> None:
    result = invoke("status", *options)
    assert result.exit_code in (1, 2)
    assert problem in result.stderr
    assert result.stderr.startswith("reauth-proxy")
