"""Environment of the demo: processes and their reports, files, ports, keys, the configuration."""

import json
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import jwt
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from proxy.demo.broker import BROKERS

PAYMENTS: Final = "payments"
"""Client with OAUTHBEARER that re-authenticates."""
ORDERS: Final = "orders"
"""Client with SCRAM that re-authenticates."""
LEDGER: Final = "ledger"
"""Client with SCRAM that is too old to re-authenticate."""
INTRUDER: Final = "intruder"
"""Client with OAUTHBEARER whose tokens are signed by an unknown key."""

SESSION_MS: Final = 10_000
"""The demo's `connections.max.reauth.ms`; an hour would be usual."""
ISSUER: Final = "https://identity.demo"
AUDIENCE: Final = "kafka"
KEY_ID: Final = "demo"
_HOST: Final = "127.0.0.1"
_PORTS: Final = range(20_000, 32_000)
"""Ports below those of outgoing connections in Linux (ip_local_port_range)."""
_COMMAND_SECONDS: Final = 120.0
"""Timeout of a command in seconds."""
_POLL_SECONDS: Final = 0.05
"""Seconds between two checks whether a process has written a line."""


class DemoFailed(Exception):
    """A part of the demo failed; the text names the log to read."""


class Program:
    """Python module as a process.

    It has a session of its own, so it gets no signals from the terminal. Its stdin is a pipe that
    ends with the demo, which stops brokers and clients; the proxy is stopped by SIGTERM. Its stdout
    is a file beside its log.
    """

    def __init__(self, name: str, module: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._out = log.with_suffix(".out")
        with log.open("wb") as errors, self._out.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )

    def _lines(self) -> list[str]:
        *whole, _ = self._out.read_text().split("\n")
        return whole

    @property
    def last_line(self) -> str | None:
        """The latest line on its stdout; None if it has written none."""
        return lines[-1] if (lines := self._lines()) else None

    @property
    def running(self) -> bool:
        """True if it has not ended."""
        return self._process.poll() is None

    def wait_for_line(self, within: float) -> str:
        """Return its first line on stdout. Raises DemoFailed after `within` seconds without one."""
        deadline = time.monotonic() + within
        while True:
            may_write = self.running and time.monotonic() < deadline
            if lines := self._lines():
                return lines[0]
            if not may_write:
                raise DemoFailed(f"the {self.name} did not start, see {self.log}")
            time.sleep(_POLL_SECONDS)

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
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        finally:
            self.ask_to_stop()  # closes the pipe
        return True


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Make a private key, and write it to a file that only its owner can read."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key


def write_jwks(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write the public half of a key (RFC 7517)."""
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    path.write_text(json.dumps({"keys": [{**public, "kid": KEY_ID, "use": "sig"}]}))


@dataclass(slots=True, kw_only=True)
class Report:
    """Report of a client about its own traffic."""

    delivered: int = 0
    """Number of messages that the broker has acknowledged."""
    undelivered: int = 0
    """Number of messages that could not be delivered."""
    received: int = 0
    """Number of messages read back, each counted once."""
    out_of_order: int = 0
    """Number of messages that were read twice, or after a later one of their partition."""
    connections_lost: int = 0
    """Number of connections that the client did not close itself."""
    refused: int = 0
    """Number of authentications that the proxy refused."""
    errors: list[str] = field(default_factory=list)
    """The last five errors, as the client library words them."""

    def add_error(self, text: str) -> None:
        """Keep an error."""
        self.errors = [*self.errors[-4:], text]

    def send(self) -> None:
        """Write the report as one line to stdout."""
        print(json.dumps(asdict(self)), flush=True)


def read_report(line: str) -> Report:
    """Parse the line that `send` wrote."""
    return Report(**json.loads(line))


class Environment:
    """Directory and ports of one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        """The directory of all files of the run."""
        self._first_port = free_ports(BROKERS + 3)
        """The first port: of broker id 0; the listener's, and that of the metrics, come last."""
        self.bootstrap = f"{_HOST}:{self._first_port + BROKERS + 1}"
        """The address that clients connect to."""
        self.http = f"{_HOST}:{self._first_port + BROKERS + 2}"
        """The address of the status page and the metrics."""
        self.config = directory / "proxy.yaml"
        self.events = directory / "events"
        self.metrics = directory / "metrics.txt"
        self.key = directory / "identity.pem"
        """The identity provider's private key."""
        self.unknown_key = directory / "unknown.pem"
        """A private key that is not in the JWKS."""

    def password(self, user: str) -> Path:
        """Return the file with a user's password."""
        return self.directory / f"{user}.password"

    def set_up(self, upstream: str) -> None:
        """Write all files that the programs need; `upstream` has the brokers' addresses."""
        write_jwks(self.directory / "jwks.json", write_key(self.key))
        write_key(self.unknown_key)
        self.config.write_text(yaml.safe_dump(self._settings(upstream), sort_keys=False))
        for user in (ORDERS, LEDGER):
            file = self.password(user)
            file.touch(mode=0o600)
            file.write_text(secrets.token_urlsafe())
            self._add_user(user, file)

    def save_metrics(self) -> None:
        """Save the proxy's metrics as they are now."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=_COMMAND_SECONDS) as now:
            self.metrics.write_bytes(now.read())

    def clear_secrets(self) -> None:
        """Remove keys and passwords; all other files stay."""
        for pattern in ("*.pem", "*.password"):
            for file in self.directory.glob(pattern):
                file.unlink()

    def _settings(self, upstream: str) -> dict[str, object]:
        first = self._first_port
        clients = {
            "name": "clients",
            "address": self.bootstrap,
            "routing": "gateway",
            "advertised.host": _HOST,
            "broker.ports": f"{first}-{first + BROKERS}",
            "sasl.enabled.mechanisms": ["OAUTHBEARER", "SCRAM-SHA-256"],
            "connections.max.reauth.ms": SESSION_MS,
            "reauth.enforcement": "auto",
            "reauth.overrides": [{"principal": f"User:{LEDGER}", "reauth.enforcement": "enforce"}],
            "sasl.oauthbearer.jwks.endpoint.url": "file:jwks.json",
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
        }
        return {
            "upstream": {"bootstrap.servers": upstream.split(",")},
            "listeners": [clients],
            "auto": {"reauthentications": 2, "window.ms": SESSION_MS // 2},
            "events": {"directory": "events"},
            "http": {"address": self.http},
            "shutdown.drain.ms": 1_000,
        }

    def _add_user(self, user: str, password: Path) -> None:
        words = ["users", "add", user, "--mechanism", "SCRAM-SHA-256"]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "proxy",
                *words,
                "--password-file",
                password,
                "--config",
                self.config,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
        )
        if done.returncode:
            raise DemoFailed(f"users add {user}: {done.stderr.strip()}")


def free_ports(count: int) -> int:
    """Return the first of `count` unused ports in a row."""
    for _ in range(100):
        first = random.choice(_PORTS[:-count])  # noqa: S311 - not a secret
        if all(map(_is_free, range(first, first + count))):
            return first
    raise DemoFailed(f"no {count} free ports in a row between {_PORTS[0]} and {_PORTS[-1]}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True
