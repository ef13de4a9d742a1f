"""A broker that may lie to whoever logs in to it, its lies, and a whole proxy in front of it."""

import base64
import hashlib
import hmac
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from proxy.wire.apis import API_VERSIONS
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.support.fake_broker import FakeBroker
from tests.support.frames import produce, response
from tests.support.kafka.proxy import ProxyProcess
from tests.support.kafka.wire_client import Outcome, WireClient
from tests.support.processes import free_ports

# A broker that may lie to whoever logs in to it, and what it was sent meanwhile

NAME, PASSWORD = "gate", "gate-secret,=1"
SALT, ITERATIONS = b"salt of the broker", 4_096
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
ECHO = b"echo"
_VERSIONS = {0: (3, 12), 1: (4, 17), 3: (0, 13), 17: (0, 1), 18: (0, 4), 36: (0, 2)}


@dataclass(frozen=True)
class Answer:
    """To a SaslAuthenticate."""

    token: bytes = b""
    error_code: int = 0
    message: str | None = None
    lifetime_ms: int = 0

    def body(self, version: int) -> bytes:
        """As a response of that version, from v1 on, has it."""
        text = None if self.message is None else self.message.encode()
        lifetime = struct.pack(">q", self.lifetime_ms)
        error = struct.pack(">h", self.error_code)
        if version >= 2:
            return b"\0" + error + _compact(text) + _compact(self.token) + lifetime + b"\0"
        written = b"\xff\xff" if text is None else struct.pack(">h", len(text)) + text
        return error + written + struct.pack(">i", len(self.token)) + self.token + lifetime


def _compact(data: bytes | None) -> bytes:
    length, written = 0 if data is None else len(data) + 1, b""
    while length > 0x7F:
        written += bytes([length & 0x7F | 0x80])
        length >>= 7
    return written + bytes([length]) + (data or b"")


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


class Behaviour:
    """An honest broker's, on one connection; a lie overrides a method.

    Each method returns bytes to send as they are; `HangupError` may be raised instead.
    """

    lifetime_ms = 0

    def __init__(self) -> None:
        self.logins = 0
        self.rounds = 0
        """SaslAuthenticate requests of the present login."""
        self._first = self._server_first = b""

    def greet(self) -> bytes:
        """Before anything was asked."""
        return b""

    def handshake(self, number: int) -> bytes:
        """To SaslHandshake."""
        self.rounds = 0
        names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in MECHANISMS)
        return response(number, struct.pack(">hi", 0, len(MECHANISMS)) + names)

    def authenticate(self, number: int, version: int, token: bytes) -> bytes:
        """To SaslAuthenticate."""
        self.rounds += 1
        return response(number, self.judge(token).body(version))

    def judge(self, token: bytes) -> Answer:
        """What an honest broker would say, of each mechanism."""
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
        """To SCRAM's first message."""
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
        """To anything else."""
        return response(number, ECHO)


class HangupError(Exception):
    """The broker closes the connection."""


@dataclass(eq=False)
class Met:
    """One connection, as the broker saw it."""

    received: bytearray = field(default_factory=bytearray)
    keys: list[int] = field(default_factory=list)
    """API keys of the requests."""
    behaviour: Behaviour = field(default_factory=Behaviour)


class FalseBroker:
    """Listens until it is left. The proxy's own questions begin with ApiVersions."""

    def __init__(self) -> None:
        (port,) = free_ports(1)
        self._accepting = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{port}"
        self.relayed: type[Behaviour] = Behaviour
        """How connections are treated that clients wait for."""
        self.asked: type[Behaviour] = Behaviour
        """How those are that the proxy makes for itself."""
        self.met: list[Met] = []
        """Connections of the first kind, which have sent something."""
        self._sockets: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Closing alone would leave the threads in their calls.
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
        with near, suppress(OSError, HangupError):
            self._converse(near)
        self._sockets.discard(near)

    def _converse(self, near: socket.socket) -> None:
        met = Met()
        frame = _read(near)
        is_ours = frame[:2] == struct.pack(">h", API_VERSIONS)
        met.behaviour = self.asked() if is_ours else self.relayed()
        if not is_ours:
            self.met.append(met)
        near.sendall(met.behaviour.greet())
        while frame:
            met.received += frame
            met.keys.append(struct.unpack_from(">h", frame)[0])
            near.sendall(_answer(met.behaviour, frame))
            frame = _read(near)


def _read(near: socket.socket) -> bytes:
    """The next frame; empty: there is none."""
    size = near.recv(4, socket.MSG_WAITALL)
    return near.recv(int.from_bytes(size), socket.MSG_WAITALL) if len(size) == 4 else b""


