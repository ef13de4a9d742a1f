"""Simulated clients of known behaviour, and the events of their connections.

`SessionHistory` writes them, as in the proxy. Time is simulated in seconds from the beginning.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from metrics.connection import Client, Grant, Origin
from metrics.history import Cadence, SessionHistory, Timeline
from metrics.period import Usage

PRODUCE = 0
"""API key of the request that meets an expired session."""


class Behaviour(StrEnum):
    """Behaviour of a client; each value is the verdict that it deserves."""

    READY = "ready"
    UNPROVEN = "unproven"
    NOT_CAPABLE = "not_capable"
    FAILING = "failing"
    UNKNOWN = "unknown"
    """The client never logs in: only its failed attempts are known."""


SHARES = {
    Behaviour.READY: 0.55,
    Behaviour.UNPROVEN: 0.18,
    Behaviour.NOT_CAPABLE: 0.15,
    Behaviour.FAILING: 0.08,
    Behaviour.UNKNOWN: 0.04,
}

_SOFTWARE: dict[Behaviour, tuple[tuple[str | None, str | None], ...]] = {
    Behaviour.READY: (
        ("apache-kafka-java", "3.9.1"),
        ("apache-kafka-java", "4.1.0"),
        ("confluent-kafka-python", "2.6.1-librdkafka-2.6.1"),
        ("kgo", "v1.21.6"),
        ("sarama", "1.45.1"),
    ),
    Behaviour.UNPROVEN: (("apache-kafka-java", "3.7.0"), ("kafka-python", "3.0.12")),
    Behaviour.NOT_CAPABLE: (
        (None, None),
        ("librdkafka", "1.9.2"),
        ("kafka-python", "2.2.15"),
    ),
    Behaviour.FAILING: ((None, None), ("sarama", "1.32.0")),
    Behaviour.UNKNOWN: ((None, None),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedClient:
    """Program, with everything that its connections have in common."""

    number: int
    behaviour: Behaviour
    principal: str
    client_id: str
    software: tuple[str | None, str | None]
    mechanism: str
    raw_tokens: bool
    lifetime_ms: int
    """The session lifetime of its listener in milliseconds; 0: sessions have no end."""
    request_seconds: float
    """Seconds between two requests."""
    clock_ahead: float
    """Seconds by which the clock of its proxy is ahead."""


def make_client(
    number: int, behaviour: Behaviour, *, principals: int, skew_seconds: float, rng: random.Random
) -> SimulatedClient:
    """Draw a client. A principal has clients of one behaviour, as one team has one library."""
    mechanism = rng.choice(["OAUTHBEARER", "SCRAM-SHA-256", "SCRAM-SHA-512"])
    lifetime_ms = rng.choice([15, 60]) * 60_000
    return SimulatedClient(
        number=number,
        behaviour=behaviour,
        principal=f"User:{behaviour.value.replace('_', '-')}-{number % max(principals, 1)}",
        client_id=f"client-{number}",
        software=rng.choice(_SOFTWARE[behaviour]),
        mechanism=mechanism,
        raw_tokens=behaviour is Behaviour.NOT_CAPABLE and rng.random() < 0.3,
        lifetime_ms=0 if behaviour is Behaviour.UNPROVEN else lifetime_ms,
        request_seconds=rng.choice([20.0, 45.0, 45.0, 600.0]),
        clock_ahead=rng.uniform(-skew_seconds, skew_seconds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Connection: when it opens, in seconds from the beginning, and for how many it lasts."""

    connection_id: str
    begin: float
    seconds: float
    wall: float
    """Unix time of the beginning."""


def events_of(client: SimulatedClient, stay: Stay, rng: random.Random) -> Iterator[str]:
    """Yield the events of one connection as lines of the log."""
    if client.behaviour is Behaviour.UNKNOWN:
        yield from _failed_login(client, stay)
    else:
        yield from _Connection(client, stay, rng).events()


