"""Fake brokers over real TCP: a correct one, one with SASL and ACLs, and a faulty one.

python -m tests.support.fake_broker ID=HOST:PORT …: honest ones until stdin ends
"""

import asyncio
import base64
import hashlib
import hmac
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from proxy.admin import AdminClient, Login, Scram
from proxy.handlers import quotas as quota_api
from proxy.handlers.acls import answer as answer_about_acls
from proxy.wire.api_versions import FIRST_WITH_IDS
from proxy.wire.apis import API_VERSIONS, DESCRIBE_CLIENT_QUOTAS, METADATA
from proxy.wire.error_codes import ErrorCode
from proxy.wire.primitives import write_uvarint
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.support import messages
from tests.support.acls import MemoryAclStore, whole
from tests.support.frames import response
from tests.support.kio_messages import request_type
from tests.support.messages import written
from tests.support.processes import PATIENCE_SECONDS, Namespace, free_ports
from tests.support.quotas import MemoryStore

LARGEST_REQUEST = 104_857_600

Body = Callable[[int, bytes], bytes | None]
"""Maps version and request body to a response body; None closes the connection."""
Respond = Callable[[int, int, bytes], bytes | None]
"""The same, with the API key first."""


@dataclass(eq=False)
class FakeBroker:
    """Answers ApiVersions and Metadata; its fields may be changed while it runs."""

    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    versions: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {3: (0, 13), 18: (0, 4), 1: (4, 17)}
    )
    cluster_id: str = "c1"
    node_id: int | None = None
    """Its id, checked in ApiVersions v5 (KIP-1242); None to skip the check."""
    answer: bytes | None = None
    """Bytes to send instead of a response before the connection is closed."""
    silent: bool = False
    requests: list[tuple[int, int]] = field(default_factory=list)
    """API key and version of each request seen."""
    correlation_shift: int = 0
    connections: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    tls: ssl.SSLContext | None = None
    _server: asyncio.Server | None = None
    _tasks: set["asyncio.Task[None] | None"] = field(default_factory=set)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_connections()
        await asyncio.gather(*(task for task in self._tasks if task))

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
        respond = self._accepted()
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                if size > LARGEST_REQUEST:
                    break
                frame = await reader.readexactly(size)
                key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
                self.requests.append((key, version))
                if self._is_silent(key):
                    continue
                if self.answer is not None:
                    writer.write(self.answer)
                    break
                flexible = bool(request_type(key, version).__flexible__)
                body = respond(key, version, frame[10 + max(length, 0) + flexible :])
                if body is None:
                    break
                tags = b"\0" if flexible and key != API_VERSIONS else b""
                writer.write(response(correlation_id + self.correlation_shift, tags + body))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def _accepted(self) -> Respond:
        """Handler for the requests of a new connection."""
        return self.respond

    def _is_silent(self, _api_key: int) -> bool:
        return self.silent

    def respond(self, api_key: int, version: int, body: bytes) -> bytes | None:
        if api_key == METADATA:
            return self._metadata(version)
        return self.offer(version) if self._is_meant(version, body) else self._misrouted(version)

    def _is_meant(self, version: int, body: bytes) -> bool:
        if self.node_id is None or not FIRST_WITH_IDS <= version <= self.versions[API_VERSIONS][1]:
            return True
        meant = messages.read_request(API_VERSIONS, version, body)
        assert (meant.cluster_id is None) == (meant.node_id == -1), "Kafka says INVALID_REQUEST"
        here = self.cluster_id, self.node_id
        return meant.cluster_id is None or (meant.cluster_id, meant.node_id) == here

    def _misrouted(self, version: int) -> bytes:
        error = ErrorCode.REBOOTSTRAP_REQUIRED
        return written(messages.response(API_VERSIONS, version, error_code=error))

    def offer(self, version: int) -> bytes:
        """The body of the answer to ApiVersions."""
        known = version <= self.versions[API_VERSIONS][1]
        offered = [
            {"api_key": key, "min_version": low, "max_version": high}
            for key, (low, high) in self.versions.items()
            if known or key == API_VERSIONS
        ]
        error = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION
        shown = version if known else 0
        return written(messages.response(API_VERSIONS, shown, error_code=error, api_keys=offered))

    def _metadata(self, version: int) -> bytes:
        brokers = [
            {"node_id": id_, "host": host, "port": port, "rack": "r1"}
            for id_, (host, port) in self.brokers.items()
        ]
        return written(
            messages.response(
                METADATA, version, brokers=brokers, cluster_id=self.cluster_id, controller_id=1
            )
        )


