"""KIP-368: what happens to a session that is not renewed, and how long a failure takes."""

import struct
import time

from tests.support.kafka.sasl_differential.transcript import (
    SASL_AUTHENTICATE,
    Actor,
    authenticate_body,
    program,
)
from tests.support.kafka.wire_client import API_VERSIONS
from tests.support.messages import request_body

#: The SHORT listener's lifetime and some more: an expiry is judged by whole milliseconds.
_PAST_EXPIRY_SECONDS = 2.3


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
