"""Hand-written answers of a broker that authenticates clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.acl.principals import OpaqueNames
from proxy.wire.apis import is_flexible
from sasl.credentials import ScramMechanism
from sasl.login import ScramClient
from sasl.mechanism import Mechanism
from sasl.messages import SASL_AUTHENTICATE, authenticate_response, handshake_response
from sasl.relayed import RelaySettings
from sasl.states import Authenticated, Enforcement
from tests.support.frames import authenticate, handshake, response, sized
from tests.support.playbook import HOUR_MS, SCRAM, Offer, Playbook

OFFERED = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", "GSSAPI", "X-OWN")
CHALLENGE = b"r=%s,s=c2FsdA==,i=4096"
PROOF = b"v=c2lnbmF0dXJl"
"""A fixed proof; no client of these tests checks it."""


def settings(
    *mechanisms: str, rules: str | None = None, verifiers: Mapping[str, Mechanism] | None = None
) -> RelaySettings:
    return RelaySettings(
        mechanisms=mechanisms,
        opaque_principal=OpaqueNames(rules).principal,
        verifiers={} if verifiers is None else verifiers,
    )


def relaying(
    *,
    enforcement: Enforcement = Enforcement.ENFORCE,
    max_reauth_ms: int = HOUR_MS,
    enforces_token_expiry: bool = True,
    connects: bool = True,
    relays: RelaySettings | None = None,
    offer: Offer | None = None,
    wanted: int | None = None,
    kind: type[Playbook] = Playbook,
) -> Playbook:
    """A connection whose client is authenticated by the broker."""
    return kind(
        enforcement=enforcement,
        max_reauth_ms=max_reauth_ms,
        enforces_token_expiry=enforces_token_expiry,
        connects=connects,
        relays=relays or settings(),
        offer=offer,
        wanted=wanted,
    )


def shaken(correlation_id: int, error_code: int = 0, offered: tuple[str, ...] = OFFERED) -> bytes:
    """The broker's answer to a SaslHandshake."""
    return response(correlation_id, handshake_response(error_code, offered))


def answered(
    correlation_id: int,
    data: bytes = b"",
    *,
    version: int = 1,
    error_code: int = 0,
    lifetime_ms: int = 0,
) -> bytes:
    """The broker's answer to a SaslAuthenticate."""
    body = authenticate_response(
        version,
        error_code=error_code,
        error_message="no" if error_code else "",
        auth_bytes=data,
        session_lifetime_ms=lifetime_ms,
    )
    tags = b"\0" if is_flexible(SASL_AUTHENTICATE, version) else b""
    return response(correlation_id, tags + body)


def shaken_hands(mechanism: str = SCRAM, *, version: int = 1, **how: Any) -> Playbook:
    """A client that has chosen a mechanism, whose transcript begins then."""
    play = relaying(**how)
    play.client(handshake(1, mechanism, version))
    play.broker(shaken(1))
    play.take()
    play.raw = version == 0
    return play


Send = Callable[[bytes], None]


@dataclass
class Login:
    """One SCRAM login of a client, message by message; `broker` sends the broker's part."""

    play: Playbook
    broker: Send
    user: str = "alice"
    first_id: int = 1
    version: int = 1

    def begin(self) -> None:
        self.play.client(handshake(self.first_id, SCRAM))

    def first(self) -> None:
        client = ScramClient(
            mechanism=ScramMechanism.SCRAM_SHA_256, username=self.user, password="secret"
        )
        self.message = client.first()
        self.play.client(authenticate(self.first_id + 1, self.message, self.version))

    def challenged(self) -> None:
        nonce = self.message.partition(b",r=")[2] + b"server"
        self.nonce = nonce
        challenge = CHALLENGE % nonce
        self.broker(answered(self.first_id + 1, challenge, version=self.version))

    def final(self) -> None:
        message = b"c=biws,r=" + self.nonce + b",p=cHJvb2Y="
        self.play.client(authenticate(self.first_id + 2, message, self.version))

    def proven(self, lifetime_ms: int = 0) -> None:
        self.broker(
            answered(self.first_id + 2, PROOF, version=self.version, lifetime_ms=lifetime_ms)
        )

    def rest(self, lifetime_ms: int = 0) -> None:
        """The client has chosen its mechanism; the broker accepts all that follows."""
        self.first()
        self.challenged()
        self.final()
        self.proven(lifetime_ms)

    def run(self, lifetime_ms: int = 0) -> None:
        """Run the whole login, which the broker accepts."""
        self.begin()
        if self.broker == self.play.side:
            self.play.side_connects()
        self.broker(shaken(self.first_id))
        self.rest(lifetime_ms)


def logged_in(
    play: Playbook | None = None, *, lifetime_ms: int = 0, version: int = 1, user: str = "alice"
) -> Playbook:
    """A connection past its login by SCRAM, whose transcript begins after it."""
    play = play or relaying()
    Login(play, play.broker, user=user, version=version).run(lifetime_ms)
    assert isinstance(play.connection.session.state, Authenticated), play.log
    play.take()
    return play


CONFIRMED = response(0, b"\0\0" + bytes(4))
"""The broker's answer to an ApiVersions v0, which it gives only behind a login."""


def raw(data: bytes) -> bytes:
    """A raw token or its answer, without a header."""
    return sized(data)