def _history(client: SimulatedClient, stay: Stay) -> SessionHistory:
    name, version = client.software
    version_of_authenticate = None
    if not client.raw_tokens:
        version_of_authenticate = 0 if client.behaviour is Behaviour.NOT_CAPABLE else 2
    return SessionHistory(
        Origin(
            proxy_id=f"proxy-{client.number % 4}",
            worker=0,
            listener="clients",
            connection_id=stay.connection_id,
            client_host=f"10.{client.number >> 16 & 255}.{client.number >> 8 & 255}"
            f".{client.number & 255}",
            connected_at=stay.begin,
        ),
        Client(
            enforcement="probe" if client.lifetime_ms else "observe",
            client_id=client.client_id,
            client_software_name=name,
            client_software_version=version,
            mechanism=client.mechanism,
            handshake_version=0 if client.raw_tokens else 1,
            authenticate_version=version_of_authenticate,
        ),
        Timeline(wall=stay.wall + client.clock_ahead, now=0.0),
        Cadence(),
    )


def _failed_login(client: SimulatedClient, stay: Stay) -> Iterator[str]:
    history = _history(client, stay)
    nothing = Usage(0, 0, 0, None)
    yield history.failed("bad_credentials", nothing, stay.begin + 1)
    yield from history.closed("authentication_failed", nothing, stay.begin + 1.1)


class _Connection:
    """Connection that is used every `request_seconds`, and swept every minute."""

    def __init__(self, client: SimulatedClient, stay: Stay, rng: random.Random) -> None:
        self._client = client
        self._stay = stay
        self._rng = rng
        self._history = _history(client, stay)
        self._requests = 0
        self._used_at: float | None = None
        self._authenticated_at = stay.begin
        self._reauth_after = float("inf")

    def events(self) -> Iterator[str]:
        now = self._stay.begin + self._rng.uniform(0.01, 0.2)
        end = self._stay.begin + self._stay.seconds
        yield from self._authenticate(now)
        phase = (self._stay.wall + self._client.clock_ahead) % 60
        sweep = now - (now + phase) % 60 + 60
        request = now + 1.0
        while min(request, sweep) < end:
            if request <= sweep:
                yield from self._request(request)
                request += self._client.request_seconds
            else:
                yield from self._history.sweep(self._usage(), sweep)
                sweep += 60
        yield from self._history.closed("client_closed", self._usage(), end)

    def _request(self, now: float) -> Iterator[str]:
        lifetime = self._client.lifetime_ms / 1000
        if now - self._authenticated_at > self._reauth_after:
            yield from self._authenticate(now)
        elif lifetime and now - self._authenticated_at > lifetime:
            line = self._history.would_be_killed(PRODUCE, self._usage(), now)
            if line is not None:
                yield line
        self._requests += 1
        self._used_at = now

    def _authenticate(self, now: float) -> Iterator[str]:
        client = self._client
        capable = client.behaviour is not Behaviour.NOT_CAPABLE
        grant = Grant(
            principal=client.principal,
            session_lifetime_ms=client.lifetime_ms,
            announced_lifetime_ms=client.lifetime_ms if capable else 0,
            credential_lifetime_ms=self._token_lifetime_ms(),
            latency=self._rng.lognormvariate(-5.8, 0.5),
        )
        yield from self._history.authenticated(grant, self._usage(), now)
        self._authenticated_at = now
        if client.behaviour is Behaviour.READY:
            # As Java's client does: before the request that would come too late.
            early = client.lifetime_ms / 1000 * self._rng.uniform(0.85, 0.95)
            self._reauth_after = max(early - client.request_seconds, 1.0)

    def _token_lifetime_ms(self) -> int | None:
        if self._client.mechanism != "OAUTHBEARER":
            return None
        return 3 * max(self._client.lifetime_ms, 3_600_000)

    def _usage(self) -> Usage:
        return Usage(self._requests, self._requests * 300, self._requests * 900, self._used_at)
