"""Running proxies: child processes with signals and a log, and clients in the event loop."""

import asyncio
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError

import yaml
from aiohttp import ClientSession, ClientTimeout
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner, Result

from proxy.cli import app
from proxy.ops.http_process import MIN_SCRAPE_SECONDS
from proxy.wire.apis import API_VERSIONS, METADATA
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE, client_initial_response
from tests.support.fake_broker import FakeBroker
from tests.support.frames import handshake, read_authenticated, request
from tests.support.kafka.cluster import SASL_LISTENERS, SCRAM_ITERATIONS, wait_until
from tests.support.kafka.wire_client import Address
from tests.support.processes import free_port_range, free_ports
from tests.support.relay import read_frame
from tests.support.sasl import AUDIENCE, ISSUER, claims, document, ed_key, token

# `python -m proxy serve` as a child process

PATIENCE_SECONDS = 90.0

CHECKS_OFTEN = """
from proxy.scheduling import heartbeats
heartbeats.BEAT_EVERY, heartbeats.CHECK_EVERY = 0.05, 0.1
heartbeats.HUNG_CHECKS, heartbeats.START_CHECKS = 50, 1200
from proxy.process import acceptor
acceptor.STALE_CHECKS = 100
from proxy.cli import main
main()
"""

REPLACES_NOBODY = """
from proxy.scheduling import heartbeats
heartbeats.HUNG_CHECKS = 1_000_000
from proxy.cli import main
main()
"""


class Started:
    """A proxy in a child process: its children, log and pages."""

    process: subprocess.Popen[str]
    log_path: Path
    http_address: str

    @property
    def pid(self) -> int:
        """The process that was started; workers are its children."""
        return self.process.pid

    def children(self) -> list[int]:
        """Its processes, workers first."""
        task = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in task.read_text().split()]

    def peak_kb(self) -> int:
        """Peak resident memory of its largest child in kB, usually a worker."""
        status = [Path(f"/proc/{child}/status").read_text() for child in self.children()]
        return max(int(each.partition("VmHWM:")[2].split()[0]) for each in status)

    def log(self) -> str:
        """The proxy's stderr."""
        return self.log_path.read_text()

    def page(self, path: str) -> tuple[int, str]:
        """The HTTP status and the body of a page."""
        url = f"http://{self.http_address}{path}"
        try:
            with urllib.request.urlopen(url, timeout=START_DEADLINE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


class Serving(Started):
    """A proxy without a broker; it still accepts clients."""

    def __init__(self, directory: Path, workers: int) -> None:
        self.port, self.http_port, nobody = free_ports(3)
        self.http_address = f"127.0.0.1:{self.http_port}"
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
            "http": {"address": self.http_address},
            "workers": workers,
        }
        self.program = ["-m", "proxy"]
        """Arguments of Python before `serve`."""
        self.options: list[str] = []
        """Options of `serve`."""
        self.stderr: int | None = None
        """Descriptor for its log; None for a file."""
        self.write()

    def write(self) -> None:
        self.path.write_text(yaml.safe_dump(self.settings))

    def start(self) -> str:
        """Start; return its first line of output, after which all children run."""
        self.launch()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it did not start: {self.log()}"
        workers = self.settings["workers"]
        count = workers + (workers > 1) + 1  # the acceptor, the HTTP process
        # The first worker printed the line; others may not have been forked yet
        eventually(lambda: len(self.children()) >= count, "all are forked")
        return line

    def refusal(self) -> list[str]:
        """Start a proxy that prints nothing and ends with status 2; return the lines of its log."""
        self.launch()
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == ""
        assert self.process.wait(PATIENCE_SECONDS) == 2
        return self.log().splitlines()

    def launch(self) -> None:
        """Start without waiting for output."""
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, "serve", "--config", str(self.path), *self.options],
                stdout=subprocess.PIPE,
                stderr=log if self.stderr is None else self.stderr,
                text=True,
            )

    def check_often(self) -> None:
        """Check heartbeats ten times a second; a process hangs after five silent seconds."""
        self.program = ["-c", CHECKS_OFTEN]

    def replace_nobody(self) -> None:
        """Do not replace hanging processes."""
        self.program = ["-c", REPLACES_NOBODY]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None:  # pytest prints this with the failure
            print(f"not ready: {self.reasons()}\n{self.log()}")  # noqa: T201
        self.stop()

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

    def connections(self, pids: list[int]) -> list[int]:
        """Number of client connections of each process."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        # proc(5): number, local address, remote address, state, …, inode
        ours = {row[9] for row in rows if row[1].endswith(f":{self.port:04X}") and row[3] != "0A"}
        return [sum(inode in ours for inode in sockets_of(pid)) for pid in pids]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.page("/metrics")[1])
            for sample in family.samples
            if sample.name == f"kafka_reauth_proxy_{name}"
            and labels.items() <= sample.labels.items()
        )

    def reasons(self) -> list[str]:
        """Why each worker is not ready; empty if the HTTP process does not answer."""
        with suppress(URLError, ConnectionError):
            _, body = self.page("/readyz")
            return ["; ".join(one["reasons"]) for one in json.loads(body)["workers"]]
        return []

    def workers_up(self) -> list[bool]:
        """Which workers answer the HTTP process."""
        return ["gone" not in text and "answer" not in text for text in self.reasons()]

    def until_up(self) -> None:
        """Wait until every worker answers the HTTP process."""
        eventually(lambda: bool(up := self.workers_up()) and all(up), "workers answer")

    def handshake_error(self) -> int | None:
        """Error code of a SaslHandshake; None if the connection is closed."""
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
    """Yield the inodes of a process's open sockets."""
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if (name := str(one.readlink())).startswith("socket:["):
                yield name[len("socket:[") : -1]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while it is read
        return False
    return state != "Z"


