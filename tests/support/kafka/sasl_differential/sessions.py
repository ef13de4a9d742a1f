"""Programs of re-authentication (KIP-368), correct and faulty."""

import struct
import time
from collections.abc import Mapping

from tests.support.kafka.sasl_differential.transcript import (
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TOPIC,
    Act,
    Actor,
    Step,
    authenticate_body,
    programs,
)
from tests.support.kafka.scram_client import ScramClient
from tests.support.kafka.wire_client import API_VERSIONS
from tests.support.messages import request_body

_FETCH, _PRODUCE, _FIND_COORDINATOR = 1, 0, 10

_PAST_EXPIRY_SECONDS = 2.3
"""Slightly more than the SHORT listener's lifetime."""
_MAY_BEGIN_SECONDS = 1.1
"""Minimum interval between re-authentications."""
_OAUTH, _SCRAM = "OAUTHBEARER", "SCRAM-SHA-256"
_HANDSHAKE = request_body(SASL_HANDSHAKE, 1, mechanism=_OAUTH)
_SOFTWARE = request_body(API_VERSIONS, 3, client_software_name="a", client_software_version="1")


def _fetch_body(max_wait_ms: int) -> bytes:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    return request_body(
        _FETCH,
        12,
        max_wait=max_wait_ms,
        min_bytes=1,
        topics=[{"topic": TOPIC, "partitions": [partition]}],
        forgotten_topics_data=[],
    )


# --- re-authentication


def _renews_by_scram(version: int) -> Act:
    return lambda a: (
        *(a.scram(version=version), a.wait(_MAY_BEGIN_SECONDS)),
        *(a.scram(version=version), a.metadata()),
    )


def _renews_by_token(version: int) -> Act:
    return lambda a: (a.oauth(None, version), a.oauth(None, version), a.metadata())


def _stretched_over_the_expiry(a: Actor) -> None:
    a.scram()
    a.wait(1.5)
    scram = ScramClient(mechanism=_SCRAM, name="alice", password="alice-secret")
    a.handshake(_SCRAM)
    first = a.authenticate(scram.first(), label="client-first")
    a.wait(1.5)
    if first:
        a.authenticate(scram.answer(first).message(), label="client-final")
    a.metadata()


programs(
    {
        "reauth OAUTHBEARER same user": lambda a: (
            *(a.oauth(), a.metadata(), a.oauth(), a.metadata(), a.wait(_MAY_BEGIN_SECONDS)),
            *(a.oauth(), a.wait(_MAY_BEGIN_SECONDS)),
            a.metadata(),  # beyond the first session's end
        ),
        **{f"reauth SCRAM SaslAuthenticate v{v}": _renews_by_scram(v) for v in range(3)},
        **{f"reauth OAUTHBEARER SaslAuthenticate v{v}": _renews_by_token(v) for v in range(3)},
        "reauth with raw tokens: SCRAM": lambda a: (
            *(a.scram(handshake=0), a.scram(handshake=0), a.metadata()),
        ),
        "reauth with raw tokens: OAUTHBEARER": lambda a: (
            *(a.oauth(handshake=0), a.oauth(handshake=0), a.metadata()),
        ),
        "login raw, reauth framed": lambda a: (a.oauth(handshake=0), a.oauth(), a.metadata()),
        "login framed, reauth raw": lambda a: (a.scram(), a.scram(handshake=0), a.metadata()),
        "reauth twice within a second": lambda a: (
            *(a.oauth(), a.oauth(), a.handshake(_OAUTH), a.metadata()),
            *(a.authenticate(a.bearer()), a.metadata()),
        ),
        "handshake too soon, then again in time": lambda a: (
            *(a.oauth(), a.oauth(), a.handshake(_OAUTH), a.wait(_MAY_BEGIN_SECONDS)),
            *(a.oauth(), a.metadata()),
        ),
        "reauth after expiry, idle meanwhile": lambda a: (
            *(a.scram(), a.wait(_PAST_EXPIRY_SECONDS), a.scram(), a.metadata()),
        ),
        "the token comes long after the handshake": lambda a: (
            *(a.oauth(), a.wait(1.5), a.handshake(_OAUTH), a.wait(1.5)),
            *(a.authenticate(a.bearer()), a.metadata()),
        ),
        "SCRAM reauth stretched over the expiry": _stretched_over_the_expiry,
    },
    listener="SHORT",
)
programs({"reauth on the long listener at once": lambda a: (a.scram(), a.scram(), a.metadata())})
programs(
    {
        "reauth bound by the token on a listener without re-authentication": lambda a: (
            a.oauth(a.mint(lifetime=5)),  # its remaining time is not a configured lifetime
            *(a.metadata(), a.wait(6.0), a.metadata()),
        )
    },
    listener="NEVER",
)
programs(
    {
        "a shorter token shortens the session": lambda a: (
            *(a.oauth(a.mint(lifetime=600)), a.oauth(a.mint(lifetime=2))),
            *(a.metadata(), a.wait(3.0), a.metadata()),
        ),
        "a longer token lengthens the session": lambda a: (
            a.oauth(a.mint(lifetime=4)),  # its remaining time cannot be a configured lifetime
            *(a.oauth(a.mint(lifetime=600)), a.wait(5.0), a.metadata()),
        ),
        "expired: token ran out before the listener's limit": lambda a: (
            *(a.oauth(a.mint(lifetime=2)), a.wait(3.0), a.metadata()),
        ),
    },
    late=0.5,
)

