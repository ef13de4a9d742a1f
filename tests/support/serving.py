"""A proxy that runs: as a child process with its signals and log, or in the test's event loop."""

import asyncio
import json
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

import yaml
from aiohttp import ClientSession, ClientTimeout

from proxy.wire.apis import API_VERSIONS, METADATA
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from sasl.oauthbearer_messages import client_initial_response
from tests.support.fake_broker import FakeBroker
from tests.support.frames import handshake, read_authenticated, request
from tests.support.processes import free_ports
from tests.support.relay import read_frame
from tests.support.sasl import claims, document, ed_key, token

# A proxy as an operator runs it: `python -m proxy serve`, with its signals and its log

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


# A proxy that really runs, with a broker and clients in the test's event loop

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
    """A proxy of several workers, its broker and its clients."""

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
        """Log in; with `version` 0 as a client that knows nothing of lifetimes."""
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
        """Have one request relayed."""
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
async def running(directory: Path, workers: int = 2) -> AsyncIterator[Proxy]:
    """Start all; end all."""
    async with FakeBroker() as broker:
        proxy = Proxy(directory, workers, broker)
        try:
            await asyncio.to_thread(proxy.start)
            await proxy.until(proxy.is_ready)
            yield proxy
        finally:
            for client in proxy.clients:
                client.writer.close()
            await asyncio.to_thread(proxy.stop)
