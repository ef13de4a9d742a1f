"""Command `reauth-proxy audit verify`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from metrics.event_log import EventLog, EventLogSettings
from metrics.integrity import numbered
from proxy.cli import app
from tests.support.metrics import event, to_json_line


def verify(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["audit", "verify", *map(str, arguments)])


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


@pytest.mark.parametrize(
    ("path", "problem"),
    [("none", "has no event files"), (".", "has no event files")],
)
def test_a_path_without_events_is_an_error(tmp_path: Path, path: str, problem: str) -> None:
    result = verify(tmp_path / path)
    assert result.exit_code == 2
    assert problem in result.stderr
