"""Environment of the demo: a directory, ports, keys, passwords, the configuration."""

import random
import secrets
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from proxy.demo import identity
from proxy.demo.broker import BROKERS
from proxy.demo.processes import DemoFailed
from proxy.demo.verdict import LEDGER, ORDERS

SESSION_MS: Final = 10_000
"""The demo's `connections.max.reauth.ms`; an hour would be usual."""
_HOST: Final = "127.0.0.1"
_PORTS: Final = range(20_000, 32_000)
"""Ports below those of outgoing connections in Linux (ip_local_port_range)."""
_COMMAND_SECONDS: Final = 120.0
"""Timeout of a command in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Directory and ports of one run."""

    directory: Path
    """The directory of all files of the run."""
    first_port: int
    """The first port: of broker id 0; after those of the brokers come the listener's, and that of
    the metrics."""

    @property
    def bootstrap(self) -> str:
        """Address that clients connect to."""
        return f"{_HOST}:{self.first_port + BROKERS + 1}"

    @property
    def http(self) -> str:
        """Address of the proxy's metrics."""
        return f"{_HOST}:{self.first_port + BROKERS + 2}"

    @property
    def config(self) -> Path:
        """The proxy's configuration file."""
        return self.directory / "proxy.yaml"

    @property
    def events(self) -> Path:
        """The directory of the event log."""
        return self.directory / "events"

    @property
    def key(self) -> Path:
        """The identity provider's private key."""
        return self.directory / "identity.pem"

    @property
    def unknown_key(self) -> Path:
        """A private key that is not in the JWKS."""
        return self.directory / "unknown.pem"

    def password(self, user: str) -> Path:
        """The file with a user's password."""
        return self.directory / f"{user}.password"

    def log(self, name: str) -> Path:
        """Return the file that receives a program's stderr."""
        return self.directory / f"{name}.log"

    def set_up(self, upstream: str) -> None:
        """Write all files that the programs need; `upstream` has the brokers' addresses."""
        identity.write_jwks(self.directory / "jwks.json", identity.write_key(self.key))
        identity.write_key(self.unknown_key)
        self.config.write_text(yaml.safe_dump(self._settings(upstream), sort_keys=False))
        for user in (ORDERS, LEDGER):
            file = self.password(user)
            file.touch(mode=0o600)
            file.write_text(secrets.token_urlsafe())
            self._add_user(user, file)

    def clear_secrets(self) -> None:
        """Remove keys and passwords; all other files stay."""
        for pattern in ("*.pem", "*.password"):
            for file in self.directory.glob(pattern):
                file.unlink()

    def _settings(self, upstream: str) -> dict[str, object]:
        first = self.first_port
        clients = {
            "name": "clients",
            "address": self.bootstrap,
            "routing": "gateway",
            "advertised.host": _HOST,
            "broker.ports": f"{first}-{first + BROKERS}",
            "sasl.enabled.mechanisms": ["OAUTHBEARER", "SCRAM-SHA-256"],
            "connections.max.reauth.ms": SESSION_MS,
            "reauth.enforcement": "enforce",
            "sasl.oauthbearer.jwks.endpoint.url": "file:jwks.json",
            "sasl.oauthbearer.expected.audience": identity.AUDIENCE,
            "sasl.oauthbearer.expected.issuer": identity.ISSUER,
        }
        return {
            "upstream": {"bootstrap.servers": upstream.split(",")},
            "listeners": [clients],
            "events": {"directory": "events"},
            "http": {"address": self.http},
            "shutdown.drain.ms": 1_000,
        }

    def _add_user(self, user: str, password: Path) -> None:
        command = [sys.executable, "-m", "proxy", "users", "add", user]
        options = ["--mechanism", "SCRAM-SHA-256", "--password-file", str(password)]
        done = subprocess.run(
            [*command, *options, "--config", str(self.config)],
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
