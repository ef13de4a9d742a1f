"""Delivery to a shared folder, and the command that does it."""

import errno
import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from benchmarks.events.generate import generate
from metrics.delivery.deliverer import DeliveryFailed, Part
from metrics.delivery.position import lock
from metrics.delivery.selection import Selection
from metrics.delivery.spool import Spool, SpoolFile
from metrics.delivery.target import parse_target
from metrics.event_log import EventLog, EventLogSettings
from proxy.cli import app
from proxy.delivery.folder import FolderSink
from proxy.delivery.loop import End, opened
from tests.support.delivery import SIZE, report_of
from tests.support.proxy_process import eventually

NAME = "events-pod-0-20260601T120000Z-0.jsonl"


def deliver(folder: Path, to: str, *more: str) -> Result:
    return CliRunner().invoke(
        app, ["events", "deliver", "--events", str(folder), "--to", to, *more]
    )


def lines_below(folder: Path) -> list[bytes]:
    paths = sorted(folder.rglob("*.jsonl.gz"))
    return [line for path in paths for line in gzip.decompress(path.read_bytes()).splitlines()]


def part(name: str = NAME, begin: int = 0, lines: tuple[bytes, ...] = (b"one", b"two")) -> Part:
    file = SpoolFile(
        name=name, inode=1, size=8, modified=0.0, closed=True, proxy="pod", begun=1_780_315_200.0
    )
    return Part(file=file, begin=begin, lines=list(lines))


def test_a_second_delivery_of_the_same_changes_nothing(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path)
    contents = []
    for _ in range(2):
        assert sink.deliver(part()) == 0
        (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
        contents.append(path.read_bytes())
    assert path.parent == tmp_path / "date=2026-06-01" / "proxy=pod"
    assert contents[0] == contents[1]


def test_pods_of_the_same_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """As those of a StatefulSet in two namespaces."""
    sink = FolderSink(tmp_path)
    sink.deliver(part())
    sink.deliver(part(lines=(b"other",)))
    assert sorted(lines_below(tmp_path)) == [b"one", b"other", b"two"]


@pytest.mark.parametrize("linked", ["date=2026-06-01", "date=2026-06-01/proxy=pod"])
def test_links_below_the_folder_are_not_followed(tmp_path: Path, linked: str) -> None:
    """Who can write into the shared folder must not have the proxy write elsewhere."""
    elsewhere, shared = tmp_path / "elsewhere", tmp_path / "shared"
    elsewhere.mkdir()
    (shared / linked).parent.mkdir(parents=True)
    (shared / linked).symlink_to(elsewhere)
    with pytest.raises(DeliveryFailed):
        FolderSink(shared).deliver(part())
    assert list(elsewhere.iterdir()) == []


def test_a_folder_that_is_not_there_is_not_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Or the events would fill the container when a volume is not mounted."""
    (tmp_path / NAME).write_bytes(b"one\n")
    result = deliver(tmp_path, f"file://{tmp_path}/missing")
    assert result.exit_code == 1
    assert "does not take them: No such file or directory" in caplog.text
    assert not (tmp_path / "missing").exists()


def test_a_full_disk_costs_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither that of the shared folder nor that of the position."""
    events, shared = tmp_path / "events", tmp_path / "shared"
    events.mkdir()
    shared.mkdir()
    (events / NAME).write_bytes(b"one\ntwo\n")

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert deliver(events, shared.as_uri()).exit_code == 1
    assert "does not take them: No space left on device" in caplog.text
    assert "position of the delivery cannot be written: No space left on device" in caplog.text
    assert lines_below(shared) == []
    for said in ("2 events delivered", "0 events delivered"):
        assert deliver(events, shared.as_uri()).output.splitlines()[0] == said
    assert lines_below(shared) == [b"one", b"two"]


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    events, shared = tmp_path / "events", tmp_path / "shared"
    shared.mkdir()
    log = EventLog(EventLogSettings(directory=events, proxy_id="pod", worker=0))
    for lines in (["one", "two"], ["three"]):
        log.append(lines, 0.0, 1_780_315_200.0)
        log.close(0.0)
        result = deliver(events, f"file://{shared}")
        assert result.output.splitlines()[0] == f"{len(lines)} events delivered"
    log.append(["open"], 0.0, 1_780_315_200.0)
    result = deliver(events, f"file://{shared}")
    assert result.output.startswith("0 events delivered")
    assert result.exit_code == 1, "some are left"
    assert lines_below(shared) == [b"one", b"two", b"three"]


def test_the_second_deliverer_of_a_folder_leaves(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    held = lock(spool.fd)
    result = deliver(tmp_path, f"file://{tmp_path}")
    assert result.exit_code == 1
    assert "another process delivers from it" in result.output
    os.close(held)
    spool.close()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["https://a"], "--to: must be kafka:TOPIC"),
        (["file:///a", "--kinds", "none"], "--kinds: must be all or summary"),
        (["file:///a", "--hide", "kind"], "--hide: must be of client_host"),
        (["kafka:a"], "give --bootstrap-server or --command-config"),
        (["kafka:a", "--command-config", "/missing"], "cannot be read"),
    ],
)
def test_mistakes_in_the_options(tmp_path: Path, arguments: list[str], problem: str) -> None:
    result = deliver(tmp_path, *arguments)
    assert result.exit_code == 2
    assert problem in result.output


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    result = deliver(tmp_path / "missing", "file:///a")
    assert result.exit_code == 1
    assert "cannot be read: No such file or directory" in result.output


