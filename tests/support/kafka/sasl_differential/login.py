"""Programs of first authentications: handshakes, versions, and requests between them."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from tests.support.kafka.sasl_differential.transcript import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Act,
    authenticate_body,
    programs,
)
from tests.support.kafka.scram_client import ScramClient
from tests.support.messages import request_body

SCRAM, SCRAM_512, OAUTH = "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"
_FIRST = ScramClient(mechanism=SCRAM, name="alice", password="alice-secret").first()
_HANDSHAKE = request_body(SASL_HANDSHAKE, 1, mechanism=OAUTH)


def _logs_in(**how: Any) -> Act:
    return lambda a: (a.scram("alice", **how), a.metadata())


def _shows_a_token(version: int) -> Act:
    return lambda a: (a.oauth(a.mint(lifetime=600), version), a.metadata())


def _shakes_hands(*mechanisms: str, version: int = 1) -> Act:
    return lambda a: (*(a.handshake(one, version) for one in mechanisms), a.ends())


programs(
    {
        **{
            f"login {mechanism} SaslAuthenticate v{v}": _logs_in(mechanism=mechanism, version=v)
            for mechanism, v in product((SCRAM, SCRAM_512), range(3))
        },
        **{
            f"login {mechanism} raw tokens": _logs_in(mechanism=mechanism, handshake=0)
            for mechanism in (SCRAM, SCRAM_512)
        },
        **{f"login OAUTHBEARER SaslAuthenticate v{v}": _shows_a_token(v) for v in range(3)},
        "login OAUTHBEARER raw token": lambda a: (a.oauth(handshake=0), a.metadata()),
        "login OAUTHBEARER raw token refused, then good": lambda a: (
            *(a.oauth(a.mint(aud="other"), handshake=0), a.token(a.bearer()), a.metadata()),
        ),
        "login OAUTHBEARER raw token refused, then kvsep": lambda a: (
            *(a.oauth(a.mint(aud="other"), handshake=0), a.token(b"\x01")),
        ),
        "login OAUTHBEARER raw garbage": lambda a: a.oauth(b"garbage", handshake=0),
        "login SCRAM raw wrong password": lambda a: a.scram("alice", password="wrong", handshake=0),
        "login SCRAM raw unknown user": lambda a: a.scram("nobody", handshake=0),
        "login SCRAM raw empty first token": lambda a: (a.handshake(SCRAM, 0), a.token(b"")),
        "raw token looks like a request frame after handshake v0": lambda a: (
            *(a.handshake(SCRAM, 0), a.metadata()),
        ),
        "SaslAuthenticate frame after handshake v0": lambda a: (
            *(a.handshake(OAUTH, 0), a.authenticate(a.bearer())),
        ),
        "raw token after handshake v1": lambda a: (a.handshake(OAUTH, 1), a.token(a.bearer())),
        "raw token without handshake": lambda a: a.token(a.bearer()),
        "raw GSSAPI-like token without handshake": lambda a: a.token(
            b"\x60\x82\x01\x00" + bytes(60)
        ),
        "login SCRAM on mechanism without credential": lambda a: a.scram("bob", SCRAM_512),
    }
)
programs(
    {
        "login on a listener without re-authentication: SCRAM": lambda a: (
            *(a.scram(), a.metadata(), a.scram(), a.metadata()),
        ),
        "login on a listener without re-authentication: OAUTHBEARER": lambda a: (
            a.oauth(a.mint(lifetime=600)),
            a.oauth(a.mint(lifetime=600)),
            a.metadata(),
        ),
    },
    listener="NEVER",
)
programs(
    {
        "login on a short listener": lambda a: (a.scram(), a.metadata()),
        "login on a short listener, token outlives it": lambda a: a.oauth(a.mint(lifetime=600)),
    },
    listener="SHORT",
)

# --- SaslHandshake and SaslAuthenticate

_UNKNOWN = ("PLAIN", "GSSAPI", "", "scram-sha-256", "NO-SUCH")

programs(
    {
        "handshake v0 known": _shakes_hands(SCRAM, version=0),
        "handshake v1 known, then nothing": _shakes_hands(SCRAM),
        **{
            f"handshake v{version} unknown {mechanism!r}": _shakes_hands(mechanism, version=version)
            for version, mechanism in product((0, 1), _UNKNOWN)
        },
        "handshake too new": _shakes_hands(SCRAM, version=2),
        "handshake negative version": lambda a: a.ask(
            SASL_HANDSHAKE, -1, _HANDSHAKE, flexible=False
        ),
        "two handshakes": _shakes_hands(SCRAM, SCRAM),
        "two handshakes v0": _shakes_hands(SCRAM, SCRAM, version=0),
        "handshake with bytes behind the body": lambda a: (
            a.ask(SASL_HANDSHAKE, 1, _HANDSHAKE + b"behind"),
            a.authenticate(a.bearer()),
        ),
        "handshake cut short": lambda a: (a.ask(SASL_HANDSHAKE, 1, _HANDSHAKE[:-4]), a.ends()),
        "handshake null mechanism": lambda a: (
            a.ask(SASL_HANDSHAKE, 1, b"\xff\xff", label="SaslHandshake null"),
            a.ends(),
        ),
        "SaslAuthenticate too new at login": lambda a: (
            a.handshake(OAUTH),
            a.ask(SASL_AUTHENTICATE, 3, authenticate_body(a.bearer(), 3), flexible=True),
            a.ends(),
        ),
        "SaslAuthenticate with bytes behind the body": lambda a: (
            a.handshake(OAUTH),
            a.ask(SASL_AUTHENTICATE, 1, authenticate_body(a.bearer(), 1) + b"more"),
            a.metadata(),
        ),
        "SaslAuthenticate cut short": lambda a: (
            a.handshake(OAUTH),
            a.ask(SASL_AUTHENTICATE, 1, authenticate_body(a.bearer(), 1)[:-9]),
            a.ends(),
        ),
        "SaslAuthenticate negative length": lambda a: (
            *(a.handshake(OAUTH), a.ask(SASL_AUTHENTICATE, 1, b"\xff" * 4), a.ends()),
        ),
        "SaslAuthenticate v2 with an unknown tagged field": lambda a: (
            a.handshake(OAUTH),
            a.ask(SASL_AUTHENTICATE, 2, authenticate_body(a.bearer(), 2)[:-1] + b"\x01\x07\x03abc"),
            a.metadata(),
        ),
        "SaslAuthenticate versions mixed in one exchange": lambda a: (
            a.handshake(OAUTH),
            a.authenticate(a.bearer(a.mint(aud="other")), 0),
            a.authenticate(a.bearer(a.mint(lifetime=600)), 2),
            a.metadata(),
        ),
        "before handshake: SaslAuthenticate": lambda a: (a.authenticate(a.bearer()), a.ends()),
        "SaslAuthenticate again after login": lambda a: (
            *(a.oauth(), a.authenticate(a.bearer()), a.metadata()),
        ),
        "SaslAuthenticate too new after login": lambda a: (
            a.oauth(),
            a.ask(SASL_AUTHENTICATE, 3, authenticate_body(b"x", 3), flexible=True),
            a.ends(),
        ),
    }
)

# --- requests before authentication

_REQUESTS: Mapping[str, tuple[int, int, bytes | None]] = {
    "Metadata": (3, 12, None),
    "FindCoordinator": (10, 4, request_body(10, 4, key_type=0, coordinator_keys=["group"])),
    "DescribeCluster": (60, 0, request_body(60, 0, include_cluster_authorized_operations=False)),
}
_BEFORE: Mapping[str, Act] = {
    "before handshake": lambda _: None,
    "between handshake and token": lambda a: a.handshake(OAUTH),
    "between two SCRAM messages": lambda a: (
        a.handshake(SCRAM),
        a.authenticate(_FIRST, label="client-first"),
    ),
}


def _asks(reach: Act, request: tuple[int, int, bytes | None]) -> Act:
    return lambda a: (reach(a), a.ask(*request), a.ends())


programs(
    {
        f"{when}: {name}": _asks(reach, request)
        for (name, request), (when, reach) in product(_REQUESTS.items(), _BEFORE.items())
    }
)
