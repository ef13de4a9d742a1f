"""Child processes of the demo, each with a log of its own."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

READER_SECONDS = 5.0
"""Seconds to wait for the end of stdout when a process has ended: its children may have it open."""


class DemoFailed(Exception):
    """A part of the demo failed; the text says where to look."""


class Program:
    """Python module as a process.

    It has a session of its own, so it gets no signals from the terminal. Its stdin is a pipe that
    ends with the demo, which stops brokers and clients; the proxy is stopped by SIGTERM.
    """

    def __init__(self, name: str, module: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._open = True
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read_stdout, daemon=True)
        self._reader.start()

    def _read_stdout(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._news:
                    self._lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._open = False
            self._news.notify_all()

    @property
    def last_line(self) -> str | None:
        """The latest line on its stdout; None: it has written none."""
        with self._news:
            return self._lines[-1] if self._lines else None

    @property
    def running(self) -> bool:
        """True if it has not ended."""
        return self._process.poll() is None

    def wait_for_line(self, within: float) -> str:
        """Return its first line on stdout. Raises DemoFailed after `within` seconds without one."""
        with self._news:
            self._news.wait_for(lambda: self._lines or not self._open, within)
            if self._lines:
                return self._lines[0]
        raise DemoFailed(f"the {self.name} did not start, see {self.log}")

    def ask_to_stop(self) -> None:
        """Close its stdin, which makes brokers and clients end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def terminate(self) -> None:
        """Send it SIGTERM, if it runs."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)

    def ended(self, deadline: float) -> bool:
        """Wait for its end; kill it at `deadline` in monotonic seconds, and then return False."""
        in_time = True
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            in_time = False
        self.ask_to_stop()  # closes the pipe
        self._reader.join(READER_SECONDS)
        return in_time
