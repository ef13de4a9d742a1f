"""Programs of OAUTHBEARER (RFC 7628): tokens, messages, the error round."""

import base64
import json
import time
from collections.abc import Callable

from tests.support.kafka.sasl_differential.transcript import Actor, bearer, program
from tests.support.sasl import Issuer, tampered

Mint = Callable[[Issuer], str]


def _now(seconds: float) -> int:
    return int(time.time() + seconds)


def _without_signature(issuer: Issuer) -> str:
    return issuer.mint().rsplit(".", 1)[0] + "."


_REFUSED_TOKENS: dict[str, Mint] = {
    "expired an hour ago": lambda i: i.mint(lifetime=-3600),
    "expired beyond the skew": lambda i: i.mint(lifetime=-40),
    "not before an hour": lambda i: i.mint(nbf=_now(3600)),
    "wrong audience": lambda i: i.mint(aud="other"),
    "no audience": lambda i: i.mint(aud=None),
    "audience in other case": lambda i: i.mint(aud="KAFKA"),
    "wrong issuer": lambda i: i.mint(iss="https://other.test"),
    "no issuer": lambda i: i.mint(iss=None),
    "alg none": Issuer.mint_unsigned,
    "alg HS256 keyed with the public key": Issuer.mint_hmac,
    "unknown kid": lambda i: i.mint(kid="nobody"),
    "signed by another key": Issuer.mint_with_wrong_key,
    "tampered claims": lambda i: tampered(i.mint()),
    "signature cut off": _without_signature,
    "two parts": lambda i: i.mint().rsplit(".", 1)[0],
    "four parts": lambda i: i.mint() + ".AAAA",
    "no sub": lambda i: i.mint(None),
    "empty sub": lambda i: i.mint(""),
    "blank sub": lambda i: i.mint("   "),
    "sub is a number": lambda i: i.mint(more={"sub": 7}),
    "no exp": lambda i: i.mint(exp=None),
    "no iat": lambda i: i.mint(iat=None),
    "exp is text": lambda i: i.mint(exp="tomorrow"),
    "exp is zero": lambda i: i.mint(exp=0),
    "unknown crit": lambda i: i.mint(headers={"crit": ["x-unknown"], "x-unknown": 1}),
    "EC token under the RSA kid": lambda i: i.mint(algorithm="ES256"),
    "RSA token under the EC kid": lambda i: i.mint(kid="ec-1"),
    "scope is empty": lambda i: i.mint(scope=""),
}

_ACCEPTED_TOKENS: dict[str, Mint] = {
    "plain": lambda i: i.mint(lifetime=600),
    "ES256": lambda i: i.mint(algorithm="ES256", kid="ec-1"),
    "no kid": lambda i: i.mint(kid=None),
    "RS512 under an RS256 key": lambda i: i.mint(algorithm="RS512"),
    "PS256 under an RS256 key": lambda i: i.mint(algorithm="PS256"),
    "audience is a list": lambda i: i.mint(aud=["other", "kafka"]),
    "iat in the future": lambda i: i.mint(iat=_now(600), lifetime=1200),
    "nbf in the past": lambda i: i.mint(nbf=_now(-600)),
    "nbf within the skew": lambda i: i.mint(nbf=_now(20)),
    "exp with a fraction": lambda i: i.mint(exp=_now(0) + 594.5),
    "sub with blanks around": lambda i: i.mint("  alice  "),
    "sub with unusual characters": lambda i: i.mint("jürgen,=/:;\n<b>x</b>"),
    "sub of a thousand letters": lambda i: i.mint("a" * 1000),
    "scope is text": lambda i: i.mint(scope="read write"),
    "scope is a list": lambda i: i.mint(scope=["read", "write"]),
    "scope is a number": lambda i: i.mint(scope=7),
    "typ at+jwt": lambda i: i.mint(headers={"typ": "at+jwt"}),
    "many claims": lambda i: i.mint(more={f"claim{n}": "x" * 50 for n in range(400)}),
    "expires in ten years": lambda i: i.mint(lifetime=315_360_000),
}

# --- OAUTHBEARER: messages

Message = Callable[[str], bytes]

_UNPARSEABLE: dict[str, Message] = {
    "empty": lambda _: b"",
    "garbage": lambda _: b"\x00\xff\xfegarbage",
    "kvsep alone": lambda _: b"\x01",
    "token alone": lambda t: t.encode(),
    "no GS2 header": lambda t: f"\x01auth=Bearer {t}\x01\x01".encode(),
    "channel binding supported (y)": lambda t: bearer(t, gs2="y,,"),
    "channel binding used (p)": lambda t: bearer(t, gs2="p=tls-unique,,"),
    "authzid of another": lambda t: bearer(t, gs2="n,a=bob,"),
    "GS2 header cut": lambda t: bearer(t, gs2="n,"),
    "one kvsep at the end": lambda t: bearer(t)[:-1],
    "no kvsep at the end": lambda t: bearer(t)[:-2],
    "bytes behind the end": lambda t: bearer(t) + b"behind",
    "no auth": lambda _: b"n,,\x01host=example\x01\x01",
    "auth twice": lambda t: bearer(t, extensions=f"auth=Bearer {t}\x01"),
    "auth empty": lambda _: b"n,,\x01auth=\x01\x01",
    "Bearer without token": lambda _: b"n,,\x01auth=Bearer \x01\x01",
    "scheme Basic": lambda t: bearer(t, scheme="Basic "),
    "no blank after the scheme": lambda t: bearer(t, scheme="Bearer"),
    "tab after the scheme": lambda t: bearer(t, scheme="Bearer\t"),
    "extension name with digits": lambda t: bearer(t, extensions="trace1=x\x01"),
    "extension name with dash": lambda t: bearer(t, extensions="trace-id=x\x01"),
    "extension without =": lambda t: bearer(t, extensions="trace\x01"),
    "extension without name": lambda t: bearer(t, extensions="=x\x01"),
    "extension with DEL": lambda t: bearer(t, extensions="trace=\x7f\x01"),
    "extension with NUL": lambda t: bearer(t, extensions="trace=\x00\x01"),
    "token with blank inside": lambda t: bearer(t.replace(".", " .", 1)),
    "token with umlaut": lambda _: bearer("jürgen"),
    "token empty JSON": lambda _: bearer("{}"),
    "token of letters": lambda _: bearer("abc"),
    "token with three empty parts": lambda _: bearer(".."),
    "token of bad base64": lambda _: bearer("a!b.c!d.e!f"),
}

