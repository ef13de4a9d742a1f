"""Command `reauth-proxy events status`."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from proxy.cli import app

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
def shared(tmp_path: Path) -> str:
    (tmp_path / "shared").mkdir()
    return (tmp_path / "shared").as_uri()


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """A closed file and an open one."""
    folder = tmp_path / "events"
    folder.mkdir()
    for name, lines in (("events-a.jsonl", 3), ("events-b.jsonl.open", 2)):
        (folder / name).write_bytes(lines * LINE)
        os.utime(folder / name, (1_780_272_000, 1_780_272_000))
    return folder


def test_what_waits_is_shown_and_nothing_changed(events: Path, shared: str) -> None:
    before = sorted(events.iterdir())
    options = ["--events", str(events), "--to", shared]
    assert status_of(*options) == {
        "folder": str(events),
        "target": shared,
        "waiting_bytes": 3 * len(LINE),
        "oldest_waiting_ms": 1_780_272_000_000,
        "open_bytes": 2 * len(LINE),
        "delivered_ms": None,
    }
    topic = status_of("--events", str(events), "--to", "kafka:session-events")
    assert (topic["waiting_bytes"], topic["open_bytes"]) == (5 * len(LINE), 0)
    assert sorted(events.iterdir()) == before
    assert invoke("deliver", *options).exit_code == 0
    after = status_of(*options)
    assert (after["waiting_bytes"], after["oldest_waiting_ms"], after["open_bytes"]) == (0, None, 0)
    assert after["delivered_ms"] == round((events / "delivery.json").stat().st_mtime * 1000)
    assert status_of("--events", str(events), "--to", "kafka:other")["delivered_ms"] is None


def test_an_attempt_that_failed_is_no_delivery(events: Path, tmp_path: Path) -> None:
    options = ["--events", str(events), "--to", (tmp_path / "missing").as_uri()]
    assert invoke("deliver", *options).exit_code == 1
    assert (events / "delivery.json").exists()
    assert status_of(*options)["delivered_ms"] is None
    table = invoke("status", *options).stdout.splitlines()
    assert table[1].endswith("never")
    assert " up to " in table[1]


@pytest.mark.usefixtures("events")
def test_a_configuration_names_folder_and_target(shared: str, tmp_path: Path) -> None:
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
    configure(directory="events", deliver={"to": shared})
    assert status_of("--config", str(config))["waiting_bytes"] == 3 * len(LINE)
    table = invoke("status", "--config", str(config)).stdout.splitlines()
    assert table[0].split() == ["TARGET", "WAITING", "OLDEST", "DELIVERED"]
    assert table[1].split()[:3] == [shared, "54", "B"]


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
