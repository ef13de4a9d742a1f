"""The proxy as a child process, in front of a real broker, set up as an operator would."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.kafka.cluster import SASL_LISTENERS, SCRAM_ITERATIONS, free_ports
from tests.kafka.tokens import AUDIENCE, ISSUER
from tests.kafka.wire_client import Address

START_DEADLINE_SECONDS = 30.0
#: The proxy drains for a bounded time; past this it hangs.
STOP_DEADLINE_SECONDS = 30.0


class ProxyFailed(Exception):
    """The proxy ended or did not become ready; the text ends with what it wrote."""


def sidecar_config(
    upstream: str, jwks: Path, *, listeners: Mapping[str, int] = SASL_LISTENERS
) -> dict[str, Any]:
    """A configuration with one sidecar listener per name, on ports of its own."""
    ports = free_ports(len(listeners) + 1)
    return {
        "upstream": {"bootstrap.servers": upstream},
        "listeners": [
            {
                "name": name.lower(),
                "address": f"127.0.0.1:{port}",
                "routing": "sidecar",
                "sasl.enabled.mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"],
                "connections.max.reauth.ms": max_reauth_ms,
                "reauth.enforcement": "enforce",
                "sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
                "sasl.oauthbearer.expected.audience": [AUDIENCE],
                "sasl.oauthbearer.expected.issuer": ISSUER,
            }
            for (name, max_reauth_ms), port in zip(listeners.items(), ports, strict=False)
        ],
        "http": {"address": f"127.0.0.1:{ports[-1]}"},
    }


class ProxyProcess:
    """`reauth-proxy serve` with this configuration; SIGTERM at the end, by its process id."""

    def __init__(self, config: Mapping[str, Any], directory: Path) -> None:
        self.config_file = directory / "config.yaml"
        self._listeners = config["listeners"]
        self._directory = directory
        self._log = directory / "proxy.log"
        self._process: subprocess.Popen[str] | None = None
        self.config_file.write_text(yaml.safe_dump(dict(config)))

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "proxy", "serve", "--config", str(self.config_file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            self._wait_ready(self._process)
        except BaseException:
            self._process.kill()
            self._end(self._process)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        self._end(process)

    @property
    def pid(self) -> int:
        """The process that was started; workers are its children."""
        if self._process is None:
            raise ProxyFailed("not started")
        return self._process.pid

    def addresses(self) -> dict[str, Address]:
        """Where each listener accepts, by the upper-case name that the programs know."""
        found = {}
        for listener in self._listeners:
            host, port = listener["address"].rsplit(":", 1)
            found[listener["name"].upper()] = Address(host, int(port))
        return found

    def log(self) -> str:
        """What the proxy wrote to stderr."""
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        """Sends SIGHUP, SIGTERM …"""
        os.kill(self.pid, number)

    def wait(self, deadline_seconds: float = STOP_DEADLINE_SECONDS) -> int:
        """Until it has ended; returns its exit status."""
        if self._process is None:
            raise ProxyFailed("not started")
        status = self._process.wait(deadline_seconds)
        self._end(self._process)
        return status

    def add_user(self, name: str, password: str, mechanism: str) -> None:
        """`reauth-proxy users add`, the password from a file."""
        password_file = self._directory / "password"
        password_file.write_text(password)
        command = [sys.executable, "-m", "proxy", "users", "add", name, "--mechanism", mechanism]
        options = ["--password-file", str(password_file), "--config", str(self.config_file)]
        iterations = ["--iterations", str(SCRAM_ITERATIONS)]
        done = subprocess.run(
            [*command, *options, *iterations], capture_output=True, text=True, timeout=30
        )
        password_file.unlink()
        if done.returncode != 0:
            raise ProxyFailed(f"users add {name} {mechanism}: {done.stderr}{done.stdout}")

    def _wait_ready(self, process: subprocess.Popen[str]) -> None:
        # One line per listener; read in a thread, which goes on so that stdout never fills up.
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_pump, args=(process, lines), daemon=True).start()
        deadline = time.monotonic() + START_DEADLINE_SECONDS
        for _ in self._listeners:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise ProxyFailed(f"not ready:\n{self.log()}") from None
            if not line:
                raise ProxyFailed(f"ended with {process.wait()}:\n{self.log()}")

    def _end(self, process: subprocess.Popen[str]) -> None:
        try:
            process.wait(STOP_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ProxyFailed(f"did not end on SIGTERM:\n{self.log()}") from None


def _pump(process: subprocess.Popen[str], lines: "queue.SimpleQueue[str]") -> None:
    if process.stdout is None:
        raise AssertionError("started with a pipe")
    with process.stdout as stdout:
        for line in stdout:
            lines.put(line)
    lines.put("")
