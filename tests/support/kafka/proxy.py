"""The proxy as a child process, in front of a real broker, set up as an operator would."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from proxy.ops.http import MIN_SCRAPE_SECONDS
from tests.support.kafka.cluster import SASL_LISTENERS, SCRAM_ITERATIONS, wait_until
from tests.support.kafka.wire_client import Address
from tests.support.processes import free_port_range, free_ports
from tests.support.sasl import AUDIENCE, ISSUER

START_DEADLINE_SECONDS = 120.0
#: The proxy drains for a bounded time; past this it hangs.
STOP_DEADLINE_SECONDS = 120.0

#: Highest broker id that a gateway listener has a port for.
GATEWAY_BROKERS = 8


class ProxyFailed(Exception):
    """The proxy ended or did not become ready; the text ends with what it wrote."""


_SESSIONS: Mapping[str, Any] = {
    "sasl.enabled.mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"],
    "reauth.enforcement": "enforce",
    "sasl.oauthbearer.expected.audience": [AUDIENCE],
    "sasl.oauthbearer.expected.issuer": ISSUER,
}

#: The user who may administer others, in every configuration made here.
SUPER_USER = "admin"


def sidecar_config(
    upstream: str,
    jwks: Path,
    *,
    listeners: Mapping[str, int] = SASL_LISTENERS,
    port: int | None = None,
) -> dict[str, Any]:
    """A configuration with one sidecar listener per name, `connections.max.reauth.ms` by name.

    `port` is that of the first listener, if the broker must know it; the others' are any.
    """
    ports = free_ports(len(listeners))
    if port is not None:
        ports[0] = port
    return _config(
        upstream,
        [
            _listener(name, each, max_reauth_ms, jwks) | {"routing": "sidecar"}
            for (name, max_reauth_ms), each in zip(listeners.items(), ports, strict=True)
        ],
    )


def gateway_config(
    upstream: str, jwks: Path, *, listeners: Mapping[str, int] = SASL_LISTENERS
) -> dict[str, Any]:
    """The same with gateway listeners, each with ports for the brokers 0 to `GATEWAY_BROKERS`."""
    configured = []
    for name, max_reauth_ms in listeners.items():
        port = free_port_range(GATEWAY_BROKERS + 2)
        gateway = {
            "routing": "gateway",
            "advertised.host": "127.0.0.1",
            "broker.ports": f"{port + 1}-{port + 1 + GATEWAY_BROKERS}",
        }
        configured.append(_listener(name, port, max_reauth_ms, jwks) | gateway)
    return _config(upstream, configured)


def _config(upstream: str, listeners: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "upstream": {"bootstrap.servers": upstream.split(","), "metadata.max.age.ms": 1_000},
        "listeners": listeners,
        "authorizer": {"super.users": [f"User:{SUPER_USER}"]},
        "events": {"directory": "events"},
        "http": {"address": f"127.0.0.1:{free_ports(1)[0]}"},
    }


def _listener(name: str, port: int, max_reauth_ms: int, jwks: Path) -> dict[str, Any]:
    return {
        "name": name.lower(),
        "address": f"127.0.0.1:{port}",
        "connections.max.reauth.ms": max_reauth_ms,
        "sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
        **_SESSIONS,
    }


def enforcing_acls(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The same configuration, judging every request; `more` are further top-level keys."""
    authorizer = {
        "mode": "enforce",
        "super.users": [f"User:{SUPER_USER}"],
        "allow.everyone.if.no.acl.found": False,
    }
    return {**config, "authorizer": authorizer, **more}


