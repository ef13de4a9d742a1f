"""Programs of SCRAM (RFC 5802): tables of messages, each on a fresh connection."""

import dataclasses
from collections.abc import Callable

from tests.support.kafka.sasl_differential.transcript import USERS, Actor, program
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


def _other_nonce(final: ScramFinal) -> ScramFinal:
    return final.with_bare(final.bare + "X")


def _empty_proof(final: ScramFinal) -> ScramFinal:
    return dataclasses.replace(final, proof=b"")


def _short_proof(final: ScramFinal) -> ScramFinal:
    return dataclasses.replace(final, proof=final.proof[:-1])


def _long_proof(final: ScramFinal) -> ScramFinal:
    return dataclasses.replace(final, proof=final.proof + b"\x00")


def _flipped_proof(final: ScramFinal) -> ScramFinal:
    return dataclasses.replace(final, proof=bytes([final.proof[0] ^ 1]) + final.proof[1:])


def _extended(final: ScramFinal) -> ScramFinal:
    return final.with_bare(final.bare + ",x=unknown")


def _client_nonce_only(final: ScramFinal) -> ScramFinal:
    return final.with_bare(f"c=biws,r={NONCE}")


_BENT_FINAL: dict[str, Callable[[ScramFinal], ScramFinal]] = {
    "nonce with more": _other_nonce,
    "the client's nonce alone": _client_nonce_only,
    "empty proof": _empty_proof,
    "short proof": _short_proof,
    "long proof": _long_proof,
    "one bit of the proof": _flipped_proof,
    "unknown extension that the proof does not cover": _extended,
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


def _first_messages() -> None:
    for label, message in _BAD_FIRST.items():

        @program(f"SCRAM first: {label}")
        def _(actor: Actor, m: bytes = message) -> None:
            actor.handshake("SCRAM-SHA-256")
            actor.authenticate(m)
            actor.ends()

    for label, scram in _GOOD_FIRST.items():

        @program(f"SCRAM exchange: {label}")
        def _(actor: Actor, s: ScramClient = scram) -> None:
            actor.handshake("SCRAM-SHA-256")
            actor.scram_messages(s)
            actor.metadata()


def _last_messages() -> None:
    for label, bend in _BENT_FINAL.items():

        @program(f"SCRAM last: {label}")
        def _(actor: Actor, b: Callable[[ScramFinal], ScramFinal] = bend) -> None:
            actor.handshake("SCRAM-SHA-256")
            actor.scram_messages(_ALICE, bend=b)
            actor.ends()

    for label, message in _BAD_FINAL.items():

        @program(f"SCRAM last: {label}")
        def _(actor: Actor, m: bytes = message) -> None:
            actor.handshake("SCRAM-SHA-256")
            server_first = actor.authenticate(_ALICE.first(), label="client-first")
            nonce = server_first.split(b",")[0].removeprefix(b"r=")
            actor.authenticate(m.replace(b"%NONCE%", nonce))
            actor.ends()


def _covered_texts() -> None:
    @program("SCRAM last: unknown extension that the proof covers")
    def _(actor: Actor) -> None:
        actor.handshake("SCRAM-SHA-256")
        actor.scram_messages(_ALICE, final_extension=",x=unknown")
        actor.ends()

    for label, cbind in {"y,,": "y,,", "empty": "", "authzid added": "n,a=alice,"}.items():

        @program(f"SCRAM last: c= says {label}")
        def _(actor: Actor, c: str = cbind) -> None:
            actor.handshake("SCRAM-SHA-256")
            actor.scram_messages(_ALICE, cbind=c)
            actor.ends()

    for name, _password, mechanism in USERS[3:]:

        @program(f"SCRAM name {name!r}")
        def _(actor: Actor, n: str = name, m: str = mechanism) -> None:
            actor.scram(n, m)
            actor.metadata()


_first_messages()
_last_messages()
_covered_texts()


@program("SCRAM message after success is a new exchange without a handshake")
def _(actor: Actor) -> None:
    actor.scram()
    actor.authenticate(_ALICE.first(), label="client-first")
    actor.metadata()


@program("SCRAM-SHA-512 proof for SCRAM-SHA-256")
def _(actor: Actor) -> None:
    actor.handshake("SCRAM-SHA-256")
    actor.scram_messages(dataclasses.replace(_ALICE, mechanism="SCRAM-SHA-512"))
    actor.ends()
