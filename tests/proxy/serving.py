"""A proxy as an operator runs it: `python -m proxy serve`, with its signals and its log."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

import yaml

from tests.ports import free_ports
from tests.proxy.frames_given import handshake

PATIENCE_SECONDS = 90.0

LOOKS_OFTEN = """
from proxy.child_process import heartbeats
heartbeats.BEAT_EVERY, heartbeats.LOOK_EVERY = 0.05, 0.1
heartbeats.HUNG_LOOKS, heartbeats.START_LOOKS = 50, 1200
from proxy.cli import main
main()
"""


class Serving:
    """A proxy whose broker does not exist: it accepts clients all the same."""

    def __init__(self, directory: Path, workers: int) -> None:
        self.port, self.http_port, nobody = free_ports(3)
        self.path = directory / "config.yaml"
        self.log_path = directory / "proxy.log"
        self.settings: dict[str, Any] = {
            "upstream": {"bootstrap.servers": f"127.0.0.1:{nobody}"},
            "listeners": [
                {
                    "name": "clients",
                    "address": f"127.0.0.1:{self.port}",
                    "routing": "sidecar",
                    "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
                    "reauth.enforcement": "observe",
                }
            ],
            "store": {"url": f"sqlite:{directory / 'state.db'}"},
            "http": {"address": f"127.0.0.1:{self.http_port}"},
            "workers": workers,
        }
        self.program = ["-m", "proxy"]
        """What Python runs."""
        self.write()
        self.process: subprocess.Popen[str]

    def write(self) -> None:
        self.path.write_text(yaml.safe_dump(self.settings))

    def start(self) -> str:
        """Start; return the first line that it prints."""
        self.launch()
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def launch(self) -> None:
        """Start, and wait for no line: there may be none for long."""
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, "serve", "--config", str(self.path)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def look_often(self) -> None:
        """Have heartbeats looked at ten times a second: who is silent for five seconds hangs."""
        self.program = ["-c", LOOKS_OFTEN]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_SECONDS)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def children(self) -> list[int]:
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in task.read_text().split()]

    def connections(self, pids: list[int]) -> list[int]:
        """How many connections of clients each of these processes has."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        # proc(5): number, local address, remote address, state, …, inode
        ours = {row[9] for row in rows if row[1].endswith(f":{self.port:04X}") and row[3] != "0A"}
        return [sum(inode in ours for inode in sockets_of(pid)) for pid in pids]

    def log(self) -> str:
        return self.log_path.read_text()

    def get(self, path: str) -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}{path}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - http
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def workers_up(self) -> list[bool]:
        """Which workers answer the HTTP process."""
        with suppress(URLError, ConnectionError):
            _, body = self.get("/readyz")
            reasons = [" ".join(one["reasons"]) for one in json.loads(body)["workers"]]
            return ["gone" not in text and "answer" not in text for text in reasons]
        return []

    def handshake_error(self) -> int | None:
        """The error code that a client is answered to its SaslHandshake; None: it is closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS) as client:
            client.sendall(handshake(1, "SCRAM-SHA-256"))
            answer = client.recv(1000)
        return int.from_bytes(answer[8:10]) if answer else None


def eventually(condition: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.02)


def sockets_of(pid: int) -> Iterator[str]:
    """Give the inodes of the sockets that a process has open."""
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if (name := str(one.readlink())).startswith("socket:["):
                yield name[len("socket:[") : -1]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