def test_what_comes_later_is_delivered_until_the_end(tmp_path: Path) -> None:
    """At SIGTERM, what died meanwhile is delivered, too."""
    events, shared = tmp_path / "events", tmp_path / "shared"
    for folder in (events, shared):
        folder.mkdir()
    command = [sys.executable, "-m", "proxy", "events", "deliver", "--follow"]
    command += ["--events", str(events), "--to", f"file://{shared}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        (events / NAME).write_bytes(b"one\n")
        eventually(lambda: lines_below(shared) == [b"one"], "it is delivered")
        (events / f"{NAME.replace('-0.', '-1.')}.open").write_bytes(b"two\nhalf")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert lines_below(shared) == [b"one", b"two"]


def test_the_end_does_not_wait_for_files_that_others_write(tmp_path: Path) -> None:
    """As a proxy that took over does in the same folder."""
    events, shared = tmp_path / "events", tmp_path / "shared"
    shared.mkdir()
    log = EventLog(EventLogSettings(directory=events, proxy_id="pod", worker=0))
    log.append(["one"], 0.0, 1_780_315_200.0)
    end = End(30.0)
    end.ask()
    with opened(
        events, parse_target(shared.as_uri()), FolderSink(shared), Selection(), end
    ) as loop:
        loop.run()
        assert loop.left
    assert not end.is_over()


def test_a_command_that_follows_says_that_events_are_left(tmp_path: Path) -> None:
    events, shared = tmp_path / "events", tmp_path / "shared"
    shared.mkdir()
    log = EventLog(EventLogSettings(directory=events, proxy_id="pod", worker=0))
    log.append(["one"], 0.0, 1_780_315_200.0)
    log.close(0.0)
    log.append(["two"], 0.0, 1_780_315_200.0)
    command = [sys.executable, "-m", "proxy", "events", "deliver", "--follow"]
    command += ["--events", str(events), "--to", f"file://{shared}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        eventually(lambda: lines_below(shared) == [b"one"], "the closed file is delivered")
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output == b"1 events delivered\n"
    assert b"not all events were delivered" in errors


def test_the_report_of_what_was_delivered_is_that_of_the_folder(tmp_path: Path) -> None:
    events, shared = tmp_path / "events", tmp_path / "shared"
    shared.mkdir()
    generate(SIZE, events, parquet=False)
    assert deliver(events, f"file://{shared}").exit_code == 0
    assert report_of(events) == report_of(shared)