# --- faulty re-authentication

_BETWEEN: Mapping[str, tuple[int, int, bytes | None]] = {
    "Metadata": (METADATA, 12, None),
    "ApiVersions": (API_VERSIONS, 3, _SOFTWARE),
    "ApiVersions too new": (API_VERSIONS, 9, b""),
    "FindCoordinator": (
        _FIND_COORDINATOR,
        4,
        request_body(_FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["group"]),
    ),
    "an unknown API key": (999, 0, b""),
    "Fetch": (_FETCH, 12, _fetch_body(100)),
}


def _asks_between(request: tuple[int, int, bytes | None]) -> Act:
    return lambda a: (a.oauth(), a.handshake(_OAUTH), a.ask(*request), a.ends())


def _begins_with(mechanism: str) -> Act:
    return lambda a: (a.scram("alice"), a.handshake(mechanism), a.ends())


programs(
    {
        "reauth SCRAM other user": lambda a: (a.scram("alice"), a.scram("bob"), a.ends()),
        "reauth OAUTHBEARER other user": lambda a: (
            *(a.oauth(a.mint("alice")), a.oauth(a.mint("bob")), a.ends()),
        ),
        "reauth raw token other user": lambda a: (
            *(a.oauth(a.mint("alice"), handshake=0), a.oauth(a.mint("bob"), handshake=0), a.ends()),
        ),
        "reauth other mechanism, same name": lambda a: (
            *(a.scram("alice"), a.oauth(a.mint("alice")), a.ends()),
        ),
        "reauth other SCRAM mechanism": lambda a: (
            *(a.scram("alice"), a.scram("alice", "SCRAM-SHA-512"), a.ends()),
        ),
        "reauth unknown mechanism": _begins_with("NO-SUCH"),
        "reauth disabled mechanism PLAIN": _begins_with("PLAIN"),
        "reauth wrong password": lambda a: (
            *(a.scram("alice"), a.scram("alice", password="wrong"), a.ends()),
        ),
        "reauth unknown user": lambda a: (a.scram("alice"), a.scram("nobody"), a.ends()),
        "reauth refused token": lambda a: (
            *(a.oauth(), a.oauth(a.mint(aud="other"))),
            *(a.authenticate(b"\x01", label="kvsep"), a.ends()),
        ),
        "reauth refused token, then good": lambda a: (
            *(a.oauth(), a.oauth(a.mint(aud="other"))),
            *(a.authenticate(a.bearer(), label="good token"), a.metadata()),
        ),
        "reauth garbage": lambda a: (a.oauth(), a.oauth(b"garbage"), a.ends()),
        "reauth handshake too new": lambda a: (a.oauth(), a.handshake(_OAUTH, 2), a.ends()),
        "reauth SaslAuthenticate too new": lambda a: (
            *(a.oauth(), a.handshake(_OAUTH)),
            a.ask(SASL_AUTHENTICATE, 3, authenticate_body(b"x", 3), flexible=True),
            a.ends(),
        ),
        "reauth two handshakes in a row": lambda a: (
            *(a.oauth(), a.handshake(_OAUTH), a.handshake(_OAUTH), a.ends()),
        ),
        "reauth cut short handshake": lambda a: (
            *(a.oauth(), a.ask(SASL_HANDSHAKE, 1, b"\x00\x20OAUTH"), a.ends()),
        ),
        **{
            f"reauth: {label} between handshake and token": _asks_between(request)
            for label, request in _BETWEEN.items()
        },
        "reauth: Produce acks=0 between handshake and token": lambda a: (
            *(a.oauth(), a.handshake(_OAUTH)),
            a.send(_PRODUCE, 9, request_body(_PRODUCE, 9, acks=0, timeout=1000, topic_data=[])),
            a.ends(),
        ),
    },
    listener="SHORT",
)

# --- requests in flight


def _sends_a_login(a: Actor) -> Step:
    a.send(SASL_HANDSHAKE, 1, _HANDSHAKE)
    a.send(SASL_AUTHENTICATE, 2, authenticate_body(a.bearer(), 2))
    a.send(METADATA, 12)


def _hears_of_it(a: Actor) -> Step:
    for api_key, version in ((SASL_HANDSHAKE, 1), (SASL_AUTHENTICATE, 2), (METADATA, 12)):
        a.hear(api_key, version)