def _answer(behaviour: Behaviour, frame: bytes) -> bytes:
    api_key, version, number = struct.unpack_from(">hhi", frame)
    if api_key == API_VERSIONS:
        content = FakeBroker(versions=_VERSIONS)._respond(api_key, version, number)
        return struct.pack(">i", len(content)) + content
    if api_key == SASL_HANDSHAKE:
        return behaviour.handshake(number)
    if api_key == SASL_AUTHENTICATE:
        return behaviour.authenticate(number, version, _token(version, frame))
    return behaviour.request(number)


def _token(version: int, frame: bytes) -> bytes:
    (name_size,) = struct.unpack_from(">h", frame, 8)
    at = 10 + name_size
    if version < 2:
        return frame[at + 4 :]
    at += 1  # no tags in the header
    while frame[at] >= 0x80:
        at += 1
    return frame[at + 1 : -1]


# What a false broker says to the proxy's login: honest each time, but for one lie

# ruff: noqa: ARG002 - who lies need not listen


TOKEN = "a.token.of.the.proxys"
FORGED = "ERROR forged"
ESCAPES = f"\x1b]0;owned\x07\x1b[2J\r\n{FORGED} line\u202e\u2028"
"""What a terminal might obey."""
LAST = 1_000_000
"""Correlation id of a request that is not answered."""


class OneIteration(Behaviour):
    def server_first(self, nonce: bytes) -> bytes:
        return super().server_first(nonce).replace(b"i=%d" % ITERATIONS, b"i=1")


class TenMillionIterations(Behaviour):
    def server_first(self, nonce: bytes) -> bytes:
        return super().server_first(nonce).replace(b"i=%d" % ITERATIONS, b"i=10000000")


class ManyDigits(Behaviour):
    def server_first(self, nonce: bytes) -> bytes:
        return super().server_first(nonce).replace(b"i=%d" % ITERATIONS, b"i=" + b"9" * 200_000)


class OtherNonce(Behaviour):
    def server_first(self, nonce: bytes) -> bytes:
        return super().server_first(b"x" * len(nonce))


class NonceOfTheClientAlone(Behaviour):
    def server_first(self, nonce: bytes) -> bytes:
        return super().server_first(nonce).replace(b"broker", b"")


class WrongSignature(Behaviour):
    def signature(self, final: bytes) -> bytes:
        return super().signature(final)[::-1]


class ShortSignature(Behaviour):
    def signature(self, final: bytes) -> bytes:
        return super().signature(final)[:4]


class NoSignature(Behaviour):
    def let_in(self, token: bytes = b"") -> Answer:
        return super().let_in()


class NoChallenge(Behaviour):
    def challenge(self, first: bytes) -> Answer:
        return self.let_in()


class SignatureInsteadOfAChallenge(Behaviour):
    def challenge(self, first: bytes) -> Answer:
        return self.let_in(b"v=" + base64.b64encode(bytes(32)))


class TellsAnError(Behaviour):
    def let_in(self, token: bytes = b"") -> Answer:
        return super().let_in(b"e=other-error")


class EndlessChallenges(Behaviour):
    def judge(self, token: bytes) -> Answer:
        return self.challenge(token) if token.startswith(b"n,,n=") else Answer(b"and now?")


class GoesOn(Behaviour):
    def let_in(self, token: bytes = b"") -> Answer:
        return Answer(b"and now?")


class Refuses(Behaviour):
    def judge(self, token: bytes) -> Answer:
        return Answer(error_code=58, message=f"{ESCAPES}{PASSWORD} {TOKEN}")


class RefusesInOtherWords(Behaviour):
    def judge(self, token: bytes) -> Answer:
        return Answer(error_code=58, message=f"refused at {time.monotonic_ns()}")


class UnknownError(Behaviour):
    def judge(self, token: bytes) -> Answer:
        return Answer(error_code=-1)


class RefusesTheMechanism(Behaviour):
    def handshake(self, number: int) -> bytes:
        name = ESCAPES.encode()
        names = struct.pack(">h", len(name)) + name
        return response(number, struct.pack(">hi", 33, 1) + names)


class ClaimsManyMechanisms(Behaviour):
    def handshake(self, number: int) -> bytes:
        return response(number, struct.pack(">hi", 33, 2**31 - 1))


class SaysHalf(Behaviour):
    def authenticate(self, number: int, version: int, token: bytes) -> bytes:
        return super().authenticate(number, version, token)[:-9]


class SaysNothing(Behaviour):
    def authenticate(self, number: int, version: int, token: bytes) -> bytes:
        return b""


class ClaimsAHundredMegabytes(Behaviour):
    def handshake(self, number: int) -> bytes:
        return response(number, bytes(100_000_000))[:1_000]


class HangsUp(Behaviour):
    def handshake(self, number: int) -> bytes:
        raise HangupError


class HalfABody(Behaviour):
    def authenticate(self, number: int, version: int, token: bytes) -> bytes:
        return response(number, self.judge(token).body(version)[:3])


