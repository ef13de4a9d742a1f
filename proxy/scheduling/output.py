"""Standard output and standard error, written without waiting for a slow reader.

A reader that stalls must not stop event loops, nor the parent. Rules:

- In a child, a thread writes the lines, from a queue of at most `MAX_QUEUED_BYTES`. The parent has
  no thread, because it forks: it writes at once, and only as much as the reader takes.
- Other lines are dropped, and counted in the heartbeat of the process.
- Descriptors that were inherited keep their mode: programs outside share it (open(2), "open file
  description").
"""

import io
import os
import select
import socket
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from proxy.scheduling.heartbeats import Heartbeat

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAX_QUEUED_BYTES: Final = 262_144
"""Largest size of the lines that a child keeps for a slow reader: some 1,500 lines."""
FLUSH_SECONDS: Final = 1.0
"""Seconds for which a child that ends waits until its lines are written."""
PATIENCE_MS: Final = 200
"""Milliseconds for which the parent waits for the reader in the middle of a line."""


class Output(io.RawIOBase):
    """One of the standard streams. Each call of `write` has a whole line, or several."""

    def __init__(self, fd: int, heartbeat: Heartbeat) -> None:
        """Write to `fd`, and count dropped lines in `heartbeat`."""
        self._fd = fd
        self._send = _sender(fd)
        self._heartbeat = heartbeat
        self._is_torn = False
        """True if the end of the last line could not be written."""
        self._lock = threading.RLock()
        """Guards the count of dropped lines, and the next two fields; a finalizer may log, too."""
        self._queued_bytes = 0
        self._thread: threading.Thread | None = None
        """The thread that writes; None if no line was queued so far."""
        self._lines: SimpleQueue[bytes] | None = None
        """The queue; None if lines are written at once."""

    def fileno(self) -> int:
        """Return the descriptor, for `faulthandler`."""
        return self._fd

    def writable(self) -> bool:
        """Return True."""
        return True

    def begin_child(self, heartbeat: Heartbeat) -> None:
        """Queue lines from now on, in a child that does not fork; it has its own heartbeat."""
        self._heartbeat = heartbeat
        self._lines = SimpleQueue()

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write or queue lines, or drop them; return their size in any case."""
        line = bytes(data)
        with self._lock:
            if not (self._write(line) if self._lines is None else self._queue(line, self._lines)):
                self._heartbeat.drop_lines(line.count(b"\n"))
        return len(line)

    def close(self) -> None:
        """Close, after at most `FLUSH_SECONDS` for the lines that are queued."""
        if self._thread is not None and self._lines is not None:
            self._lines.put(b"")
            self._thread.join(FLUSH_SECONDS)
        super().close()

    def _queue(self, line: bytes, lines: SimpleQueue[bytes]) -> bool:
        if self._queued_bytes + len(line) > MAX_QUEUED_BYTES:
            return False
        if self._thread is None:
            work = partial(self._write_queued, lines)
            thread = threading.Thread(target=work, name="output", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the limit of threads (ulimit -u, pids.max)
                return False
            self._thread = thread
        self._queued_bytes += len(line)
        lines.put(line)
        return True

    def _write_queued(self, lines: SimpleQueue[bytes]) -> None:
        while line := lines.get():
            rest = line
            with suppress(OSError):  # the reader is gone
                while rest:
                    try:
                        rest = rest[os.write(self._fd, rest) :]
                    except BlockingIOError:  # another program has set O_NONBLOCK
                        select.select([], [self._fd], [])
            with self._lock:
                self._queued_bytes -= len(line)
                if rest:
                    self._heartbeat.drop_lines(line.count(b"\n"))

    def _write(self, line: bytes) -> bool:
        """Write a line if the reader takes it; return whether it took all of it."""
        rest = b"\n" + line if self._is_torn else line
        whole, may_wait = len(rest), False
        while rest:
            try:
                rest = rest[self._send(rest) :]
                may_wait = True
            except BlockingIOError:
                if not (may_wait and _is_writable(self._fd, PATIENCE_MS)):
                    break
                may_wait = False
            except OSError:  # the reader is gone
                break
        if len(rest) < whole:
            self._is_torn = bool(rest)
        return not rest


def _sender(fd: int) -> Callable[[bytes], int]:
    """Return a function that writes to `fd`, or raises BlockingIOError at once."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        return partial(_send, fd)
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
            return partial(os.write, os.open(f"/proc/self/fd/{fd}", flags))
        except OSError:  # of another user
            return partial(_write_polled, fd)
    return partial(os.write, fd)


def _send(fd: int, data: bytes) -> int:
    sock = socket.socket(fileno=fd)
    try:
        return sock.send(data, socket.MSG_DONTWAIT)
    finally:
        sock.detach()


def _write_polled(fd: int, data: bytes) -> int:
    """Write to a blocking descriptor, which waits only if a child fills it first."""
    if not _is_writable(fd, 0):
        raise BlockingIOError
    return os.write(fd, data[: select.PIPE_BUF])


def _is_writable(fd: int, patience_ms: int) -> bool:
    writable = select.poll()
    writable.register(fd, select.POLLOUT)
    return bool(writable.poll(patience_ms))


def replace_standard_streams(heartbeat: Heartbeat) -> None:
    """Put an `Output` in place of `sys.stdout` and `sys.stderr`, and open closed descriptors.

    Otherwise the next file or socket that is opened would have the number of standard error.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(  # type: ignore[type-var] # `Output` has every method that is used
            Output(fd, heartbeat), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        for fd in (1, 2)
    )


def begin_child(heartbeat: Heartbeat) -> None:
    """Call `Output.begin_child` in a child, if the standard streams were replaced."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(output := stream.buffer, Output):
            output.begin_child(heartbeat)