programs({"login pipelined with the first request": lambda a: (_sends_a_login(a), _hears_of_it(a))})
programs(
    {
        "reauth pipelined between requests": lambda a: (
            *(a.oauth(), a.send(METADATA, 12), _sends_a_login(a)),
            *(a.hear(METADATA, 12), _hears_of_it(a)),
        ),
        "reauth behind a slow Fetch": lambda a: (
            *(a.oauth(), a.send(_FETCH, 12, _fetch_body(700)), a.takes(0.7)),
            a.send(SASL_HANDSHAKE, 1, _HANDSHAKE),
            *(a.hear(_FETCH, 12), a.hear(SASL_HANDSHAKE, 1)),
            *(a.authenticate(a.bearer()), a.metadata()),
        ),
        "Fetch under way when the session expires": lambda a: (
            *(a.scram(), a.wait(1.0), a.send(_FETCH, 12, _fetch_body(2_000)), a.takes(2.0)),
            *(a.hear(_FETCH, 12), a.metadata()),
        ),
        "SaslAuthenticate without handshake on a live session": lambda a: (
            a.oauth(),
            *(a.authenticate(a.bearer(), version) for version in (0, 1, 2)),
            a.metadata(),
        ),
    },
    listener="SHORT",
)

# --- sessions that end

_USES: Mapping[str, tuple[int, int, bytes | None]] = {
    "Metadata": (METADATA, 12, None),
    "ApiVersions": (API_VERSIONS, 3, _SOFTWARE),
    "ApiVersions too new": (API_VERSIONS, 9, _SOFTWARE),
    "SaslAuthenticate": (SASL_AUTHENTICATE, 2, authenticate_body(b"x", 2)),
    "an unknown API key": (999, 0, b""),
}


def _expires(*steps: Act, version: int = 2) -> Act:
    """Log in, wait until the session has ended, and continue."""
    return lambda a: (
        a.scram(version=version),
        a.wait(_PAST_EXPIRY_SECONDS),
        *(step(a) for step in steps),
    )


def _asks(request: tuple[int, int, bytes | None]) -> Act:
    return lambda a: (a.ask(*request), a.ends())


def _renewed_in_the_middle_of_a_second(a: Actor) -> None:
    """Tokens expire at whole seconds, so this one lasts for half a second."""
    a.oauth()
    middle = 1.5 - time.time() % 1
    a.takes(middle)
    time.sleep(middle)
    a.oauth(a.mint(lifetime=1))
    a.wait(0.7)
    a.handshake(_OAUTH)
    a.ends()


_BEGINNING = struct.pack(">ihhih", 64, METADATA, 12, 9, -1)

programs(
    {
        **{f"expired: {label}": _expires(_asks(request)) for label, request in _USES.items()},
        "expired: idle stays open": _expires(Actor.ends),
        **{
            f"expired: told nothing, login by SaslAuthenticate v{version}": _expires(
                Actor.metadata, version=version
            )
            for version in (0, 1)
        },
        "expired: login by raw tokens": lambda a: (
            *(a.oauth(handshake=0), a.wait(_PAST_EXPIRY_SECONDS), a.metadata()),
        ),
        "expired: handshake answered, then Metadata": _expires(
            lambda a: a.handshake(_SCRAM), Actor.metadata, Actor.ends
        ),
        "expired: unknown mechanism": _expires(lambda a: a.handshake("NO-SUCH"), Actor.ends),
        "expired: handshake too new": _expires(lambda a: a.handshake(_SCRAM, 2), Actor.ends),
        "expired: half a Metadata request": _expires(
            lambda a: a.raw(_BEGINNING, "the first bytes of a Metadata frame"), Actor.ends
        ),
    },
    listener="SHORT",
)
programs(
    {"expired: handshake too soon after the last": _renewed_in_the_middle_of_a_second},
    listener="SHORT",
    late=0.2,
)

# --- the delay of a failed authentication

programs(
    {
        "delay: login wrong password": lambda a: (a.scram(password="wrong"), a.ends()),
        "delay: login unparseable OAUTHBEARER": lambda a: (a.oauth(b"garbage"), a.ends()),
        "delay: error round": lambda a: (
            a.oauth(a.mint(aud="other")),
            *(a.authenticate(b"\x01", label="kvsep"), a.ends()),
        ),
        "delay: unknown mechanism": lambda a: (a.handshake("NO-SUCH"), a.ends()),
        "delay: Metadata before the handshake": Actor.metadata,
        "delay: Metadata between handshake and token": lambda a: (
            *(a.handshake(_OAUTH), a.metadata(), a.ends()),
        ),
        "delay: reauth other user": lambda a: (
            *(a.oauth(a.mint("alice")), a.oauth(a.mint("bob")), a.ends()),
        ),
        "delay: reauth unknown mechanism": lambda a: (
            *(a.oauth(a.mint("alice")), a.handshake("NO-SUCH")),
        ),
        "delay: raw token garbage": lambda a: a.oauth(b"garbage", handshake=0),
    },
    is_timed=True,
)
programs({"delay: use after expiry": _expires(Actor.metadata)}, listener="SHORT", is_timed=True)
