"""Programs that speak SASL to a listener, and their transcripts, which can be compared.

A transcript holds labels of the messages sent and the decoded answers. Values that differ between
servers (nonces, salts, signatures, milliseconds) are replaced by whether they were correct.

`programs.jsonl` has a program in each line. A step is the name of a method of `Actor`, alone or
with its arguments. `{"bytes": ...}` and `{"text": ...}` may contain `{token}`, the parts of a
token, and the server's `{nonce}`; a list there has parts to join, some with a number of
repetitions. `{"token": ...}` is a token with these claims, and `{"authenticate": ...}` the body of
a SaslAuthenticate request, cut or with more behind it.
"""

import json
import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any

from tests.support.kafka.java import is_since
from tests.support.kafka.scram_client import NONCE, ScramClient
from tests.support.kafka.wire_client import (
    API_VERSIONS,
    Address,
    Outcome,
    WireClient,
    api_versions_fields,
    metadata_fields,
)
from tests.support.messages import read_response, request_body
from tests.support.sasl import Issuer, tampered

Transcript = tuple[str, ...]

#: Exists, with one partition, empty.
TOPIC = "programs"

METADATA, SASL_HANDSHAKE, SASL_AUTHENTICATE = 3, 17, 36

#: Announced lifetimes that are kept; others are a token's.
_CONFIGURED_LIFETIMES = (0, 2_000, 3_600_000)

#: Seconds of silence after which a connection counts as open.
_OPEN_AFTER_SECONDS = 4.0

#: `connection.failed.authentication.delay.ms` is 100; an answer in time takes a few.
_DELAYED_FROM_SECONDS = 0.09
AT_ONCE, DELAYED = " at once", " delayed"


