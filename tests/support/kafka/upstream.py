"""Brokers that want SASL of the proxy, the ways to log in to them, and traffic of raw clients.

The raw clients never connect anew: a connection that ends is an error. A partition is written
by one of them alone, so the offsets that it is told are 0, 1, 2 …
"""

import base64
import itertools
import json
import ssl
import struct
import threading
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.certificates import Authority
from tests.support.kafka import properties
from tests.support.kafka.clients import OAUTHBEARER
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.properties import BEHIND, CONTROLLER, PLAINTEXT
from tests.support.kafka.proxy import sidecar_config
from tests.support.kafka.sasl_differential.transcript import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    authenticate_body,
    bearer,
)
from tests.support.kafka.tokens import Issuer
from tests.support.kafka.wire_client import Address, Outcome, WireClient, record_batch
from tests.support.messages import read_response, request_body
from tests.support.processes import free_ports

# A broker whose listeners want SASL, and the ways in which the proxy may log in to it

GATE = "gate"
"""Who the proxy is to the brokers."""
PASSWORD = "gate-secret,=1"
WRONG_PASSWORD = "wrong-secret-2"
CHANGING = "changing"
"""Like `GATE`, but the password is another now and then."""
CLIENT_ID, CLIENT_SECRET, SCOPE = "gate client", "client:secret&3", "kafka brokers"

SHORT, BUSY, LITTLE, SECURE = "SHORT", "BUSY", "LITTLE", "SECURE"
SHORT_MS = 2_000
BUSY_MS = 6_000
"""Under traffic: a login begins at 95 % of it at the latest, and the rest is for the machine."""
LISTENERS: Mapping[str, int] = {
    SHORT: SHORT_MS,
    BUSY: BUSY_MS,
    LITTLE: 3_600_000,
    SECURE: 3_600_000,
}
EXPIRED_CHANNEL = "Disconnecting expired channel"
"""What a broker's log says of a connection that it closes because its session is over."""


def sasl_properties(listeners: Mapping[str, int], jwks: Path) -> dict[str, str]:
    """All mechanisms, and rights for nobody but the proxy and the other brokers."""
    return {
        **properties.sasl(listeners, jwks, {GATE: PASSWORD}),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{GATE};User:{CHANGING}",
    }


def sasl_cluster(jwks: Path, files: Path) -> KafkaCluster:
    """One node; `LITTLE` does not know PLAIN, `SECURE` speaks TLS with `files`."""
    protocols = dict.fromkeys((PLAINTEXT, CONTROLLER), "PLAINTEXT")
    protocols |= dict.fromkeys((SHORT, BUSY, LITTLE, BEHIND), "SASL_PLAINTEXT")
    protocols |= {SECURE: "SASL_SSL"}
    authority = Authority()
    authority.write(files)
    (files / "broker.pem").write_bytes(authority.issue("broker").pem)
    return KafkaCluster(
        jwks=jwks,
        sasl_listeners=LISTENERS,
        sidecar_port=free_ports(1)[0],
        properties={
            **sasl_properties({**LISTENERS, BEHIND: 3_600_000}, jwks),
            f"listener.name.{LITTLE.lower()}.sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
            f"listener.name.{SECURE.lower()}.ssl.keystore.type": "PEM",
            f"listener.name.{SECURE.lower()}.ssl.keystore.location": str(files / "broker.pem"),
        },
    )


def add_proxys_users(cluster: KafkaCluster) -> None:
    """Let the proxy in by SCRAM."""
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        cluster.add_scram_user(GATE, PASSWORD, mechanism)


# --- how the proxy logs in


def by_password(
    mechanism: str, directory: Path, *, name: str = GATE, password: str = PASSWORD
) -> dict[str, Any]:
    """Keys of `upstream`; the password is in `directory / "password"`."""
    (directory / "password").write_text(password)
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": f"file:{directory / 'password'}",
    }


def by_token_file(directory: Path, token: str) -> dict[str, Any]:
    """Keys of `upstream`; the token is in `directory / "token"`."""
    file = directory / "token"
    file.write_text(token)
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }


