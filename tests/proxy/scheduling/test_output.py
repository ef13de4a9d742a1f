"""Standard streams that nobody waits for: what is written, dropped and counted."""

import fcntl
import os
import pty
import socket
import threading
from pathlib import Path

import pytest

from proxy.scheduling import output
from proxy.scheduling.heartbeats import Heartbeat
from proxy.scheduling.output import MAX_QUEUED_BYTES, Output
from tests.support.proxy_process import PATIENCE_SECONDS

PIPE_BYTES = 4_096
Ends = tuple[int, int]
"""The descriptor that is read, and the one that is written."""


def a_pipe() -> Ends:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing


def a_socket() -> Ends:
    reading, writing = socket.socketpair()
    return reading.detach(), writing.detach()


def a_pipe_that_cannot_be_opened_again() -> Ends:
    """As one of another user: where nobody reads, opening fails, too."""
    reading, writing = a_pipe()
    os.close(reading)
    return -1, writing


@pytest.fixture(params=[a_pipe, a_socket, pty.openpty, a_pipe_that_cannot_be_opened_again])
def ends(request: pytest.FixtureRequest) -> Ends:
    made: Ends = request.param()
    return made


def test_the_parent_drops_and_counts_what_its_reader_does_not_take(ends: Ends) -> None:
    """And leaves the mode of the descriptor as it was."""
    reading, writing = ends
    heartbeat = Heartbeat()
    stream = Output(writing, heartbeat)
    if reading == -1:
        reading = os.open(f"/proc/self/fd/{writing}", os.O_RDONLY)
    line = b"x" * 99 + b"\n"
    lines = 0
    while not heartbeat.dropped_lines:
        assert stream.write(line) == len(line)
        lines += 1
    stream.write(line)
    assert heartbeat.dropped_lines == 2
    assert not fcntl.fcntl(writing, fcntl.F_GETFL) & os.O_NONBLOCK
    os.set_blocking(reading, False)
    received = b""
    try:
        while more := os.read(reading, 1_000_000):
            received += more
    except BlockingIOError:
        pass
    assert received.replace(b"\r", b"").count(line) == lines - 1
    stream.write(b"again\n")
    assert os.read(reading, 100).strip() == b"again"
    os.close(reading)
    os.close(writing)


def test_a_line_that_was_cut_off_does_not_spoil_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PATIENCE_MS", 1)
    reading, writing = a_pipe()
    heartbeat = Heartbeat()
    stream = Output(writing, heartbeat)
    stream.write(b"x" * (PIPE_BYTES + 1) + b"\n")
    assert heartbeat.dropped_lines == 1
    assert os.read(reading, 2 * PIPE_BYTES) == b"x" * PIPE_BYTES
    stream.write(b"the next\n")
    assert os.read(reading, PIPE_BYTES) == b"\nthe next\n"


def test_a_file_is_appended_to_by_all_who_share_it(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as file:
        stream = Output(file.fileno(), Heartbeat())
        stream.write(b"one\n")
        file.write(b"two\n")
        stream.write(b"three\n")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\nthree\n"


def test_a_pipe_that_nobody_reads_any_more_is_no_error() -> None:
    reading, writing = os.pipe()
    heartbeat = Heartbeat()
    stream = Output(writing, heartbeat)
    os.close(reading)
    stream.write(b"one\ntwo\n")
    assert heartbeat.dropped_lines == 2
    stream.begin_child(heartbeat)
    stream.write(b"three\n")
    stream.close()
    assert heartbeat.dropped_lines == 3


def begun(writing: int) -> tuple[Output, Heartbeat]:
    heartbeat = Heartbeat()
    stream = Output(writing, Heartbeat())
    stream.begin_child(heartbeat)
    return stream, heartbeat


def test_a_child_queues_lines_in_their_order_and_counts_the_rest() -> None:
    """When it ends, a reader that continues gets all queued lines."""
    reading, writing = a_pipe()
    stream, heartbeat = begun(writing)
    count = 3 * MAX_QUEUED_BYTES // 1_000
    for number in range(count):
        stream.write(b"%-999d\n" % number)
    dropped = heartbeat.dropped_lines
    assert MAX_QUEUED_BYTES - 1_000 < 1_000 * (count - dropped) <= MAX_QUEUED_BYTES + PIPE_BYTES
    received = bytearray()

    def read() -> None:
        while len(received) < 1_000 * (count - dropped):
            received.extend(os.read(reading, 1_000_000))

    reader = threading.Thread(target=read)
    reader.start()
    stream.close()
    reader.join(PATIENCE_SECONDS)
    assert not reader.is_alive()
    os.close(reading)
    os.close(writing)
    assert [int(line) for line in received.splitlines()] == list(range(count - dropped))
    assert heartbeat.dropped_lines == dropped


def test_a_child_that_ends_waits_for_its_reader_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "FLUSH_SECONDS", 0.01)
    reading, writing = a_pipe()
    stream, _ = begun(writing)
    for _ in range(100):
        stream.write(b"x" * 999 + b"\n")
    stream.close()
    assert stream.closed
    os.close(reading)  # which ends the thread


def test_a_line_is_dropped_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next one tries again."""
    reading, writing = a_pipe()
    stream, heartbeat = begun(writing)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        stream.write(b"one\n")
    assert heartbeat.dropped_lines == 1
    stream.write(b"two\n")
    stream.close()
    assert os.read(reading, 100) == b"two\n"
    os.close(reading)
    os.close(writing)