_SLOT = re.compile(r"\{(token|header|payload|signature|nonce)\}")
_SERVER_FIRST = re.compile(rf"r=(?:{NONCE})+[^,\s]{{16,}},s=[A-Za-z0-9+/]{{16,}}=*,i=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A server under test with the users and the topic of the programs."""

    addresses: Mapping[str, Address]
    """The SASL listeners by name: see `cluster.SASL_LISTENERS`."""
    issuer: Issuer


#: Name, password and mechanism of all users in the programs.
USERS: Sequence[tuple[str, str, str]] = (
    ("alice", "alice-secret", "SCRAM-SHA-256"),
    ("alice", "alice-secret", "SCRAM-SHA-512"),
    ("bob", "bob-secret", "SCRAM-SHA-256"),
    ("odd,name=x", "odd-secret", "SCRAM-SHA-256"),
    ("user:with colon", "colon-secret", "SCRAM-SHA-256"),
    ("jürgen", "jürgen-secret", "SCRAM-SHA-256"),
)
PASSWORDS = {name: password for name, password, _ in USERS}


Step = Any
"""Result of a step, ignored; it allows steps in a tuple."""


class Actor:
    """A connection of a program that records a transcript."""

    def __init__(self, client: WireClient, issuer: Issuer, *, is_timed: bool = False) -> None:
        self.client = client
        self.issuer = issuer
        self.mint = issuer.mint
        self.lines: list[str] = []
        self._is_timed = is_timed
        self._began = time.monotonic()
        self._waited = 0.0
        self._sent_at = 0.0
        self._correlation_id = 0
        self._auth_bytes = b""

    # --- steps of a program

    def act(self, steps: Sequence[Any]) -> None:
        """Take steps: each is the name of a method, or that with its arguments."""
        for step in steps:
            [(verb, arguments)] = step.items() if isinstance(step, dict) else [(step, {})]
            getattr(self, verb)(**{name: self._filled(one) for name, one in arguments.items()})

    def _filled(self, value: Any) -> Any:
        match value:
            case {"token": claims}:
                return self._minted(claims)
            case {"text": parts}:
                return self._text(parts, value.get("claims", {}))
            case {"bytes": parts}:
                return self._text(parts, value.get("claims", {})).encode("latin-1")
            case {"authenticate": message, "version": version}:
                body = authenticate_body(self._filled(message), version)
                return body[: len(body) - value.get("cut", 0)] + value.get("behind", "").encode()
        return value

    def _text(self, parts: Sequence[Any], claims: Mapping[str, Any]) -> str:
        text = "".join(part if isinstance(part, str) else part[0] * part[1] for part in parts)
        token = self._minted(claims)
        header, payload, signature = token.split(".")
        nonce = self._auth_bytes.split(b",")[0].removeprefix(b"r=").decode("latin-1")
        slots = {"token": token, "header": header, "payload": payload, "signature": signature}
        return _SLOT.sub(lambda found: (slots | {"nonce": nonce})[found[1]], text)

    def _minted(self, claims: Mapping[str, Any]) -> str:
        forged = {
            "hmac": self.issuer.mint_hmac,
            "unsigned": self.issuer.mint_unsigned,
            "with_wrong_key": self.issuer.mint_with_wrong_key,
            "tampered": lambda: tampered(self.mint()),
        }
        if "forged" in claims:
            return forged[claims["forged"]]()
        now = int(time.time())
        return self.mint(
            **{
                name: now + value["in"] if isinstance(value, dict) and "in" in value else value
                for name, value in claims.items()
            }
        )

    # --- whole exchanges

    def ask(self, api_key: int, version: int, body: bytes | None = None, **how: Any) -> Any:
        """Send a request; return the decoded response or None."""
        self.send(api_key, version, body, **how)
        return self.hear(api_key, version)

    def handshake(self, mechanism: str | None, version: int = 1) -> Any:
        """SaslHandshake."""
        body = request_body(SASL_HANDSHAKE, min(version, 1), mechanism=mechanism or "")
        label = f"SaslHandshake v{version} {mechanism}"
        return self.ask(SASL_HANDSHAKE, version, body, label=label)

    def authenticate(self, auth_bytes: bytes, version: int = 2, *, label: str = "") -> bytes:
        """Send SaslAuthenticate; return the response's auth_bytes, empty without a response."""
        body = authenticate_body(auth_bytes, version)
        name = f"SaslAuthenticate v{version} {label or 'token'}"
        answer = self.ask(SASL_AUTHENTICATE, version, body, label=name)
        self._auth_bytes = b"" if answer is None else bytes(answer.auth_bytes)
        return self._auth_bytes

    def token(self, auth_bytes: bytes, *, label: str = "raw token") -> bytes:
        """A raw SASL token, as after SaslHandshake v0; returns the answer."""
        self._send_token(label)
        self.client.send_payload(auth_bytes)
        frame = self.client.receive()
        seen = frame.value if isinstance(frame, Outcome) else f"frame {_auth_text(frame)}"
        self._see(seen + self._delay())
        return b"" if isinstance(frame, Outcome) else frame

    def oauth(
        self, message: str | bytes | None = None, version: int = 2, *, handshake: int = 1
    ) -> Step:
        """A whole login or re-authentication with OAUTHBEARER: a token, a whole message, or None
        for a good token."""
        self.handshake("OAUTHBEARER", handshake)
        if handshake == 0:
            self.token(self.bearer(message))
        else:
            self.authenticate(self.bearer(message), version)

    def bearer(self, message: str | bytes | None = None) -> bytes:
        """The client's message with a token, as for `oauth`."""
        return message if isinstance(message, bytes) else bearer(message or self.mint())

    def scram(
        self,
        name: str = "alice",
        mechanism: str = "SCRAM-SHA-256",
        *,
        password: str | None = None,
        version: int = 2,
        handshake: int = 1,
        client: Mapping[str, Any] | None = None,
        cbind: str | None = None,
        extension: str = "",
        final: str = "{bare},p={proof}",
        pause: float = 0.0,
    ) -> Step:
        """A whole login or re-authentication with SCRAM; `client` has other fields of it, `final`
        is the form of the last message, and `pause` seconds pass before that."""
        raw = handshake == 0
        plain = ScramClient(
            mechanism=mechanism, name=name, password=password or PASSWORDS.get(name, "none")
        )
        scram = replace(plain, **(client or {}))

        def say(message: bytes, label: str) -> bytes:
            if raw:
                return self.token(message, label=f"raw {label}")
            return self.authenticate(message, version, label=label)

        self.handshake(mechanism, handshake)
        first = say(scram.first(), "client-first")
        if pause:
            self.wait(pause)
        if not first.startswith(f"r={scram.nonce}".encode()):
            return
        last = scram.answer(first, cbind=cbind, extension=extension)
        answer = say(last.message(final), "client-final")
        if answer:
            self._see(f"server signature right: {last.verifies(answer)}")

    def api_versions(self, version: int = 3, **how: Any) -> Any:
        """ApiVersions."""
        body = request_body(API_VERSIONS, min(version, 5), **api_versions_fields())
        return self.ask(API_VERSIONS, version, how.pop("body", body), **how)

    def metadata(self, **how: Any) -> Any:
        """Request Metadata v12 of one topic."""
        return self.ask(METADATA, 12, **how)

    # --- parts of exchanges

    def send(
        self,
        api_key: int,
        version: int,
        body: bytes | None = None,
        *,
        label: str = "",
        client_id: str | None = "program",
        flexible: bool | None = None,
    ) -> Step:
        """Sends without waiting for the answer."""
        if body is None:
            body = request_body(api_key, version, **metadata_fields([TOPIC]))
        self._correlation_id += 1
        self._send_token(label or f"API {api_key} v{version}")
        self.client.send_frame(
            api_key, version, self._correlation_id, client_id, body, flexible=flexible
        )

    def hear(self, api_key: int, version: int) -> Any:
        """Record the next response; return it decoded, or None."""
        frame = self.client.receive()
        delayed = self._delay()
        if isinstance(frame, Outcome):
            self._see(frame.value + delayed)
            return None
        try:
            correlation_id, message = _decoded(api_key, version, frame)
        except Exception as error:
            self._see(f"undecodable {frame.hex()} ({type(error).__name__})")
            return None
        echo = f"#{correlation_id} " if self._is_odd(correlation_id) else ""
        self._see(f"{echo}{describe(message)}{delayed}")
        return message

    def raw(self, data: bytes, label: str) -> Step:
        """Send arbitrary bytes."""
        self._send_token(label)
        self.client.raw(data)

    def finish_sending(self) -> Step:
        """Sends FIN."""
        self.client.finish_sending()

    def ends(self) -> Step:
        """Record whether the server closes the connection or leaves it open."""
        frame = self.client.receive(_OPEN_AFTER_SECONDS)
        if isinstance(frame, Outcome):
            self._waited += _OPEN_AFTER_SECONDS if frame is Outcome.SILENT else 0
            self._see("open" if frame is Outcome.SILENT else "closed" + self._delay())
        else:
            self._see(f"unexpected frame {frame.hex()}")

    def wait(self, seconds: float) -> Step:
        """Wait while the session ages."""
        self._send_token(f"wait {seconds} s")
        self.takes(seconds)
        time.sleep(seconds)

    def takes(self, seconds: float) -> Step:
        """Add time that the program spends on purpose."""
        self._waited += seconds

    @property
    def late(self) -> float:
        """Seconds by which the conversation is late."""
        return time.monotonic() - self._began - self._waited

    def until_half_a_second(self) -> Step:
        """Wait until the middle of the next second: tokens expire at whole ones."""
        middle = 1.5 - time.time() % 1
        self.takes(middle)
        time.sleep(middle)

    def _is_odd(self, correlation_id: int) -> bool:
        return not 0 < correlation_id <= self._correlation_id

    def _delay(self) -> str:
        if not self._is_timed:
            return ""
        took = time.monotonic() - self._sent_at
        return DELAYED if took >= _DELAYED_FROM_SECONDS else AT_ONCE

    def _send_token(self, label: str) -> None:
        self.lines.append(f"> {label}")
        self._sent_at = time.monotonic()

    def _see(self, text: str) -> None:
        self.lines.append(f"< {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One named conversation; timed ones run alone, to measure the server's delays."""

    name: str
    steps: Sequence[Any]
    listener: str = "LONG"
    is_timed: bool = False
    late: float = inf
    """Seconds of delay after which a conversation is repeated."""
    since: str = "0"
    """The first release of Kafka that it is for."""
    differs: str | None = None
    """The row of docs/compatibility.md if the proxy answers differently."""


def read_programs(path: Path) -> dict[str, Program]:
    """Programs by name, from one in each line."""
    found = [Program(**json.loads(line)) for line in path.read_text().splitlines()]
    assert len({one.name for one in found}) == len(found)
    return {one.name: one for one in found}


PROGRAMS = read_programs(Path(__file__).with_name("programs.jsonl"))


# --- messages


def bearer(token: str) -> bytes:
    """The client's message of RFC 7628 section 3.1."""
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def authenticate_body(auth_bytes: bytes, version: int) -> bytes:
    """SaslAuthenticate of any version, including future ones."""
    return request_body(SASL_AUTHENTICATE, min(version, 2), auth_bytes=auth_bytes)


# --- answers


def describe(message: Any) -> str:
    """Describe an answer without parts that may differ between correct servers."""
    kind = type(message).__name__.removesuffix("Response")
    version = f"{kind} v{message.__version__}"
    if kind == "SaslHandshake":
        return f"{version} error={message.error_code:d} {','.join(sorted(message.mechanisms))}"
    if kind == "SaslAuthenticate":
        lifetime = _lifetime(getattr(message, "session_lifetime", None))
        text = f"{version} error={message.error_code:d} message={message.error_message!r}"
        return f"{text} auth={_auth_text(message.auth_bytes)}{lifetime}"
    if kind == "ApiVersions":
        ranges = [(k.api_key, k.min_version, k.max_version) for k in message.api_keys]
        compared = (17, 18, 36) if is_since("4.4") else (17, 36)  # before, it had no v5
        sasl = [f"{key}:{low}-{high}" for key, low, high in ranges if key in compared]
        return f"{version} error={message.error_code:d} {' '.join(sorted(sasl))}"
    return f"{version} errors={sorted(set(_error_codes(message)))}"


def _decoded(api_key: int, version: int, frame: bytes) -> tuple[int, Any]:
    if api_key == API_VERSIONS:
        # KIP-511: a version that is too new is answered in version 0.
        error_code = struct.unpack_from(">h", frame, 4)[0]
        return read_response(api_key, 0 if error_code == 35 or version > 5 else version, frame)
    return read_response(api_key, version, frame)


def _lifetime(lifetime: timedelta | None) -> str:
    if lifetime is None:
        return ""
    lifetime_ms = round(lifetime / timedelta(milliseconds=1))
    if lifetime_ms in _CONFIGURED_LIFETIMES:
        return f" lifetime_ms={lifetime_ms}"
    # A token's rest: told in steps of a sixth of it or so, because the clock runs while we look.
    step = 10_000 if lifetime_ms <= 60_000 else 60_000
    return f" lifetime_ms<={-(-lifetime_ms // step) * step}"


def _auth_text(auth_bytes: bytes) -> str:
    text = auth_bytes.decode("latin-1")
    first = _SERVER_FIRST.fullmatch(text)
    if first:
        return f"r=CLIENT+SERVER,s=SALT,i={first[1]}"
    if re.fullmatch(r"v=[A-Za-z0-9+/]+=*", text):
        return f"v=SIGNATURE({len(text)})"
    return repr(text) if len(text) < 200 else f"{len(text)} bytes"


def _error_codes(message: Any) -> Iterator[int]:
    if is_dataclass(message):
        for each in fields(message):
            value = getattr(message, each.name)
            if each.name == "error_code":
                yield int(value)
            yield from _error_codes(value)
    elif isinstance(message, tuple):
        for item in message:
            yield from _error_codes(item)


def logs_in(address: Address, issuer: Issuer, mechanism: str, name: str, password: str) -> bool:
    """Whether a SCRAM login succeeds."""
    with WireClient(address) as client:
        actor = Actor(client, issuer)
        actor.scram(name, mechanism, password=password)
        return actor.lines[-1] == "< server signature right: True"
