"""Commands `reauth-proxy audit`."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from metrics.event_log import EventLog, EventLogSettings
from metrics.history import Timeline
from metrics.integrity import numbered
from metrics.usage import UsageLog, Use
from tests.support.metrics import event, to_json_line
from tests.support.proxy_process import refusal, rows, run


def verify(*arguments: object) -> Result:
    return run("audit", "verify", *arguments)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log = EventLog(EventLogSettings(directory=tmp_path, proxy_id="p", worker=0, chained=True))
    lines = [numbered(to_json_line(event(principal="User:alice")), number) for number in range(4)]
    log.append(lines, 0.0, 1_800_000_000.0)
    log.close(0.0)
    return tmp_path


def test_an_unchanged_log_is_confirmed(folder: Path) -> None:
    result = verify(folder)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "reauth-proxy: 4 records in 1 files, 0 problems\n"


def test_a_changed_record_is_named(folder: Path) -> None:
    (path,) = folder.iterdir()
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace("User:alice", "User:mallory")
    path.write_text("".join(lines))
    for given in (folder, path):
        result = verify(given)
        assert result.exit_code == 1
        assert result.stdout.splitlines()[1].split()[:2] == [path.name, "2"]
        assert "4 records in 1 files, 1 problems" in result.stderr
    document = json.loads(verify(folder, "-o", "json").stdout)
    assert [(one["file"], one["line"]) for one in document["findings"]] == [(path.name, 2)]


def test_a_log_without_a_chain_says_what_is_not_seen(tmp_path: Path) -> None:
    (tmp_path / "events-a.jsonl").write_text(to_json_line(event()) + "\n")
    result = verify(tmp_path)
    assert result.exit_code == 0
    assert result.stderr == (
        "reauth-proxy: 1 records in 1 files, 0 problems; 1 files have no chain: a changed record is"
        " not seen; 1 have no numbers: a removed record is not seen\n"
    )


@pytest.mark.parametrize("path", ["none", "."])
def test_a_path_without_events_is_an_error(tmp_path: Path, path: str) -> None:
    assert "has no event files" in refusal("audit", "verify", tmp_path / path)


ALICE = Use("User:alice", "app", "10.0.0.1", "READ", "TOPIC", "orders")
BOB = Use("User:bob", "", "10.0.0.2", "WRITE", "TOPIC", "orders")
GROUP = ALICE._replace(resource_type="GROUP", name="orders")


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """Two intervals of one worker, and other lines."""
    usage = UsageLog("run-1", "p", 0, Timeline(wall=1_800_000_000.0, now=0.0))
    lines = [to_json_line(event(client_id='"kind":"used"'))]
    for at in (1.0, 400.0):
        for use in (ALICE, BOB, GROUP):
            usage.add(use, 2, 100, at, at + len(use.principal))
        lines += usage.lines(at)
    lines += ['{"kind":"used","schema_version":9}', '{"kind":"used", cut', '["used"]']
    (tmp_path / "events-a.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def asked(*arguments: object) -> list[tuple[str, str, int]]:
    found = rows(run("audit", *arguments, "-o", "json"))
    return [(one["principal"], one["resource_type"], one["count"]) for one in found]


def test_who_used_a_topic(used: Path) -> None:
    assert asked("who", "orders", "--events", used) == [
        ("User:alice", "TOPIC", 4),
        ("User:bob", "TOPIC", 4),
    ]
    options = ("--events", used, "--resource-type", "group")
    assert asked("who", "orders", *options) == [("User:alice", "GROUP", 4)]
    assert asked("who", "order", "--events", used) == []


def test_what_a_principal_used(used: Path) -> None:
    assert asked("what", "alice", "--events", used) == [
        ("User:alice", "GROUP", 4),
        ("User:alice", "TOPIC", 4),
    ]
    result = run("audit", "what", "User:bob", "--events", used)
    assert result.stdout.splitlines()[1].split()[:4] == ["User:bob", "WRITE", "TOPIC", "orders"]
    assert result.stderr == "reauth-proxy: 3 records cannot be read, or are of a newer version\n"