_PARSEABLE: dict[str, Message] = {
    "scheme in lower case": lambda t: bearer(t, scheme="bearer "),
    "scheme in upper case": lambda t: bearer(t, scheme="BEARER "),
    "three blanks after the scheme": lambda t: bearer(t, scheme="Bearer   "),
    "authzid equal": lambda t: bearer(t, gs2="n,a=alice,"),
    "authzid empty": lambda t: bearer(t, gs2="n,a=,"),
    "extension": lambda t: bearer(t, extensions="traceId=12\x01"),
    "two extensions": lambda t: bearer(t, extensions="traceId=12\x01tenant=x\x01"),
    "extension twice": lambda t: bearer(t, extensions="tenant=a\x01tenant=b\x01"),
    "extension with empty value": lambda t: bearer(t, extensions="tenant=\x01"),
    "extension with = in its value": lambda t: bearer(t, extensions="tenant=a=b\x01"),
    "extension with tab and newline": lambda t: bearer(t, extensions="tenant=a\tb\r\n\x01"),
    "extension with umlaut": lambda t: bearer(t, extensions="tenant=ü\x01"),
    "extension before auth": lambda t: f"n,,\x01host=h\x01auth=Bearer {t}\x01\x01".encode(),
    "authzid with escape": lambda t: bearer(t, gs2="n,a=al=2Cice,"),
    "blank at the token's end": lambda t: bearer(t + " "),
}


def _oauth_tables() -> None:
    for label, mint in _REFUSED_TOKENS.items():

        @program(f"token refused: {label}")
        def _(actor: Actor, m: Mint = mint) -> None:
            actor.oauth(m(actor.issuer))
            actor.authenticate(b"\x01", label="kvsep")
            actor.ends()

    for label, mint in _ACCEPTED_TOKENS.items():

        @program(f"token accepted: {label}")
        def _(actor: Actor, m: Mint = mint) -> None:
            actor.oauth(m(actor.issuer))
            actor.metadata()

    for label, message in {**_UNPARSEABLE, **_PARSEABLE}.items():

        @program(f"OAUTHBEARER message: {label}")
        def _(actor: Actor, m: Message = message) -> None:
            actor.oauth(m(actor.issuer.mint()))
            actor.ends()


_oauth_tables()


def _with_claims(issuer: Issuer, raw_claims: str) -> str:
    """A token whose signature does not matter: its claims are refused or unreadable before."""
    header, _, signature = issuer.mint().split(".")
    claims = base64.urlsafe_b64encode(raw_claims.encode()).rstrip(b"=").decode()
    return f"{header}.{claims}.{signature}"


@program("token refused: claims are no JSON")
def _(actor: Actor) -> None:
    actor.oauth(_with_claims(actor.issuer, "not json"))
    actor.authenticate(b"\x01", label="kvsep")


@program("token refused: claims are a JSON list")
def _(actor: Actor) -> None:
    actor.oauth(_with_claims(actor.issuer, json.dumps(["alice"])))
    actor.authenticate(b"\x01", label="kvsep")


@program("error round, then a good token")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(aud="other"))
    actor.authenticate(bearer(actor.issuer.mint(lifetime=600)), label="good token")
    actor.metadata()


@program("error round, then a bad token, then a good one")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(aud="other"))
    actor.authenticate(bearer(actor.issuer.mint(aud="other")), label="bad token")
    actor.authenticate(bearer(actor.issuer.mint()), label="good token")
    actor.metadata()


@program("error round, then a message that does not parse")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(aud="other"))
    actor.authenticate(b"garbage")
    actor.ends()


@program("error round, then an empty message")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(aud="other"))
    actor.authenticate(b"")
    actor.ends()


@program("error round, then a new handshake")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(aud="other"))
    actor.handshake("OAUTHBEARER")
    actor.ends()


@program("error round, then nothing")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(aud="other"))
    actor.ends()


@program("error round, then Metadata")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(aud="other"))
    actor.metadata()
    actor.ends()


@program("token expired within the skew, then used")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(lifetime=-5))
    actor.metadata()


@program("token expired within the skew, then SaslAuthenticate")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(lifetime=-5))
    actor.authenticate(b"\x01", label="kvsep")
    actor.ends()


@program("token expired within the skew, then renewed")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(lifetime=-5))
    actor.oauth(actor.issuer.mint(lifetime=600))
    actor.metadata()


@program("reauth with a token that expired within the skew, then used", listener="SHORT")
def _(actor: Actor) -> None:
    actor.oauth(actor.issuer.mint(lifetime=600))
    actor.oauth(actor.issuer.mint(lifetime=-5))
    actor.metadata()