# A real proxy with a broker and clients in the test's event loop

LIFETIME_S = 3_600


class Client:
    """A client that has logged in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ended(self) -> bool:
        """Whether the proxy has closed the connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reader.read(1) == b""


class Proxy(Serving):
    """A proxy with several workers, a broker and clients."""

    def __init__(self, directory: Path, workers: int, broker: FakeBroker) -> None:
        super().__init__(directory, workers)
        self.clients: list[Client] = []
        jwks = directory / "jwks.json"
        jwks.write_bytes(document(ed_key().jwk()))
        self.settings["upstream"] = {"bootstrap.servers": f"127.0.0.1:{broker.port}"}
        self.settings["listeners"][0] |= {
            "sasl.enabled.mechanisms": ["OAUTHBEARER"],
            "reauth.enforcement": "enforce",
            "connections.max.reauth.ms": LIFETIME_S * 1000,
            "sasl.oauthbearer.jwks.endpoint.url": f"file:{jwks}",
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": "https://issuer.test",
        }
        self.write()

    async def log_in(
        self, user: str, client_id: str = "app", *, version: int = 1, ends_in: float = LIFETIME_S
    ) -> Client:
        """Log in; `version` 0 is a client without support for lifetimes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        client = Client(reader, writer)
        self.clients.append(client)
        now = time.time()
        bearer = client_initial_response(
            token(claims(sub=user, iat=now - 10, exp=now + ends_in), ed_key())
        )
        writer.write(request(API_VERSIONS, 3, 1, b"\x05java\x064.1.0\0", client_id))
        mechanism = b"\0\x0bOAUTHBEARER"
        writer.write(request(SASL_HANDSHAKE, 1, 2, mechanism, client_id))
        body = struct.pack(">i", len(bearer)) + bearer
        writer.write(request(SASL_AUTHENTICATE, version, 3, body, client_id))
        for _ in range(2):
            await read_frame(reader)
        error, *_ = read_authenticated(await read_frame(reader), version)
        assert error == 0
        return client

    async def ask_metadata(self, client: Client) -> None:
        """Relay one request."""
        client.writer.write(request(METADATA, 1, 9, b"\0\0\0\0", "app"))
        await read_frame(client.reader)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await condition():  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(0.02)

    async def fetch(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.http_port}{path}"
        async with (
            ClientSession(timeout=ClientTimeout(PATIENCE_SECONDS)) as session,
            session.get(url) as answer,
        ):
            return answer.status, await answer.text()

    async def fetch_json(self, path: str) -> dict[str, Any]:
        status, body = await self.fetch(path)
        assert status == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer

    async def is_ready(self) -> bool:
        try:
            return (await self.fetch("/readyz"))[0] == 200
        except OSError:
            return False


@asynccontextmanager
async def running(
    directory: Path, workers: int = 2, *, replaces: bool = True
) -> AsyncIterator[Proxy]:
    """Run a proxy and its broker; `replaces`: whether hanging processes are replaced."""
    async with FakeBroker() as broker:
        proxy = Proxy(directory, workers, broker)
        if not replaces:
            proxy.replace_nobody()
        try:
            await asyncio.to_thread(proxy.start)
            await proxy.until(proxy.is_ready)
            yield proxy
        finally:
            for client in proxy.clients:
                client.writer.close()
            await asyncio.to_thread(proxy.stop)


# A proxy in front of a real broker, set up as an operator would

START_DEADLINE_SECONDS = 120.0
#: The proxy drains for a bounded time; past this it hangs.
STOP_DEADLINE_SECONDS = 120.0

#: Highest broker id that a gateway listener has a port for.
GATEWAY_BROKERS = 8


class ProxyFailed(Exception):
    """The proxy ended or did not become ready; the message includes its log."""


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
    """The same with gateway listeners that have ports for brokers 0 to `GATEWAY_BROKERS`."""
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


def relaying_logins(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration, but the brokers authenticate clients."""
    own = ("sasl.enabled.mechanisms", *(key for key in _SESSIONS if "oauthbearer" in key))
    left_out = {*own, "sasl.oauthbearer.jwks.endpoint.url"}
    listeners = [
        {key: value for key, value in one.items() if key not in left_out}
        | {"sasl.termination": "broker"}
        for one in config["listeners"]
    ]
    upstream = config["upstream"] | {"security.protocol": "SASL_PLAINTEXT"}
    return {**config, "upstream": upstream, "listeners": listeners}


