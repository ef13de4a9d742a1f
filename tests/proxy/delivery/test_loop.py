"""Loop of a delivery, and the command that runs it."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from metrics.delivery import position
from metrics.delivery.position import lock
from metrics.delivery.selection import Selection, parse_target
from metrics.delivery.spool import Spool
from metrics.event_log import EventLog, EventLogSettings
from proxy.delivery.loop import DeliveryError, End, opened
from tests.support.delivery import Lines
from tests.support.processes import PATIENCE_SECONDS, free_ports
from tests.support.proxy_process import refusal

NAME = "events-pod-0-20260601T120000Z-0.jsonl"
TARGET = parse_target("kafka:t")


def attempt(folder: Path, sink: Lines) -> bool:
    """Make one pass; return whether everything was delivered."""
    with opened(folder, TARGET, sink, Selection(), End(1.0)) as loop:
        return loop.attempt() and not loop.left


def test_what_is_not_taken_costs_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does a full disk, on which the position cannot be written."""
    (tmp_path / NAME).write_bytes(b"one\ntwo\n")
    assert not attempt(tmp_path, Lines(fails=True))
    assert "kafka:t does not take them: No space left on device" in caplog.text
    first, second = Lines(), Lines()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(position.Position, "save", full)
        assert attempt(tmp_path, first)
    assert "position of the delivery cannot be written: No space left on device" in caplog.text
    assert attempt(tmp_path, second)
    assert first.taken == second.taken == [b"one", b"two"], "twice rather than not at all"


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    log = EventLog(EventLogSettings(directory=tmp_path, proxy_id="pod", worker=0))
    sink = Lines()
    for lines in (["one", "two"], ["three"]):
        log.append(lines, 0.0, 1_780_315_200.0)
        log.close(0.0)
        assert attempt(tmp_path, sink)
    log.append(["open"], 0.0, 1_780_315_200.0)
    assert attempt(tmp_path, sink)
    assert sink.taken == [b"one", b"two", b"three", b"open"]


def test_the_second_deliverer_of_a_folder_leaves(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    held = lock(spool.fd)
    with pytest.raises(DeliveryError, match="another process delivers from it"):
        attempt(tmp_path, Lines())
    os.close(held)
    spool.close()


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        ("https://a", 2, "--to: must be kafka:TOPIC"),
        ("file:///a", 2, "--to: must be kafka:TOPIC"),
        ("kafka:a --kinds none", 2, "--kinds: must be all or summary"),
        ("kafka:a --hide kind", 2, "--hide: must be of client_host"),
        ("kafka:a", 2, "--bootstrap-server or --command-config is required"),
        ("kafka:a --command-config /missing", 2, "cannot be read"),
        ("kafka:a --events missing --bootstrap-server 127.0.0.1:1", 1, "missing cannot be read"),
    ],
)
def test_mistakes_in_the_options(tmp_path: Path, arguments: str, status: int, problem: str) -> None:
    words = ("events", "deliver", "--events", tmp_path, "--to")
    assert problem in refusal(*words, *arguments.split(), status=status)


def test_what_comes_later_is_delivered_until_the_end(tmp_path: Path) -> None:
    """At the end, what died meanwhile is delivered, too."""
    end, sink = End(30.0), Lines()
    (tmp_path / NAME).write_bytes(b"one\n")
    with opened(tmp_path, TARGET, sink, Selection(), end) as loop:
        running = threading.Thread(target=loop.run)
        running.start()
        while sink.taken != [b"one"]:
            running.join(0.01)
        (tmp_path / f"{NAME.replace('-0.', '-1.')}.open").write_bytes(b"two\nhalf")
        end.ask()
        running.join(PATIENCE_SECONDS)
        assert not running.is_alive()
    assert sink.taken == [b"one", b"two"]
    assert not end.is_over()


def test_a_command_that_follows_says_that_events_are_left(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"one\n")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "proxy", "events", "deliver", "--follow"]
    command += ["--events", str(tmp_path), "--to", "kafka:t"]
    command += ["--bootstrap-server", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"does not take them" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert output == b"0 events delivered\n"
    assert b"not all events were delivered" in errors