class ProxyProcess:
    """`reauth-proxy serve` with this configuration; SIGTERM at the end, by its process id."""

    def __init__(self, config: dict[str, Any], directory: Path) -> None:
        self.config = config
        self.config_file = directory / "config.yaml"
        self._listeners = config["listeners"]
        self._http_address = config["http"]["address"]
        self._scraped_at = 0.0
        self._directory = directory
        self._log = directory / "proxy.log"
        self._process: subprocess.Popen[str] | None = None
        self._printed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.prefix: tuple[str, ...] = ()
        """What stands before the command: another user, another network namespace."""
        self.config_file.write_text(json.dumps(config, indent=2))  # which is YAML too

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Starts it, anew if it was stopped; returns when it accepts connections."""
        self._launch()
        try:
            self.wait_accepting()
        except BaseException:
            self._running().kill()
            self._end(self._running())
            raise

    def start_unready(self) -> None:
        """Starts it; returns when `/readyz` answers, whatever it says."""
        self._launch()

        def answers() -> bool:
            try:
                return self.readiness() in (200, 503)
            except urllib.error.URLError:
                return False

        wait_until(answers, what="no answer on /readyz", details=self.log)

    def _launch(self) -> None:
        command = [sys.executable, "-m", "proxy", "serve", "--config", str(self.config_file)]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*self.prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        # In a thread, which goes on so that stdout never fills up.
        self._printed = queue.SimpleQueue()
        threading.Thread(target=_pump, args=(self._process, self._printed), daemon=True).start()

    @property
    def has_printed(self) -> bool:
        """Whether there is a line that `wait_accepting` has not read."""
        return not self._printed.empty()

    def wait_accepting(self) -> None:
        """Until it has printed one line per listener."""
        deadline = time.monotonic() + START_DEADLINE_SECONDS
        for _ in self._listeners:
            try:
                line = self._printed.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise ProxyFailed(f"not ready:\n{self.log()}") from None
            if not line:
                raise ProxyFailed(f"ended with {self._running().wait()}:\n{self.log()}")

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ProxyFailed("not started")
        return self._process

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGTERM: drains, closes its files, ends."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        self._end(process)

    @property
    def pid(self) -> int:
        """The process that was started; workers are its children."""
        return self._running().pid

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
        status = self._running().wait(deadline_seconds)
        self._end(self._running())
        return status

    def add_user(self, name: str, password: str, mechanism: str) -> None:
        """`reauth-proxy users add`, the password from stdin."""
        chosen = ["--mechanism", mechanism, "--iterations", str(SCRAM_ITERATIONS)]
        self.command("users", "add", name, *chosen, "--password-file", "-", stdin=password)

    def users(self) -> set[tuple[str, str]]:
        """`reauth-proxy users list`: names and mechanisms."""
        rows = json.loads(self.command("users", "list", "--output", "json"))
        return {(row["user"], row["mechanism"]) for row in rows}

    def command(self, *arguments: str, stdin: str = "") -> str:
        """What another command of `reauth-proxy` prints, given the same configuration."""
        done = subprocess.run(
            [sys.executable, "-m", "proxy", *arguments, "--config", str(self.config_file)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=START_DEADLINE_SECONDS,
        )
        if done.returncode != 0:
            raise ProxyFailed(f"{arguments}: {done.stderr}{done.stdout}")
        return done.stdout

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels, of all workers."""
        samples = self._scrape()[name]
        return sum(value for of, value in samples if labels.items() <= of.items())

    def labels(self, name: str) -> list[Mapping[str, str]]:
        """The labels of a metric's samples."""
        return [labels for labels, _ in self._scrape()[name]]

    def until_known(self) -> None:
        """Until every worker has read the store after now: what was changed applies."""
        changed_at = time.monotonic()

        def known() -> bool:
            now = time.monotonic()
            (_, age), *_ = self._scrape()["store_age_seconds"]
            return now - age > changed_at

        wait_until(known, what="the store is not read", details=self.log)

    def _scrape(self) -> Mapping[str, list[tuple[Mapping[str, str], float]]]:
        """Labels and values by name, as they are now; asked again while a worker is too busy."""
        found: dict[str, list[tuple[Mapping[str, str], float]]] = {}

        def complete() -> bool:
            # One that came sooner would be given the last one's answer.
            time.sleep(max(0.0, self._scraped_at + MIN_SCRAPE_SECONDS - time.monotonic()))
            url = f"http://{self._http_address}/metrics"
            with urllib.request.urlopen(url, timeout=START_DEADLINE_SECONDS) as answer:
                families = text_string_to_metric_families(answer.read().decode())
            self._scraped_at = time.monotonic()
            samples = [sample for family in families for sample in family.samples]
            found.clear()
            for sample in samples:
                name = sample.name.removeprefix("kafka_reauth_proxy_")
                found.setdefault(name, []).append((sample.labels, sample.value))
            return all(value == 1 for _, value in found["worker_up"])

        wait_until(complete, what="a worker does not answer", details=self.log)
        return defaultdict(list, found)

    def readiness(self) -> int:
        """The HTTP status of `/readyz`."""
        return self._readyz()[0]

    def reasons(self) -> list[str]:
        """Why it is not ready, as `/readyz` says; empty: it is."""
        return [reason for one in self._readyz()[1]["workers"] for reason in one["reasons"]]

    def _readyz(self) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(
                f"http://{self._http_address}/readyz", timeout=START_DEADLINE_SECONDS
            ) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def events(self) -> list[dict[str, Any]]:
        """The event log so far, the files that are still being written included."""
        files = sorted((self._directory / "events").glob("events-*.jsonl*"))
        lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

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