def enforcing_acls(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The same configuration with ACLs enforced; `more` are further top-level keys."""
    authorizer = {
        "mode": "enforce",
        "super.users": [f"User:{SUPER_USER}"],
        "allow.everyone.if.no.acl.found": False,
    }
    return {**config, "authorizer": authorizer, **more}


class ProxyProcess(Started):
    """`reauth-proxy serve` with this configuration, ended with SIGTERM."""

    def __init__(self, config: dict[str, Any], directory: Path) -> None:
        self.config = config
        self.config_file = directory / "config.yaml"
        self._listeners = config["listeners"]
        self.http_address = config["http"]["address"]
        self._scraped_at = 0.0
        self._directory = directory
        self.log_path = directory / "proxy.log"
        self._printed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.prefix: tuple[str, ...] = ()
        """Prefix of the command, for another user or network namespace."""
        self.config_file.write_text(json.dumps(config, indent=2))  # which is YAML too

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start or restart it; return when it accepts connections."""
        self._launch()
        try:
            self.wait_accepting()
        except BaseException:
            self.process.kill()
            self._end()
            raise

    def start_unready(self) -> None:
        """Start it; return when `/readyz` answers, ready or not."""
        self._launch()

        def answers() -> bool:
            try:
                return self.readiness() in (200, 503)
            except urllib.error.URLError:
                return False

        wait_until(answers, what="no answer on /readyz", details=self.log)

    def _launch(self) -> None:
        command = [sys.executable, "-m", "proxy", "serve", "--config", str(self.config_file)]
        with self.log_path.open("a") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        # In a thread, so that stdout never fills up.
        self._printed = queue.SimpleQueue()
        threading.Thread(target=_pump, args=(self.process, self._printed), daemon=True).start()

    @property
    def has_printed(self) -> bool:
        """Whether there is a line that `wait_accepting` has not read."""
        return not self._printed.empty()

    def wait_accepting(self) -> None:
        """Wait until it has printed one line per listener."""
        deadline = time.monotonic() + START_DEADLINE_SECONDS
        for _ in self._listeners:
            try:
                line = self._printed.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise ProxyFailed(f"not ready:\n{self.log()}") from None
            if not line:
                raise ProxyFailed(f"ended with {self.process.wait()}:\n{self.log()}")

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it with SIGTERM: it drains and closes its files."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            self._end()

    def addresses(self) -> dict[str, Address]:
        """Address of each listener, by upper-case name."""
        found = {}
        for listener in self._listeners:
            host, port = listener["address"].rsplit(":", 1)
            found[listener["name"].upper()] = Address(host, int(port))
        return found

    def until_logged(self, text: str) -> None:
        """Wait for a text in the log: workers do not wait for their lines to be written."""
        wait_until(lambda: text in self.log(), what=f"{text!r} is not logged", details=self.log)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def wait(self, deadline_seconds: float = STOP_DEADLINE_SECONDS) -> int:
        """Wait for its end; return the exit status."""
        return self.process.wait(deadline_seconds)

    def add_user(self, name: str, password: str, mechanism: str) -> None:
        """Run `reauth-proxy users add`; return when a running proxy knows the user."""
        chosen = ["--mechanism", mechanism, "--iterations", str(SCRAM_ITERATIONS)]
        self.command("users", "add", name, *chosen, "--password-file", "-", stdin=password)
        if hasattr(self, "process") and self.process.poll() is None:
            self.until_known()

    def users(self) -> set[tuple[str, str]]:
        """`reauth-proxy users list`: names and mechanisms."""
        rows = json.loads(self.command("users", "list", "--output", "json"))
        return {(row["user"], row["mechanism"]) for row in rows}

    def command(self, *arguments: str, stdin: str = "") -> str:
        """Run a command of `reauth-proxy` with the same configuration; return its output.

        In this process: to import what it needs takes most of the time of a process of its own.
        """
        words = [*arguments, "--config", str(self.config_file)]
        done = CliRunner().invoke(app, words, input=stdin, catch_exceptions=False)
        if done.exit_code != 0:
            raise ProxyFailed(f"{arguments}: {done.output}")
        return done.stdout

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels, of all workers."""
        samples = self._scrape()[name]
        return sum(value for of, value in samples if labels.items() <= of.items())

    def labels(self, name: str) -> list[Mapping[str, str]]:
        """The labels of a metric's samples."""
        return [labels for labels, _ in self._scrape()[name]]

    def until_known(self) -> None:
        """Wait until every worker has read the store again, so that changes apply."""
        changed_at = time.monotonic()

        def known() -> bool:
            now = time.monotonic()
            (_, age), *_ = self._scrape()["store_age_seconds"]
            return now - age > changed_at

        wait_until(known, what="the store is not read", details=self.log)

    def _scrape(self) -> Mapping[str, list[tuple[Mapping[str, str], float]]]:
        """Current labels and values by name; repeated while a worker does not answer."""
        found: dict[str, list[tuple[Mapping[str, str], float]]] = {}

        def complete() -> bool:
            # An earlier request would get the cached answer.
            time.sleep(max(0.0, self._scraped_at + MIN_SCRAPE_SECONDS - time.monotonic()))
            url = f"http://{self.http_address}/metrics"
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
        """Reasons in `/readyz` for not being ready; empty if it is ready."""
        return [reason for one in self._readyz()[1]["workers"] for reason in one["reasons"]]

    def _readyz(self) -> tuple[int, Any]:
        status, body = self.page("/readyz")
        return status, json.loads(body)

    def events(self) -> list[dict[str, Any]]:
        """The event log so far, including files that are being written."""
        files = sorted((self._directory / "events").glob("events-*.jsonl*"))
        lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def _end(self) -> None:
        try:
            self.process.wait(STOP_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise ProxyFailed(f"did not end on SIGTERM:\n{self.log()}") from None


Serve = Callable[..., ProxyProcess]
"""Starts a proxy that is stopped at the end of a module: see `tests/kafka/conftest.py`."""


def broker_at(proxy: ProxyProcess, node_id: int) -> Address:
    """A gateway's address for a broker."""
    (listener,) = proxy.config["listeners"]
    return Address("127.0.0.1", int(listener["broker.ports"].split("-")[0]) + node_id)


def _pump(process: subprocess.Popen[str], lines: "queue.SimpleQueue[str]") -> None:
    if process.stdout is None:
        raise AssertionError("started with a pipe")
    with process.stdout as stdout:
        for line in stdout:
            lines.put(line)
    lines.put("")


# An operator's configuration

BASE = Path(__file__).with_name("base.yaml").read_text()
SIDECAR = Path(__file__).with_name("sidecar.yaml").read_text()
"""Another listener."""


# The command line, in this process


def run(*arguments: object, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def refusal(*arguments: object, status: int = 2, stdin: str | bytes = "") -> str:
    """The error of a command that must fail, without line breaks and frames."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == status, result.output
    return " ".join(result.output.replace("│", " ").split())


def run_acls(*arguments: object, stdin: str = "") -> Result:
    return run("acls", *arguments, stdin=stdin)


def rows(result: Result) -> list[dict[str, Any]]:
    """Parse the output of a command with `--output json`."""
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found
