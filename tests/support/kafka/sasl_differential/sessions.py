"""Programs of re-authentication (KIP-368), correct and faulty."""

import struct
import time

from tests.support.kafka.sasl_differential.transcript import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TOPIC,
    Actor,
    authenticate_body,
    bearer,
    program,
)
from tests.support.kafka.scram_client import ScramClient
from tests.support.kafka.wire_client import API_VERSIONS
from tests.support.messages import request_body

_FETCH, _PRODUCE = 1, 0

#: The SHORT listener's lifetime and some more: an expiry is judged by whole milliseconds.
_PAST_EXPIRY_SECONDS = 2.3
#: A re-authentication may begin one second after the last one began.
_MAY_BEGIN_SECONDS = 1.1


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


# --- renewed


@program("reauth OAUTHBEARER same user", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.metadata()
    actor.oauth(actor.issuer.mint())
    actor.metadata()
    actor.wait(_MAY_BEGIN_SECONDS)
    actor.oauth(actor.issuer.mint())
    actor.wait(_MAY_BEGIN_SECONDS)
    actor.metadata()  # beyond the first session's end


def _scram_reauth() -> None:
    for version in (0, 1, 2):

        @program(f"reauth SCRAM SaslAuthenticate v{version}", listener="SHORT")
        def _(actor: Actor, v: int = version) -> None:
            actor.scram(version=v)
            actor.wait(_MAY_BEGIN_SECONDS)
            actor.scram(version=v)
            actor.metadata()

    for version in (0, 1, 2):

        @program(f"reauth OAUTHBEARER SaslAuthenticate v{version}", listener="SHORT")
        def _(actor: Actor, v: int = version) -> None:
            actor.oauth(actor.issuer.mint(), v)
            actor.oauth(actor.issuer.mint(), v)
            actor.metadata()


_scram_reauth()


@program("reauth with raw tokens: SCRAM", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram(handshake=0)
    actor.scram(handshake=0)
    actor.metadata()


@program("reauth with raw tokens: OAUTHBEARER", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(), handshake=0)
    actor.oauth(actor.issuer.mint(), handshake=0)
    actor.metadata()


@program("login raw, reauth framed", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(), handshake=0)
    actor.oauth(actor.issuer.mint())
    actor.metadata()


@program("login framed, reauth raw", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram()
    actor.scram(handshake=0)
    actor.metadata()


@program("reauth twice within a second", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.oauth(actor.issuer.mint())
    actor.handshake("OAUTHBEARER")
    actor.metadata()
    actor.authenticate(bearer(actor.issuer.mint()))
    actor.metadata()


@program("handshake too soon, then again in time", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.oauth(actor.issuer.mint())
    actor.handshake("OAUTHBEARER")
    actor.wait(_MAY_BEGIN_SECONDS)
    actor.oauth(actor.issuer.mint())
    actor.metadata()


@program("reauth on the long listener at once")
def _(actor: Actor) -> None:
    actor.scram()
    actor.scram()
    actor.metadata()


@program("reauth bound by the token on a listener without re-authentication", listener="NEVER")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(lifetime=5))  # its rest is no lifetime that is configured
    actor.metadata()
    actor.wait(6.0)
    actor.metadata()


@program("a shorter token shortens the session", late=0.5)
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(lifetime=600))
    actor.oauth(actor.issuer.mint(lifetime=2))
    actor.metadata()
    actor.wait(3.0)
    actor.metadata()


@program("a longer token lengthens the session", late=0.5)
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(lifetime=4))  # its rest is no configured lifetime by chance
    actor.oauth(actor.issuer.mint(lifetime=600))
    actor.wait(5.0)
    actor.metadata()


@program("reauth after expiry, idle meanwhile", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram()
    actor.wait(_PAST_EXPIRY_SECONDS)
    actor.scram()
    actor.metadata()


@program("the token comes long after the handshake", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.wait(1.5)
    actor.handshake("OAUTHBEARER")
    actor.wait(1.5)
    actor.authenticate(bearer(actor.issuer.mint()))
    actor.metadata()


@program("SCRAM reauth stretched over the expiry", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram()
    actor.wait(1.5)
    scram = ScramClient(mechanism="SCRAM-SHA-256", name="alice", password="alice-secret")
    actor.handshake("SCRAM-SHA-256")
    first = actor.authenticate(scram.first(), label="client-first")
    actor.wait(1.5)
    if first:
        actor.authenticate(scram.answer(first).message(), label="client-final")
    actor.metadata()


# --- renewed wrongly


@program("reauth SCRAM other user", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram("alice")
    actor.scram("bob")
    actor.ends()


@program("reauth OAUTHBEARER other user", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint("alice"))
    actor.oauth(actor.issuer.mint("bob"))
    actor.ends()


@program("reauth raw token other user", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint("alice"), handshake=0)
    actor.oauth(actor.issuer.mint("bob"), handshake=0)
    actor.ends()


@program("reauth other mechanism, same name", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram("alice")
    actor.handshake("OAUTHBEARER")
    actor.authenticate(bearer(actor.issuer.mint("alice")))
    actor.ends()


@program("reauth other SCRAM mechanism", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram("alice")
    actor.scram("alice", "SCRAM-SHA-512")
    actor.ends()


@program("reauth unknown mechanism", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram("alice")
    actor.handshake("NO-SUCH")
    actor.ends()


@program("reauth disabled mechanism PLAIN", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram("alice")
    actor.handshake("PLAIN")
    actor.ends()


@program("reauth wrong password", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram("alice")
    actor.scram("alice", password="wrong")
    actor.ends()


@program("reauth unknown user", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram("alice")
    actor.scram("nobody")
    actor.ends()


@program("reauth refused token", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.oauth(actor.issuer.mint(aud="other"))
    actor.authenticate(b"\x01", label="kvsep")
    actor.ends()


@program("reauth refused token, then good", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.oauth(actor.issuer.mint(aud="other"))
    actor.authenticate(bearer(actor.issuer.mint()), label="good token")
    actor.metadata()


@program("reauth garbage", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.oauth(b"garbage")
    actor.ends()


@program("reauth handshake too new", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.handshake("OAUTHBEARER", 2)
    actor.ends()


@program("reauth SaslAuthenticate too new", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.handshake("OAUTHBEARER")
    actor.ask(SASL_AUTHENTICATE, 3, authenticate_body(b"x", 3), flexible=True)
    actor.ends()


@program("reauth two handshakes in a row", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.handshake("OAUTHBEARER")
    actor.handshake("OAUTHBEARER")
    actor.ends()


@program("reauth cut short handshake", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.ask(SASL_HANDSHAKE, 1, b"\x00\x20OAUTH")
    actor.ends()


def _between() -> None:
    bodies: dict[str, tuple[int, int, bytes | None]] = {
        "Metadata": (3, 12, None),
        "ApiVersions": (
            API_VERSIONS,
            3,
            request_body(18, 3, client_software_name="a", client_software_version="1"),
        ),
        "ApiVersions too new": (API_VERSIONS, 9, b""),
        "FindCoordinator": (10, 4, request_body(10, 4, key_type=0, coordinator_keys=["group"])),
        "an unknown API key": (999, 0, b""),
    }
    for label, (api_key, version, body) in bodies.items():

        @program(f"reauth: {label} between handshake and token", listener="SHORT")
        def _(
            actor: Actor,
            k: int = api_key,
            v: int = version,
            b: bytes | None = body,
        ) -> None:
            actor.oauth(actor.issuer.mint())
            actor.handshake("OAUTHBEARER")
            actor.ask(k, v, b)
            actor.ends()


_between()


@program("reauth: Fetch between handshake and token", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.handshake("OAUTHBEARER")
    actor.ask(_FETCH, 12, _fetch_body(100))
    actor.ends()


@program("reauth: Produce acks=0 between handshake and token", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.handshake("OAUTHBEARER")
    body = request_body(_PRODUCE, 9, acks=0, timeout=1000, topic_data=[])
    actor.send(_PRODUCE, 9, body)
    actor.ends()


# --- requests in flight


@program("reauth pipelined between requests", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.send(3, 12)
    actor.send(SASL_HANDSHAKE, 1, request_body(17, 1, mechanism="OAUTHBEARER"))
    actor.send(SASL_AUTHENTICATE, 2, authenticate_body(bearer(actor.issuer.mint()), 2))
    actor.send(3, 12)
    for api_key, version in ((3, 12), (SASL_HANDSHAKE, 1), (SASL_AUTHENTICATE, 2), (3, 12)):
        actor.hear(api_key, version)


@program("reauth behind a slow Fetch", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.send(_FETCH, 12, _fetch_body(700))
    actor.takes(0.7)
    actor.send(SASL_HANDSHAKE, 1, request_body(17, 1, mechanism="OAUTHBEARER"))
    actor.hear(_FETCH, 12)
    actor.hear(SASL_HANDSHAKE, 1)
    actor.authenticate(bearer(actor.issuer.mint()))
    actor.metadata()


@program("login pipelined with the first request")
def _(actor: Actor) -> None:
    actor.send(SASL_HANDSHAKE, 1, request_body(17, 1, mechanism="OAUTHBEARER"))
    actor.send(SASL_AUTHENTICATE, 2, authenticate_body(bearer(actor.issuer.mint()), 2))
    actor.send(3, 12)
    for api_key, version in ((SASL_HANDSHAKE, 1), (SASL_AUTHENTICATE, 2), (3, 12)):
        actor.hear(api_key, version)


@program("Fetch under way when the session expires", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram()
    actor.wait(1.0)
    actor.send(_FETCH, 12, _fetch_body(2_000))
    actor.takes(2.0)
    actor.hear(_FETCH, 12)
    actor.metadata()


@program("SaslAuthenticate without handshake on a live session", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    for version in (0, 1, 2):
        actor.authenticate(bearer(actor.issuer.mint()), version)
    actor.metadata()


# Sessions that end


def _after_expiry() -> None:
    software = request_body(18, 3, client_software_name="a", client_software_version="1")
    uses: dict[str, tuple[int, int, bytes | None]] = {
        "Metadata": (3, 12, None),
        "ApiVersions": (API_VERSIONS, 3, software),
        "ApiVersions too new": (API_VERSIONS, 9, software),
        "SaslAuthenticate": (SASL_AUTHENTICATE, 2, authenticate_body(b"x", 2)),
        "an unknown API key": (999, 0, b""),
    }
    for label, (api_key, version, body) in uses.items():

        @program(f"expired: {label}", listener="SHORT")
        def _(actor: Actor, k: int = api_key, v: int = version, b: bytes | None = body) -> None:
            actor.scram()
            actor.wait(_PAST_EXPIRY_SECONDS)
            actor.ask(k, v, b)
            actor.ends()


_after_expiry()


@program("expired: idle stays open", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram()
    actor.wait(_PAST_EXPIRY_SECONDS)
    actor.ends()


def _expired_logins() -> None:
    for version in (0, 1):

        @program(f"expired: told nothing, login by SaslAuthenticate v{version}", listener="SHORT")
        def _(actor: Actor, v: int = version) -> None:
            actor.scram(version=v)
            actor.wait(_PAST_EXPIRY_SECONDS)
            actor.metadata()


_expired_logins()


@program("expired: login by raw tokens", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(), handshake=0)
    actor.wait(_PAST_EXPIRY_SECONDS)
    actor.metadata()


@program("expired: handshake too soon after the last", listener="SHORT", late=0.2)
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    # A token expires at a whole second: renewed in the middle of one, it lasts half a second.
    middle = 1.5 - time.time() % 1
    actor.takes(middle)
    time.sleep(middle)
    actor.oauth(actor.issuer.mint(lifetime=1))
    actor.wait(0.7)
    actor.handshake("OAUTHBEARER")
    actor.ends()


@program("expired: handshake answered, then Metadata", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram()
    actor.wait(_PAST_EXPIRY_SECONDS)
    actor.handshake("SCRAM-SHA-256")
    actor.metadata()
    actor.ends()


@program("expired: unknown mechanism", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram()
    actor.wait(_PAST_EXPIRY_SECONDS)
    actor.handshake("NO-SUCH")
    actor.ends()


@program("expired: handshake too new", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram()
    actor.wait(_PAST_EXPIRY_SECONDS)
    actor.handshake("SCRAM-SHA-256", 2)
    actor.ends()


@program("expired: half a Metadata request", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram()
    actor.wait(_PAST_EXPIRY_SECONDS)
    actor.raw(struct.pack(">ihhih", 64, 3, 12, 9, -1), "the first bytes of a Metadata frame")
    actor.ends()


@program("expired: token ran out before the listener's limit", listener="LONG", late=0.5)
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(lifetime=2))
    actor.wait(3.0)
    actor.metadata()


# --- the delay of a failed authentication


@program("delay: login wrong password", is_timed=True)
def _(actor: Actor) -> None:
    actor.scram(password="wrong")
    actor.ends()


@program("delay: login unparseable OAUTHBEARER", is_timed=True)
def _(actor: Actor) -> None:
    actor.oauth(b"garbage")
    actor.ends()


@program("delay: error round", is_timed=True)
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(aud="other"))
    actor.authenticate(b"\x01", label="kvsep")
    actor.ends()


@program("delay: unknown mechanism", is_timed=True)
def _(actor: Actor) -> None:
    actor.handshake("NO-SUCH")
    actor.ends()


@program("delay: Metadata before the handshake", is_timed=True)
def _(actor: Actor) -> None:
    actor.metadata()


@program("delay: Metadata between handshake and token", is_timed=True)
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER")
    actor.metadata()
    actor.ends()


@program("delay: reauth other user", is_timed=True)
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint("alice"))
    actor.oauth(actor.issuer.mint("bob"))
    actor.ends()


@program("delay: reauth unknown mechanism", is_timed=True)
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint("alice"))
    actor.handshake("NO-SUCH")


@program("delay: raw token garbage", is_timed=True)
def _(actor: Actor) -> None:
    actor.oauth(b"garbage", handshake=0)


@program("delay: use after expiry", listener="SHORT", is_timed=True)
def _(actor: Actor) -> None:
    actor.scram()
    actor.wait(_PAST_EXPIRY_SECONDS)
    actor.metadata()
