"""Programs of first authentications: handshakes, versions, and requests between them."""

from tests.support.kafka.sasl_differential.transcript import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Actor,
    authenticate_body,
    bearer,
    program,
)
from tests.support.kafka.scram_client import ScramClient
from tests.support.messages import request_body

_FIRST = ScramClient(mechanism="SCRAM-SHA-256", name="alice", password="alice-secret").first()


def _each_mechanism() -> None:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        for version in (0, 1, 2):

            @program(f"login {mechanism} SaslAuthenticate v{version}")
            def _(actor: Actor, m: str = mechanism, v: int = version) -> None:
                actor.scram("alice", m, version=v)
                actor.metadata()

        @program(f"login {mechanism} raw tokens")
        def _(actor: Actor, m: str = mechanism) -> None:
            actor.scram("alice", m, handshake=0)
            actor.metadata()

    for version in (0, 1, 2):

        @program(f"login OAUTHBEARER SaslAuthenticate v{version}")
        def _(actor: Actor, v: int = version) -> None:
            actor.oauth(actor.issuer.mint(lifetime=600), v)
            actor.metadata()


_each_mechanism()


@program("login OAUTHBEARER raw token")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(), handshake=0)
    actor.metadata()


@program("login OAUTHBEARER raw token refused, then good")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(aud="other"), handshake=0)
    actor.token(bearer(actor.issuer.mint()))
    actor.metadata()


@program("login OAUTHBEARER raw token refused, then kvsep")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(aud="other"), handshake=0)
    actor.token(b"\x01")


@program("login OAUTHBEARER raw garbage")
def _(actor: Actor) -> None:
    actor.oauth(b"garbage", handshake=0)


@program("login SCRAM raw wrong password")
def _(actor: Actor) -> None:
    actor.scram("alice", password="wrong", handshake=0)


@program("login SCRAM raw unknown user")
def _(actor: Actor) -> None:
    actor.scram("nobody", handshake=0)


@program("login SCRAM raw empty first token")
def _(actor: Actor) -> None:
    actor.handshake("SCRAM-SHA-256", 0)
    actor.token(b"")


@program("raw token looks like a request frame after handshake v0")
def _(actor: Actor) -> None:
    actor.handshake("SCRAM-SHA-256", 0)
    actor.metadata()


@program("SaslAuthenticate frame after handshake v0")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER", 0)
    actor.authenticate(bearer(actor.issuer.mint()))


@program("raw token after handshake v1")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER", 1)
    actor.token(bearer(actor.issuer.mint()))


@program("raw token without handshake")
def _(actor: Actor) -> None:
    actor.token(bearer(actor.issuer.mint()))


@program("raw GSSAPI-like token without handshake")
def _(actor: Actor) -> None:
    actor.token(b"\x60\x82\x01\x00" + b"\x00" * 60)


@program("login on a listener without re-authentication: SCRAM", listener="NEVER")
def _(actor: Actor) -> None:
    actor.scram()
    actor.metadata()
    actor.scram()
    actor.metadata()


@program("login on a listener without re-authentication: OAUTHBEARER", listener="NEVER")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(lifetime=600))
    actor.oauth(actor.issuer.mint(lifetime=600))
    actor.metadata()


@program("login on a short listener", listener="SHORT")
def _(actor: Actor) -> None:
    actor.scram()
    actor.metadata()


@program("login on a short listener, token outlives it", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(lifetime=600))


@program("login SCRAM on mechanism without credential")
def _(actor: Actor) -> None:
    actor.scram("bob", "SCRAM-SHA-512")


# --- SaslHandshake


@program("handshake v0 known")
def _(actor: Actor) -> None:
    actor.handshake("SCRAM-SHA-256", 0)
    actor.ends()


@program("handshake v1 known, then nothing")
def _(actor: Actor) -> None:
    actor.handshake("SCRAM-SHA-256", 1)
    actor.ends()


def _unknown_mechanisms() -> None:
    for version in (0, 1):
        for mechanism in ("PLAIN", "GSSAPI", "", "scram-sha-256", "NO-SUCH"):

            @program(f"handshake v{version} unknown {mechanism!r}")
            def _(actor: Actor, m: str = mechanism, v: int = version) -> None:
                actor.handshake(m, v)
                actor.ends()


_unknown_mechanisms()


@program("handshake too new")
def _(actor: Actor) -> None:
    actor.handshake("SCRAM-SHA-256", 2)
    actor.ends()


