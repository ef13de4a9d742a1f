"""Programs of OAUTHBEARER (RFC 7628): tokens, messages, the error round."""

import base64
import json
import time
from collections.abc import Callable

from tests.support.kafka.sasl_differential.transcript import Act, Actor, bearer, programs
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


def _shows(mint: Mint, *, is_refused: bool) -> Act:
    if not is_refused:
        return lambda a: (a.oauth(mint(a.issuer)), a.metadata())
    return lambda a: (*(a.oauth(mint(a.issuer)), a.authenticate(b"\x01", label="kvsep"), a.ends()),)


def _says(message: Message) -> Act:
    return lambda a: (a.oauth(message(a.mint())), a.ends())


programs(
    {
        **{f"token refused: {k}": _shows(v, is_refused=True) for k, v in _REFUSED_TOKENS.items()},
        **{
            f"token accepted: {k}": _shows(v, is_refused=False) for k, v in _ACCEPTED_TOKENS.items()
        },
        **{
            f"OAUTHBEARER message: {k}": _says(v) for k, v in {**_UNPARSEABLE, **_PARSEABLE}.items()
        },
    }
)


def _with_claims(raw_claims: str) -> Act:
    """A token whose claims are refused before its signature is checked."""
    claims = base64.urlsafe_b64encode(raw_claims.encode()).rstrip(b"=").decode()

    def act(a: Actor) -> None:
        header, _, signature = a.mint().split(".")
        a.oauth(f"{header}.{claims}.{signature}")
        a.authenticate(b"\x01", label="kvsep")

    return act


def _refused_then(*steps: Act) -> Act:
    """The error round (RFC 7628 section 3.2.3) with the client's reaction."""
    return lambda a: (a.oauth(a.mint(aud="other")), *(step(a) for step in steps))


def _late_then(*steps: Act) -> Act:
    """A token that has expired within the clock skew."""
    return lambda a: (a.oauth(a.mint(lifetime=-5)), *(step(a) for step in steps))


programs(
    {
        "token refused: claims are no JSON": _with_claims("not json"),
        "token refused: claims are a JSON list": _with_claims(json.dumps(["alice"])),
        "error round, then a good token": _refused_then(
            lambda a: a.authenticate(a.bearer(a.mint(lifetime=600)), label="good token"),
            Actor.metadata,
        ),
        "error round, then a bad token, then a good one": _refused_then(
            lambda a: a.authenticate(a.bearer(a.mint(aud="other")), label="bad token"),
            lambda a: a.authenticate(a.bearer(), label="good token"),
            Actor.metadata,
        ),
        "error round, then a message that does not parse": _refused_then(
            lambda a: a.authenticate(b"garbage"), Actor.ends
        ),
        "error round, then an empty message": _refused_then(
            lambda a: a.authenticate(b""), Actor.ends
        ),
        "error round, then a new handshake": _refused_then(
            lambda a: a.handshake("OAUTHBEARER"), Actor.ends
        ),
        "error round, then nothing": _refused_then(Actor.ends),
        "error round, then Metadata": _refused_then(Actor.metadata, Actor.ends),
        "token expired within the skew, then used": _late_then(Actor.metadata),
        "token expired within the skew, then SaslAuthenticate": _late_then(
            lambda a: a.authenticate(b"\x01", label="kvsep"), Actor.ends
        ),
        "token expired within the skew, then renewed": _late_then(
            lambda a: a.oauth(a.mint(lifetime=600)), Actor.metadata
        ),
    }
)
programs(
    {
        "reauth with a token that expired within the skew, then used": lambda a: (
            a.oauth(a.mint(lifetime=600)),
            a.oauth(a.mint(lifetime=-5)),
            a.metadata(),
        )
    },
    listener="SHORT",
)