def by_client_credentials(directory: Path, endpoint: "TokenEndpoint") -> dict[str, Any]:
    """Keys of `upstream`; the secret is in `directory / "client-secret"`."""
    file = directory / "client-secret"
    file.write_text(CLIENT_SECRET)
    prefix = "sasl.oauthbearer"
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        f"{prefix}.token.endpoint.url": endpoint.url,
        f"{prefix}.client.credentials.client.id": CLIENT_ID,
        f"{prefix}.client.credentials.client.secret": f"file:{file}",
        f"{prefix}.scope": SCOPE,
    }


def sidecar_of(
    cluster: KafkaCluster,
    listener: str,
    jwks: Path,
    login: Mapping[str, Any],
    *,
    max_reauth_ms: int = 3_600_000,
) -> dict[str, Any]:
    """A configuration with one listener, LONG, in front of the broker's `listener`."""
    port = cluster.sidecar_port if listener == BEHIND else None
    upstream = str(cluster.address(listener=listener))
    config = sidecar_config(upstream, jwks, listeners={"LONG": max_reauth_ms}, port=port)
    config["upstream"] |= login
    return config


class TokenEndpoint:
    """Gives tokens for client credentials (RFC 6749 section 4.4); notes what it was asked.

    And its keys, at `jwks_url`.
    """

    def __init__(
        self,
        issuer: Issuer,
        *,
        token_seconds: float = 3600,
        expires_in: int = 3600,
        certificate: Path | None = None,
    ) -> None:
        """`expires_in` is what it says of tokens that are good for `token_seconds`.

        `certificate`: with its key, what it speaks TLS with; None: it does not.
        """
        self._issuer = issuer
        self._token_seconds = token_seconds
        self._expires_in = expires_in
        self.given: list[str] = []
        self.refused: list[str] = []
        self.is_down = False
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                form = urllib.parse.parse_qs(self.rfile.read(length).decode())
                status, answer = endpoint.answer(self.headers.get("Authorization", ""), form)
                body = json.dumps(answer).encode()
                self._send(status, body)

            def do_GET(self) -> None:
                self._send(200, json.dumps(issuer.jwks()).encode())

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Not on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        scheme = "http"
        if certificate is not None:
            scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        base = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self.url, self.jwks_url = f"{base}/oauth2/token", f"{base}/jwks.json"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, authorization: str, form: Mapping[str, list[str]]) -> tuple[int, Any]:
        """HTTP status and JSON."""
        if self.is_down:
            return 503, {"error": "temporarily_unavailable"}
        wanted = {"grant_type": ["client_credentials"], "scope": [SCOPE]}
        if {key: form.get(key) for key in wanted} != wanted or not _is_client(authorization):
            self.refused.append(f"{authorization} {form}")
            return 401, {"error": "invalid_client", "error_description": f"not {CLIENT_SECRET}"}
        token = self._issuer.mint(GATE, self._token_seconds)
        self.given.append(token)
        return 200, {
            "access_token": token,
            "token_type": "Bearer",
            "expires_in": self._expires_in,
        }


def _is_client(authorization: str) -> bool:
    """Basic, with both parts form-encoded first (RFC 6749 section 2.3.1)."""
    scheme, _, credentials = authorization.partition(" ")
    name, _, secret = base64.b64decode(credentials).decode().partition(":")
    unquoted = urllib.parse.unquote_plus(name), urllib.parse.unquote_plus(secret)
    return scheme.lower() == "basic" and unquoted == (CLIENT_ID, CLIENT_SECRET)


# Traffic of raw clients, which never connect anew: a connection that ends is an error

PRODUCE, FETCH = 0, 1
_BATCH_PREFIX = struct.Struct(">qi")
_LARGEST_FETCH = 4_000_000


