"""A log whose reader stalls, goes away or never was: clients are served all the same."""

import fcntl
import os
import re
import select
import signal
import socket
from pathlib import Path

import pytest

from tests.support.proxy_process import PATIENCE_SECONDS, Serving, alive, eventually

PIPE_BYTES = 4_096
DROPPED = re.compile(r'^kafka_reauth_proxy_log_lines_dropped_total{process="(.+)"} (\d+)', re.M)

CLOSES_ITS_OUTPUT = """
import os, sys
os.close(1), os.close(2)
os.execv(sys.executable, [sys.executable, "-m", "proxy", *sys.argv[1:]])
"""


def cause_log_lines(serving: Serving, clients: int = 60) -> None:
    """Each client has an address of its own, or the rate limit would leave out its line."""
    for number in range(2, 2 + clients):
        source = (f"127.0.0.{number}", 0)
        with socket.create_connection(
            ("127.0.0.1", serving.port), PATIENCE_SECONDS, source_address=source
        ) as client:
            client.sendall(b"\x7f\xff\xff\xff")  # the size of a frame that is too long
            assert client.recv(1) == b""


def dropped_lines(serving: Serving) -> dict[str, int]:
    _, body = serving.get("/metrics")
    return {process: int(count) for process, count in DROPPED.findall(body)}


def test_nothing_waits_for_a_reader_of_the_log_that_has_stalled(serving: Serving) -> None:
    """Unauthenticated clients cause the lines that fill the pipe."""
    reading, serving.stderr = os.pipe()
    fcntl.fcntl(serving.stderr, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        serving.check_often()
        serving.start()
        eventually(lambda: serving.workers_up() == [True, True], "workers answer")
        assert set(dropped_lines(serving).values()) == {0}
        cause_log_lines(serving)
        writable = select.poll()
        writable.register(serving.stderr, select.POLLOUT)
        assert not writable.poll(0), "the pipe is full"
        assert not fcntl.fcntl(serving.stderr, fcntl.F_GETFL) & os.O_NONBLOCK
        assert serving.handshake_error() == 0
        hung = serving.children()[1]
        os.kill(hung, signal.SIGSTOP)
        eventually(lambda: not alive(hung), "it is ended")
        eventually(lambda: serving.workers_up() == [True, True], "another takes its place")
        assert {serving.handshake_error() for _ in range(10)} == {0}
        assert dropped_lines(serving) == {  # that it hangs, and that it is restarted
            "the parent": 2,
            **dict.fromkeys(("worker 0", "worker 1", "acceptor", "http"), 0),
        }
        serving.process.terminate()
        assert serving.process.wait(PATIENCE_SECONDS) == 0
        os.set_blocking(reading, False)
        assert os.read(reading, PIPE_BYTES).count(b"closed: oversize_frame") > 10
    finally:
        os.close(serving.stderr)
        os.close(reading)


@pytest.mark.parametrize("closed", [True, False], ids=["never open", "closed meanwhile"])
def test_nothing_needs_a_reader_of_the_log(serving: Serving, *, closed: bool) -> None:
    """Neither a start nor a worker; and no socket gets the number of standard error."""
    reading, serving.stderr = os.pipe()
    if closed:
        serving.program = ["-c", CLOSES_ITS_OUTPUT]
    serving.launch()
    os.close(serving.stderr)
    eventually(lambda: serving.workers_up() == [True, True], "workers answer")
    os.close(reading)
    worker = serving.children()[0]
    cause_log_lines(serving)
    os.kill(serving.children()[1], signal.SIGKILL)
    eventually(lambda: serving.workers_up() == [True, True], "the other is restarted")
    assert alive(worker)
    assert {serving.handshake_error() for _ in range(10)} == {0}
    if closed:
        devices = {Path(f"/proc/{worker}/fd/{fd}").readlink() for fd in (1, 2)}
        assert devices == {Path(os.devnull)}
    else:
        assert sum(dropped_lines(serving).values()) >= 60