class NegativeSize(Behaviour):
    def handshake(self, number: int) -> bytes:
        return struct.pack(">ii", -5, number)


class HundredMegabytes(Behaviour):
    def authenticate(self, number: int, version: int, token: bytes) -> bytes:
        return response(number, bytes(100_000_000))


class SixtyMegabytes(Behaviour):
    """Less than an answer to Metadata may have."""

    def authenticate(self, number: int, version: int, token: bytes) -> bytes:
        return response(number, b"\1" * 60_000_000)


class HundredMegabytesOfMechanisms(Behaviour):
    def handshake(self, number: int) -> bytes:
        return response(number, struct.pack(">hi", 0, 25_000_000) + bytes(100_000_000))


class OtherNumber(Behaviour):
    def handshake(self, number: int) -> bytes:
        return super().handshake(number + 7)


class AnswersNothing(Behaviour):
    def greet(self) -> bytes:
        return response(99, b"echo")


class AnswersTheClientFirst(Behaviour):
    def greet(self) -> bytes:
        return response(1, b"echo")


class RenewsWrongly(Behaviour):
    """Honest once."""

    lifetime_ms = 1

    def signature(self, final: bytes) -> bytes:
        right = super().signature(final)
        return right[::-1] if self.logins else right


class RenewsNever(Behaviour):
    lifetime_ms = 1

    def judge(self, token: bytes) -> Answer:
        return Answer(error_code=58, message=PASSWORD) if self.logins else super().judge(token)


class RenewsOutOfTurn(Behaviour):
    """Answers the SaslHandshake, and leaves the client's request before it unanswered."""

    lifetime_ms = 1

    def request(self, number: int) -> bytes:
        return b"" if number == LAST else super().request(number)


# A whole proxy in front of a false broker, as a child process: memory and log are the real ones.
#
# Its clients need no login of their own

PLAIN, SCRAM, OAUTHBEARER = "PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"
MARKER = b"what clients alone may tell brokers"


class Attacked:
    """A proxy in front of a false broker."""

    def __init__(self, proxy: ProxyProcess, broker: FalseBroker) -> None:
        self.proxy = proxy
        self.broker = broker

    def client(self) -> WireClient:
        return WireClient(self.proxy.addresses()["CLIENTS"])

    def ask(self, behaviour: type[Behaviour]) -> tuple[bytes | Outcome, Met]:
        """What a client hears that asks such a broker, and what that heard."""
        self.broker.relayed = behaviour
        before = len(self.broker.met)
        with self.client() as client:
            client.raw(produce(1, records=MARKER))
            heard = client.receive()
        return heard, self.broker.met[before]

    def works(self) -> bool:
        """Whether a client of an honest broker is served."""
        heard, met = self.ask(Behaviour)
        return heard == response(1, ECHO)[4:] and MARKER in met.received

    def closed(self, reason: str) -> float:
        """How many connections ended so."""
        return self.proxy.metric("connections_closed_total", reason=reason)

    def peak_kb(self) -> int:
        """Of the memory of the worker that ever had the most."""
        task = Path(f"/proc/{self.proxy.pid}/task/{self.proxy.pid}/children")
        peaks = []
        for child in task.read_text().split():
            lines = Path(f"/proc/{child}/status").read_text().splitlines()
            peaks += [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
        return max(peaks)


def login(mechanism: str, directory: Path) -> dict[str, Any]:
    secret = directory / "secret"
    if mechanism == OAUTHBEARER:
        secret.write_text(TOKEN)
        return {"sasl.oauthbearer.token.endpoint.url": secret.as_uri()}
    secret.write_text(PASSWORD)
    return {"sasl.username": NAME, "sasl.password": f"file:{secret}"}


def assert_clean(text: str) -> None:
    """Of a log: nobody forged a line, and no secret is in it."""
    assert "Traceback" not in text
    for line in text.split("\n"):
        assert line.isprintable()
        assert not line.startswith(FORGED)
    for secret in (PASSWORD, TOKEN, MARKER.decode()):
        assert secret not in text


def start(
    mechanism: str,
    directory: Path,
    stack: ExitStack,
    *,
    asked: type[Behaviour] = Behaviour,
    relayed: type[Behaviour] = Behaviour,
) -> Attacked:
    broker = stack.enter_context(FalseBroker())
    broker.asked, broker.relayed = asked, relayed
    port, http_port = free_ports(2)
    upstream = {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        **login(mechanism, directory),
    }
    listener = {
        "name": "clients",
        "address": f"127.0.0.1:{port}",
        "routing": "sidecar",
        "security.protocol": "PLAINTEXT",
    }
    config = {
        "upstream": upstream,
        "listeners": [listener],
        "http": {"address": f"127.0.0.1:{http_port}"},
    }
    return Attacked(stack.enter_context(ProxyProcess(config, directory)), broker)