class Connection:
    """A client of the proxy, with several requests in flight."""

    def __init__(self, address: Address, issuer: Issuer) -> None:
        self.client = WireClient(address)
        self._issuer = issuer
        self._numbers = itertools.count(1)
        self._in_flight: deque[tuple[int, int, int, Callable[..., None]]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()

    def send(
        self, api_key: int, version: int, body: bytes, then: Callable[..., None] = lambda _: None
    ) -> None:
        """`then` is told the answer."""
        number = next(self._numbers)
        self._in_flight.append((api_key, version, number, then))
        self.client.send_frame(api_key, version, number, "traffic", body)

    def hear(self, most_in_flight: int = 0) -> None:
        """Reads answers until no more than so many are to come."""
        while len(self._in_flight) > most_in_flight:
            api_key, version, number, then = self._in_flight.popleft()
            frame = self.client.receive()
            assert not isinstance(frame, Outcome), f"{frame} instead of API {api_key}"
            correlation_id, answer = read_response(api_key, version, frame)
            assert correlation_id == number
            then(answer)

    def log_in(self) -> None:
        """Or do it anew: the SaslHandshake goes out behind whatever is in flight."""
        self.send(SASL_HANDSHAKE, 1, request_body(SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER"))
        self.hear()
        token = bearer(self._issuer.mint("carol"))
        self.send(SASL_AUTHENTICATE, 2, authenticate_body(token, 2), _is_in)
        self.hear()


def _is_in(answer: object) -> None:
    assert getattr(answer, "error_code", None) == 0, answer


def write(
    address: Address,
    issuer: Issuer,
    topic: str,
    goes_on: Callable[[], bool],
    sizes: Sequence[int],
    *,
    window: int,
    pause_seconds: float,
    renew_seconds: float = float("inf"),
) -> int:
    """Writes records of these sizes, one after the other and again; returns how many.

    `window` requests are in flight when it pauses; a login is done anew after `renew_seconds`.
    """
    bodies = [_produce_body(topic, record_batch(bytes(size))) for size in sizes]
    written = 0
    with Connection(address, issuer) as connection:
        connection.log_in()
        logged_in_at = time.monotonic()
        while goes_on():
            for _ in range(window):
                then = partial(_has_offset, written)
                connection.send(PRODUCE, 9, bodies[written % len(bodies)], then)
                written += 1
            connection.hear(window // 2)
            if time.monotonic() - logged_in_at > renew_seconds:
                connection.log_in()
                logged_in_at = time.monotonic()
            time.sleep(pause_seconds)
        connection.hear()
    return written


def _produce_body(topic: str, batch: bytes) -> bytes:
    return request_body(
        PRODUCE,
        9,
        transactional_id=None,
        acks=-1,
        timeout=60_000,
        topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
    )


def _has_offset(expected: int, answer: object) -> None:
    (topic,) = getattr(answer, "responses")  # noqa: B009 - of any version
    (found,) = topic.partition_responses
    assert (found.error_code, found.base_offset) == (0, expected)


def read(
    address: Address,
    issuer: Issuer,
    topic: str,
    goes_on: Callable[[int], bool],
    sizes: Sequence[int],
    *,
    wait_ms: int,
) -> int:
    """Reads records of these sizes, for as long as it may; returns how many there were.

    Each Fetch waits at the broker for `wait_ms`, or for more than comes in that time.
    """
    offset = 0

    def take(answer: object) -> None:
        nonlocal offset
        (found,) = getattr(answer, "responses")[0].partitions  # noqa: B009 - of any version
        assert found.error_code == 0
        for base_offset, length in _batches(bytes(found.records or b"")):
            assert base_offset == offset
            # What is around a record takes less than 100 bytes.
            assert sizes[offset % len(sizes)] < length < sizes[offset % len(sizes)] + 100
            offset += 1

    with Connection(address, issuer) as connection:
        connection.log_in()
        while goes_on(offset):
            connection.send(FETCH, 4, _fetch_body(topic, offset, wait_ms), take)
            connection.hear()
    return offset


def _batches(records: bytes) -> list[tuple[int, int]]:
    """Base offset and length of each whole one."""
    found = []
    position = 0
    while position + _BATCH_PREFIX.size <= len(records):
        base_offset, length = _BATCH_PREFIX.unpack_from(records, position)
        position += _BATCH_PREFIX.size + length
        if position <= len(records):
            found.append((base_offset, length))
    return found


def _fetch_body(topic: str, offset: int, wait_ms: int) -> bytes:
    wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": _LARGEST_FETCH}
    return request_body(
        FETCH,
        4,
        max_wait=wait_ms,
        min_bytes=_LARGEST_FETCH,
        max_bytes=_LARGEST_FETCH,
        isolation_level=0,
        topics=[{"topic": topic, "partitions": [wanted]}],
    )