@dataclass(eq=False)
class WantsLogin(FakeBroker):
    """Like Kafka's SASL listeners: answers ApiVersions and SaslHandshake, closes on the rest."""

    mechanisms: tuple[str, ...] = ("SCRAM-SHA-512", "PLAIN")

    def respond(self, api_key: int, version: int, body: bytes) -> bytes | None:
        if api_key == SASL_HANDSHAKE:
            error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            names = self.mechanisms
            return written(messages.response(17, version, error_code=error, mechanisms=names))
        return super().respond(api_key, version, body) if api_key == API_VERSIONS else None

    def __post_init__(self) -> None:
        self.versions[SASL_HANDSHAKE] = (0, 1)


async def main(arguments: list[str]) -> None:
    """Run brokers that each list only themselves."""
    async with AsyncExitStack() as stack:
        for argument in arguments:
            broker_id, _, address = argument.partition("=")
            host, _, port = address.rpartition(":")
            broker = FakeBroker(brokers={int(broker_id): (host, int(port))})
            broker.host, broker.port = host, int(port)
            await stack.enter_async_context(broker)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


# A broker that an AdminClient can log in to, with ACLs and quotas

SALT, ITERATIONS = b"salt" * 4, 4096


@contextmanager
def running_in(there: Namespace, brokers: Mapping[int, str]) -> Iterator[None]:
    """Run correct brokers in a namespace; `brokers` is HOST:PORT by id."""
    named = [f"{broker_id}={address}" for broker_id, address in brokers.items()]
    started = subprocess.Popen(
        [*there.prefix, sys.executable, "-m", "tests.support.fake_broker", *named],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        assert started.stdout is not None
        assert started.stdin is not None
        try:
            assert started.stdout.readline() == "ready\n"
            yield
        finally:
            started.stdin.close()


@dataclass(eq=False)
class Peer(FakeBroker):
    """A broker with SASL and the ACL and quota APIs."""

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
    silent: set[int] = field(default_factory=set)  # type: ignore[assignment]  # by API
    """API keys whose requests are not answered."""
    acl_store: MemoryAclStore = field(default_factory=MemoryAclStore)
    quotas: MemoryStore = field(default_factory=MemoryStore)
    rights: bool = True
    passwords: dict[str, str] | None = None
    """Passwords by user; None if no login is required."""
    tokens: set[str] = field(default_factory=set)
    lifetime_ms: int = 0
    handlers: dict[int, Body] = field(default_factory=dict)
    """Overrides by API key."""
    handshake_errors: list[ErrorCode] = field(default_factory=list)
    """Error codes for the next handshakes, in order."""
    lying: bool = False
    """Whether it signs without knowing the password."""

    def _accepted(self) -> Respond:
        return _Conversation(self).answer

    def _is_silent(self, api_key: int) -> bool:
        return api_key in self.silent


class _Conversation:
    """One connection and the state of its login."""

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
            return self._peer.offer(version)
        if key == SASL_HANDSHAKE:
            return self._handshake(messages.read_request(key, version, body).mechanism, version)
        if key == SASL_AUTHENTICATE:
            return self._authenticate(messages.read_request(key, version, body).auth_bytes, version)
        if not self._authenticated:
            return None
        rights = self._peer.rights
        if key == DESCRIBE_CLIENT_QUOTAS:
            return quota_api.answer(key, version, body, self._peer.quotas, authorized=rights)
        acls = self._peer.acl_store.administered()
        found = answer_about_acls(key, version, body, acls, authorized=rights)
        return whole(found)

    def _handshake(self, mechanism: str, version: int) -> bytes:
        self._mechanism, self._scram, self._refused = mechanism, [], False
        errors = self._peer.handshake_errors
        error = errors.pop(0) if errors else ErrorCode.NONE
        mechanisms = ("SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
        if mechanism not in mechanisms:
            error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return written(
            messages.response(SASL_HANDSHAKE, version, error_code=error, mechanisms=mechanisms)
        )

    def _authenticate(self, token: bytes, version: int) -> bytes:
        said = self._oauthbearer(token) if self._mechanism == "OAUTHBEARER" else self._step(token)
        answer = messages.response(
            SASL_AUTHENTICATE,
            version,
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED if said is None else ErrorCode.NONE,
            error_message="refused" if said is None else "",
            auth_bytes=said or b"",
            session_lifetime=self._peer.lifetime_ms,
        )
        return written(answer)

    def _oauthbearer(self, message: bytes) -> bytes | None:
        if self._refused:
            return None
        token = message.decode().split("auth=Bearer ")[1].split("\x01")[0]
        self._authenticated = token in self._peer.tokens
        self._refused = not self._authenticated
        return b"" if self._authenticated else b'{"status":"invalid_token"}'

    def _step(self, message: bytes) -> bytes | None:
        """RFC 5802, independent of the implementation under test."""
        text = message.decode()
        if not self._scram:
            nonce = text.split(",r=")[1].split(",")[0] + "server"
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


B = TypeVar("B", bound=FakeBroker)


@contextmanager
def in_a_thread(peer: B) -> Iterator[B]:
    """Serve in a thread, because the command line runs its own event loop."""
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


# A client and a broker that uses kio's encoding

DESCRIBE, CREATE, DELETE = 29, 30, 31
T = TypeVar("T")
ALICE = Scram(username="alice", password="alice-secret")


@asynccontextmanager
async def against(
    peer: Peer,
    *,
    login: Login | None = None,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = PATIENCE_SECONDS,
) -> AsyncIterator[AdminClient]:
    """A client of the peer."""
    async with (
        asyncio.timeout(2 * PATIENCE_SECONDS),
        peer,
        AdminClient(
            peer.address, login=login, ssl_context=tls, request_timeout_s=timeout_s
        ) as client,
    ):
        yield client


# A broker that may lie during logins, and its record of the messages it received

NAME, PASSWORD = "gate", "gate-secret,=1"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
ECHO = b"echo"
_VERSIONS = {0: (3, 12), 1: (4, 17), 3: (0, 13), 17: (0, 1), 18: (0, 4), 36: (0, 2)}


@dataclass(frozen=True)
class Answer:
    """Response to a SaslAuthenticate."""

    token: bytes = b""
    error_code: int = 0
    message: str | None = None
    lifetime_ms: int = 0

    def body(self, version: int) -> bytes:
        """Response body of that version, from v1, with any lifetime."""
        text = None if self.message is None else self.message.encode()
        lifetime = struct.pack(">q", self.lifetime_ms)
        error = struct.pack(">h", self.error_code)
        if version >= 2:
            return b"\0" + error + _compact(text) + _compact(self.token) + lifetime + b"\0"
        shown = b"\xff\xff" if text is None else struct.pack(">h", len(text)) + text
        return error + shown + struct.pack(">i", len(self.token)) + self.token + lifetime


def _compact(data: bytes | None) -> bytes:
    return b"\0" if data is None else write_uvarint(len(data) + 1) + data


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


class Behaviour:
    """A correct broker's behaviour on one connection; subclasses lie.

    Each method returns bytes to send as they are.
    """

    lifetime_ms = 0

    def __init__(self) -> None:
        self.logins = 0
        self.rounds = 0
        """Number of SaslAuthenticate requests of the current login."""
        self._first = self._server_first = b""

    def handshake(self, number: int) -> bytes:
        """Response to SaslHandshake."""
        self.rounds = 0
        return response(
            number, written(messages.response(SASL_HANDSHAKE, 1, mechanisms=MECHANISMS))
        )

    def authenticate(self, number: int, version: int, token: bytes) -> bytes:
        """Response to SaslAuthenticate."""
        self.rounds += 1
        return response(number, self.judge(token).body(version))

    def judge(self, token: bytes) -> Answer:
        """A correct broker's answer for each mechanism."""
        if token.startswith(b"n,,\x01auth=Bearer ") or token == f"\0{NAME}\0{PASSWORD}".encode():
            return self.let_in()
        if token.startswith(b"n,,n="):
            return self.challenge(token)
        if token.startswith(b"c="):
            return self.let_in(b"v=" + base64.b64encode(self.signature(token)))
        return Answer(error_code=58, message="Authentication failed")

    def let_in(self, token: bytes = b"") -> Answer:
        """The login is complete."""
        self.logins += 1
        return Answer(token, lifetime_ms=self.lifetime_ms)

    def challenge(self, first: bytes) -> Answer:
        """Response to SCRAM's first message."""
        self._first = first.removeprefix(b"n,,")
        self._server_first = self.server_first(self._first.partition(b",r=")[2])
        return Answer(self._server_first)

    def server_first(self, nonce: bytes) -> bytes:
        """SCRAM's challenge."""
        return b"r=%bbroker,s=%b,i=%d" % (nonce, base64.b64encode(SALT), ITERATIONS)

    def signature(self, final: bytes) -> bytes:
        """The broker's proof that it knows the password (RFC 5802 section 3)."""
        salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), SALT, ITERATIONS)
        signed = b",".join((self._first, self._server_first, final.partition(b",p=")[0]))
        return _mac(_mac(salted, b"Server Key"), signed)

    def request(self, number: int) -> bytes:
        """Response to any other request."""
        return response(number, ECHO)


