"""A broker over real TCP for the AdminClient: SASL and the ACL APIs, read and written by kio."""

import asyncio
import base64
import hashlib
import hmac
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self, TypeVar

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from kio.static.primitive import i32Timedelta, i64Timedelta

from proxy.admin import (
    AdminClient,
    Login,
    Scram,
)
from proxy.handlers import quotas as quota_api
from proxy.handlers.acls import answer
from proxy.wire.codec import request_type
from tests.support.acls import Shelf
from tests.support.messages import written
from tests.support.processes import PATIENCE_SECONDS
from tests.support.quotas import MemoryStore

# A broker over real TCP: SASL and the ACL APIs, its messages read and written by kio

HANDSHAKE, API_VERSIONS, AUTHENTICATE = 17, 18, 36
DESCRIBE_CLIENT_QUOTAS = 48
LARGEST_REQUEST = 104_857_600
SALT, ITERATIONS = b"salt" * 4, 4096
Body = Callable[[int, bytes], bytes | None]
"""From a version and a request's body to the response's; None: no answer."""


@dataclass(eq=False)
class Peer:
    """Its fields may be changed while it runs."""

    versions: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {
            17: (0, 1),
            18: (0, 4),
            29: (0, 3),
            30: (0, 3),
            31: (0, 3),
            36: (0, 2),
            48: (0, 1),
        }
    )
    shelf: Shelf = field(default_factory=Shelf)
    quotas: MemoryStore = field(default_factory=MemoryStore)
    rights: bool = True
    passwords: dict[str, str] | None = None
    """By user; None: nobody need log in."""
    tokens: set[str] = field(default_factory=set)
    lifetime_ms: int = 0
    handlers: dict[int, Body] = field(default_factory=dict)
    """Instead of what it does by itself, by API key."""
    handshake_errors: list[ErrorCode] = field(default_factory=list)
    """To be answered to the next handshakes, the first first."""
    lying: bool = False
    """Whether it signs as one who does not know the password."""
    correlation_shift: int = 0
    silent: set[int] = field(default_factory=set)
    """API keys whose requests are not answered."""
    requests: list[tuple[int, int]] = field(default_factory=list)
    """API key and version of each request seen."""
    connections: int = 0
    tls: ssl.SSLContext | None = None
    port: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[Any] = field(default_factory=set)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_connections()
        await asyncio.gather(*self._tasks)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def drop_connections(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def seen(self, api_key: int) -> int:
        return sum(key == api_key for key, _ in self.requests)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        self._writers.append(writer)
        self.connections += 1
        conversation = _Conversation(self)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                if size > LARGEST_REQUEST:
                    break
                frame = await reader.readexactly(size)
                key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
                at = 10 + max(length, 0)
                at += _flexible(key, version)
                self.requests.append((key, version))
                if key in self.silent:
                    continue
                body = conversation.answer(key, version, frame[at:])
                if body is None:
                    break
                header = struct.pack(">i", correlation_id + self.correlation_shift)
                if key != API_VERSIONS and _flexible(key, version):
                    header += b"\0"
                writer.write(struct.pack(">i", len(header) + len(body)) + header + body)
        writer.close()


def _flexible(api_key: int, version: int) -> bool:
    return bool(request_type(api_key, version).__flexible__)


def _read(api_key: int, version: int, body: bytes) -> Any:
    schema: Any = load_request_schema(api_key, version)
    return entity_reader(schema)(body, 0)[0]


class _Conversation:
    """One connection: who has logged in, and how far a login is."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._authenticated = peer.passwords is None
        self._mechanism = ""
        self._scram: list[str] = []
        self._refused = False

    def answer(self, key: int, version: int, body: bytes) -> bytes | None:
        if handler := self._peer.handlers.get(key):
            return handler(version, body)
        if key == API_VERSIONS:
            return self._api_versions(version)
        if key == HANDSHAKE:
            return self._handshake(_read(key, version, body).mechanism, version)
        if key == AUTHENTICATE:
            return self._authenticate(_read(key, version, body).auth_bytes, version)
        if not self._authenticated:
            return None
        rights = self._peer.rights
        if key == DESCRIBE_CLIENT_QUOTAS:
            return quota_api.answer(key, version, body, self._peer.quotas, authorized=rights)
        return answer(
            key,
            version,
            body,
            self._peer.shelf.administered(),
            may_describe=rights,
            may_alter=rights,
        )

    def _api_versions(self, version: int) -> bytes:
        known = version <= self._peer.versions[API_VERSIONS][1]
        schema: Any = load_response_schema(API_VERSIONS, version if known else 0)
        item: Any = schema.__annotations__["api_keys"].__args__[0]
        offered = self._peer.versions.items()
        fields: dict[str, Any] = {
            "error_code": ErrorCode.none if known else ErrorCode.unsupported_version,
            "api_keys": tuple(
                item(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in offered
                if known or key == API_VERSIONS
            ),
        }
        if "throttle_time" in schema.__annotations__:
            fields["throttle_time"] = i32Timedelta.parse(timedelta(0))
        return written(schema(**fields))

    def _handshake(self, mechanism: str, version: int) -> bytes:
        self._mechanism, self._scram, self._refused = mechanism, [], False
        errors = self._peer.handshake_errors
        error = errors.pop(0) if errors else ErrorCode.none
        mechanisms = ("SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
        if mechanism not in mechanisms:
            error = ErrorCode.unsupported_sasl_mechanism
        schema: Any = load_response_schema(HANDSHAKE, version)
        return written(schema(error_code=error, mechanisms=mechanisms))

    def _authenticate(self, token: bytes, version: int) -> bytes:
        said = self._oauthbearer(token) if self._mechanism == "OAUTHBEARER" else self._step(token)
        schema: Any = load_response_schema(AUTHENTICATE, version)
        error = ErrorCode.sasl_authentication_failed if said is None else ErrorCode.none
        fields: dict[str, Any] = {
            "error_code": error,
            "error_message": "refused" if said is None else "",
            "auth_bytes": said or b"",
        }
        if version:
            lifetime = timedelta(milliseconds=self._peer.lifetime_ms)
            fields["session_lifetime"] = i64Timedelta.parse(lifetime)
        return written(schema(**fields))

    def _oauthbearer(self, message: bytes) -> bytes | None:
        if self._refused:
            return None
        token = message.decode().split("auth=Bearer ")[1].split("\x01")[0]
        self._authenticated = token in self._peer.tokens
        self._refused = not self._authenticated
        return b"" if self._authenticated else b'{"status":"invalid_token"}'

    def _step(self, message: bytes) -> bytes | None:
        """RFC 5802, written apart from the implementation under test."""
        text = message.decode()
        if not self._scram:
            nonce = text.rsplit("r=", 1)[1] + "server"
            first = f"r={nonce},s={base64.b64encode(SALT).decode()},i={ITERATIONS}"
            self._scram = [text.removeprefix("n,,"), first]
            return first.encode()
        user = self._scram[0].split(",")[0].removeprefix("n=")
        bare, proof = text.rsplit(",p=", 1)
        name = "sha256" if self._mechanism.endswith("256") else "sha512"
        password = (self._peer.passwords or {}).get(user, "\0nobody")
        salted = hashlib.pbkdf2_hmac(name, password.encode(), SALT, ITERATIONS)
        signed = ",".join((*self._scram, bare)).encode()
        client_key = hmac.digest(salted, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
        expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if base64.b64decode(proof) != expected and not self._peer.lying:
            return None
        self._authenticated = True
        server_key = hmac.digest(salted, b"Server Key", name)
        return b"v=" + base64.b64encode(hmac.digest(server_key, signed, name))


@contextmanager
def in_a_thread(peer: Peer) -> Iterator[Peer]:
    """Serve in a thread of its own: the command line runs its own event loop."""
    started, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        async with peer:
            started.set()
            await asyncio.to_thread(ended.wait, 600)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(60)
        yield peer
    finally:
        ended.set()
        thread.join(60)


# A client at work against a broker that speaks the bytes that kio writes

DESCRIBE, CREATE, DELETE = 29, 30, 31
T = TypeVar("T")
ALICE = Scram(username="alice", password="alice-secret")


def against(
    peer: Peer,
    work: Callable[[AdminClient], Awaitable[T]],
    *,
    login: Login | None = None,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = PATIENCE_SECONDS,
) -> T:
    """Runs the work with a client of the peer, in a bounded time."""

    async def run() -> T:
        async with (
            asyncio.timeout(2 * PATIENCE_SECONDS),
            peer,
            AdminClient(
                peer.address, login=login, ssl_context=tls, request_timeout_s=timeout_s
            ) as client,
        ):
            return await work(client)

    return asyncio.run(run())
