"""Programs of SCRAM (RFC 5802): tables of messages, each on a fresh connection."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tests.support.kafka.sasl_differential.transcript import USERS, Act, Actor, programs
from tests.support.kafka.scram_client import NONCE, ScramClient, ScramFinal

_ALICE = ScramClient(mechanism="SCRAM-SHA-256", name="alice", password="alice-secret")

_BAD_FIRST: dict[str, bytes] = {
    "empty": b"",
    "garbage": b"\x00\xff\xfegarbage",
    "no GS2 header": f"n=alice,r={NONCE}".encode(),
    "channel binding supported (y)": f"y,,n=alice,r={NONCE}".encode(),
    "channel binding used (p)": f"p=tls-unique,,n=alice,r={NONCE}".encode(),
    "authzid of another": f"n,a=bob,n=alice,r={NONCE}".encode(),
    "empty name": f"n,,n=,r={NONCE}".encode(),
    "no name": f"n,,r={NONCE}".encode(),
    "no nonce": b"n,,n=alice",
    "empty nonce": b"n,,n=alice,r=",
    "reserved m=": f"n,,m=x,n=alice,r={NONCE}".encode(),
    "name with bare =": f"n,,n=al=ice,r={NONCE}".encode(),
    "name with =2c in lower case": f"n,,n=al=2cice,r={NONCE}".encode(),
    "name with =41": f"n,,n==41lice,r={NONCE}".encode(),
    "nonce before name": f"n,,r={NONCE},n=alice".encode(),
    "name with NUL": f"n,,n=ali\x00ce,r={NONCE}".encode(),
    "name not UTF-8": b"n,,n=\xff\xfe,r=" + NONCE.encode(),
    "nonce with blank": b"n,,n=alice,r=abc def",
    "trailing comma": f"n,,n=alice,r={NONCE},".encode(),
    "extension without value": f"n,,n=alice,r={NONCE},x".encode(),
    "a last message first": b"c=biws,r=abc,p=AAAA",
    "400,000 letters of nonce": f"n,,n=alice,r={NONCE * 20_000}".encode(),
    "unknown user": f"n,,n=nobody,r={NONCE}".encode(),
}

_GOOD_FIRST: dict[str, ScramClient] = {
    "authzid equal": dataclasses.replace(_ALICE, gs2_header="n,a=alice,"),
    "authzid empty": dataclasses.replace(_ALICE, gs2_header="n,a=,"),
    "unknown extension": dataclasses.replace(_ALICE, extensions=",x=something"),
    "tokenauth=true": dataclasses.replace(_ALICE, extensions=",tokenauth=true"),
    "tokenauth=false": dataclasses.replace(_ALICE, extensions=",tokenauth=false"),
    "wrong password": dataclasses.replace(_ALICE, password="wrong"),
    "empty password": dataclasses.replace(_ALICE, password=""),
}


Bend = Callable[[ScramFinal], ScramFinal]


def _with_proof(change: Callable[[bytes], bytes]) -> Bend:
    return lambda final: dataclasses.replace(final, proof=change(final.proof))


_BENT_FINAL: dict[str, Bend] = {
    "nonce with more": lambda final: final.with_bare(final.bare + "X"),
    "the client's nonce alone": lambda final: final.with_bare(f"c=biws,r={NONCE}"),
    "empty proof": _with_proof(lambda _: b""),
    "short proof": _with_proof(lambda proof: proof[:-1]),
    "long proof": _with_proof(lambda proof: proof + b"\x00"),
    "one bit of the proof": _with_proof(lambda proof: bytes([proof[0] ^ 1]) + proof[1:]),
    "unknown extension that the proof does not cover": lambda final: final.with_bare(
        final.bare + ",x=unknown"
    ),
}

_BAD_FINAL: dict[str, bytes] = {
    "empty": b"",
    "garbage": b"garbage",
    "proof not base64": b"c=biws,r=%NONCE%,p=!!!!",
    "no proof": b"c=biws,r=%NONCE%",
    "channel binding not base64": b"c=%%%,r=%NONCE%,p=AAAA",
    "no channel binding": b"r=%NONCE%,p=AAAA",
    "the first message again": _ALICE.first(),
}


_SCRAM = "SCRAM-SHA-256"


def _says_first(message: bytes) -> Act:
    return lambda a: (a.handshake(_SCRAM), a.authenticate(message), a.ends())


def _converses(scram: ScramClient = _ALICE, *, goes_on: bool = False, **how: Any) -> Act:
    return lambda a: (
        a.handshake(_SCRAM),
        a.scram_messages(scram, **how),
        a.metadata() if goes_on else a.ends(),
    )


def _says_last(message: bytes) -> Act:
    def act(a: Actor) -> None:
        a.handshake(_SCRAM)
        server_first = a.authenticate(_ALICE.first(), label="client-first")
        nonce = server_first.split(b",")[0].removeprefix(b"r=")
        a.authenticate(message.replace(b"%NONCE%", nonce))
        a.ends()

    return act


def _logs_in(name: str, mechanism: str) -> Act:
    return lambda a: (a.scram(name, mechanism), a.metadata())


_BINDINGS = {"y,,": "y,,", "empty": "", "authzid added": "n,a=alice,"}

programs(
    {
        **{f"SCRAM first: {label}": _says_first(said) for label, said in _BAD_FIRST.items()},
        **{
            f"SCRAM exchange: {label}": _converses(scram, goes_on=True)
            for label, scram in _GOOD_FIRST.items()
        },
        **{f"SCRAM last: {label}": _converses(bend=bend) for label, bend in _BENT_FINAL.items()},
        **{f"SCRAM last: {label}": _says_last(said) for label, said in _BAD_FINAL.items()},
        "SCRAM last: unknown extension that the proof covers": _converses(
            final_extension=",x=unknown"
        ),
        **{f"SCRAM last: c= says {label}": _converses(cbind=c) for label, c in _BINDINGS.items()},
        **{f"SCRAM name {name!r}": _logs_in(name, mechanism) for name, _, mechanism in USERS[3:]},
        "SCRAM message after success is a new exchange without a handshake": lambda a: (
            a.scram(),
            a.authenticate(_ALICE.first(), label="client-first"),
            a.metadata(),
        ),
        "SCRAM-SHA-512 proof for SCRAM-SHA-256": _converses(
            dataclasses.replace(_ALICE, mechanism="SCRAM-SHA-512")
        ),
    }
)