@program("handshake negative version")
def _(actor: Actor) -> None:
    actor.ask(SASL_HANDSHAKE, -1, request_body(17, 1, mechanism="OAUTHBEARER"), flexible=False)


@program("two handshakes")
def _(actor: Actor) -> None:
    actor.handshake("SCRAM-SHA-256")
    actor.handshake("SCRAM-SHA-256")
    actor.ends()


@program("two handshakes v0")
def _(actor: Actor) -> None:
    actor.handshake("SCRAM-SHA-256", 0)
    actor.handshake("SCRAM-SHA-256", 0)
    actor.ends()


@program("handshake with bytes behind the body")
def _(actor: Actor) -> None:
    body = request_body(SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER") + b"behind"
    actor.ask(SASL_HANDSHAKE, 1, body)
    actor.authenticate(bearer(actor.issuer.mint()))


@program("handshake cut short")
def _(actor: Actor) -> None:
    actor.ask(SASL_HANDSHAKE, 1, request_body(17, 1, mechanism="OAUTHBEARER")[:-4])
    actor.ends()


@program("handshake null mechanism")
def _(actor: Actor) -> None:
    actor.ask(SASL_HANDSHAKE, 1, b"\xff\xff", label="SaslHandshake null")
    actor.ends()


# --- SaslAuthenticate


@program("SaslAuthenticate too new at login")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER")
    body = authenticate_body(bearer(actor.issuer.mint()), 3)
    actor.ask(SASL_AUTHENTICATE, 3, body, flexible=True)
    actor.ends()


@program("SaslAuthenticate with bytes behind the body")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER")
    actor.ask(SASL_AUTHENTICATE, 1, authenticate_body(bearer(actor.issuer.mint()), 1) + b"more")
    actor.metadata()


@program("SaslAuthenticate cut short")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER")
    actor.ask(SASL_AUTHENTICATE, 1, authenticate_body(bearer(actor.issuer.mint()), 1)[:-9])
    actor.ends()


@program("SaslAuthenticate negative length")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER")
    actor.ask(SASL_AUTHENTICATE, 1, b"\xff\xff\xff\xff")
    actor.ends()


@program("SaslAuthenticate v2 with an unknown tagged field")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER")
    body = authenticate_body(bearer(actor.issuer.mint()), 2)[:-1] + b"\x01\x07\x03abc"
    actor.ask(SASL_AUTHENTICATE, 2, body)
    actor.metadata()


@program("SaslAuthenticate versions mixed in one exchange")
def _(actor: Actor) -> None:
    actor.handshake("OAUTHBEARER")
    actor.authenticate(bearer(actor.issuer.mint(aud="other")), 0)
    actor.authenticate(bearer(actor.issuer.mint(lifetime=600)), 2)
    actor.metadata()


def _before_authentication() -> None:
    requests = {"Metadata": (3, 12), "FindCoordinator": (10, 4), "DescribeCluster": (60, 0)}
    for name, (api_key, version) in requests.items():

        @program(f"before handshake: {name}")
        def _(actor: Actor, k: int = api_key, v: int = version) -> None:
            actor.ask(k, v, _any_body(k, v))
            actor.ends()

        @program(f"between handshake and token: {name}")
        def _(actor: Actor, k: int = api_key, v: int = version) -> None:
            actor.handshake("OAUTHBEARER")
            actor.ask(k, v, _any_body(k, v))
            actor.ends()

        @program(f"between two SCRAM messages: {name}")
        def _(actor: Actor, k: int = api_key, v: int = version) -> None:
            actor.handshake("SCRAM-SHA-256")
            actor.authenticate(_FIRST, label="client-first")
            actor.ask(k, v, _any_body(k, v))
            actor.ends()


def _any_body(api_key: int, version: int) -> bytes | None:
    if api_key == 10:
        return request_body(10, version, key_type=0, coordinator_keys=["group"])
    if api_key == 60:
        return request_body(60, version, include_cluster_authorized_operations=False)
    return None


_before_authentication()


@program("before handshake: SaslAuthenticate")
def _(actor: Actor) -> None:
    actor.authenticate(bearer(actor.issuer.mint()))
    actor.ends()


@program("SaslAuthenticate again after login")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.authenticate(bearer(actor.issuer.mint()))
    actor.metadata()


@program("SaslAuthenticate too new after login")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint())
    actor.ask(SASL_AUTHENTICATE, 3, authenticate_body(b"x", 3), flexible=True)
    actor.ends()