@dataclass(eq=False)
class Met:
    """One connection, as seen by the broker."""

    received: bytearray = field(default_factory=bytearray)
    keys: list[int] = field(default_factory=list)
    """API keys of the requests."""
    behaviour: Behaviour = field(default_factory=Behaviour)


class FalseBroker:
    """A broker that may lie. Connections that begin with ApiVersions are the proxy's own."""

    def __init__(self) -> None:
        (port,) = free_ports(1)
        self._accepting = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{port}"
        self.relayed: type[Behaviour] = Behaviour
        """Behaviour on connections for clients."""
        self.asked: type[Behaviour] = Behaviour
        """Behaviour on the proxy's own connections."""
        self.met: list[Met] = []
        """Connections for clients that have sent something."""
        self._sockets: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # close() alone would leave the threads blocked.
        for each in (self._accepting, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._accepting.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._accepting.accept()
            except OSError:
                return
            self._sockets.add(near)
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            self._converse(near)
        self._sockets.discard(near)

    def _converse(self, near: socket.socket) -> None:
        met = Met()
        frame = _read_frame(near)
        is_ours = frame[:2] == struct.pack(">h", API_VERSIONS)
        met.behaviour = self.asked() if is_ours else self.relayed()
        if not is_ours:
            self.met.append(met)
        while frame:
            met.received += frame
            met.keys.append(struct.unpack_from(">h", frame)[0])
            near.sendall(_answer(met.behaviour, frame))
            frame = _read_frame(near)


def _read_frame(near: socket.socket) -> bytes:
    """Read the next frame; empty at the end."""
    size = near.recv(4, socket.MSG_WAITALL)
    return near.recv(int.from_bytes(size), socket.MSG_WAITALL) if len(size) == 4 else b""


def _answer(behaviour: Behaviour, frame: bytes) -> bytes:
    api_key, version, number = struct.unpack_from(">hhi", frame)
    if api_key == API_VERSIONS:
        return response(number, FakeBroker(versions=_VERSIONS).offer(version))
    if api_key == SASL_HANDSHAKE:
        return behaviour.handshake(number)
    if api_key == SASL_AUTHENTICATE:
        return behaviour.authenticate(number, version, _token(version, frame))
    return behaviour.request(number)


def _token(version: int, frame: bytes) -> bytes:
    (name_size,) = struct.unpack_from(">h", frame, 8)
    body = frame[10 + name_size + (version >= 2) :]
    found: bytes = messages.read_request(SASL_AUTHENTICATE, version, body).auth_bytes
    return found


# Answers of a false broker to the proxy's login: all honest except one


TOKEN = "a.token.of.the.proxys"
FORGED = "ERROR forged"
ESCAPES = f"\x1b]0;owned\x07\x1b[2J\r\n{FORGED} line\u202e\u2028"
"""What a terminal might obey."""


# A whole proxy in front of a false broker, as a child process: memory and log are the real ones.
#
# Its clients need no login of their own


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
