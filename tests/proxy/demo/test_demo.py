"""The demo as a person runs it. It judges itself; here its end is judged."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SECONDS = 24
TRIES = 4
HELD_UP = re.compile(r"the proxy killed \d+ of its connections|it lost \d+ connections")
"""The finding about a client that renewed its session too late."""
PATIENCE = SECONDS + 900
"""The report at its end may take 15 s, or minutes on a busy machine."""


@contextmanager
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy", "demo", "--seconds", str(SECONDS)],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def left_behind(tmp_path: Path) -> list[str]:
    """The command lines of processes that mention the demo's directory."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has just ended
            continue
        if str(tmp_path) in command:
            found.append(command)
    return found


def test_every_client_sees_what_it_should(tmp_path: Path) -> None:
    """On a machine that holds a client up for half a second, its session ends: once more then."""
    for attempt in range(TRIES):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        with demo(directory) as process:
            output, _ = process.communicate(timeout=PATIENCE)
        if not HELD_UP.search(" ".join(output.split())):
            break
    tmp_path = directory
    assert process.returncode == 0, output
    assert "✗" not in output
    (directory,) = tmp_path.iterdir()
    assert f"Events: {directory}/events" in output
    assert list((directory / "events").glob("events-*.jsonl"))
    assert "successful_reauthentication_total" in (directory / "metrics.txt").read_text()
    assert "Readiness report: " in output
    assert not list(directory.glob("*.pem")) + list(directory.glob("*.password"))
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, sign: signal.Signals) -> None:
    """Ctrl-C, `kill` and a closed terminal are how people end what takes too long."""
    with demo(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if re.search("authentications failed", line):
                break
        time.sleep(1)  # in the middle of the clients' work
        process.send_signal(sign)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert left_behind(tmp_path) == []
