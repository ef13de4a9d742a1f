"""What a false broker says to the proxy's login: honest each time, but for one lie."""
# ruff: noqa: ARG002 - who lies need not listen

import base64
import struct
import time

from tests.proxy.false_broker import ITERATIONS, PASSWORD, Answer, Behaviour, HangupError
from tests.proxy.frames_given import response

TOKEN = "a.token.of.the.proxys"
FORGED = "ERROR forged"
ESCAPES = f"\x1b]0;owned\x07\x1b[2J\r\n{FORGED} line\u202e\u2028"
"""What a terminal might obey."""
LAST = 1_000_000
"""Correlation id of a request that is not answered."""


class OneIteration(Behaviour):
    def server_first(self, nonce: bytes) -> bytes:
        return super().server_first(nonce).replace(b"i=%d" % ITERATIONS, b"i=1")


class TenMillionIterations(Behaviour):
    def server_first(self, nonce: bytes) -> bytes:
        return super().server_first(nonce).replace(b"i=%d" % ITERATIONS, b"i=10000000")


class ManyDigits(Behaviour):
    def server_first(self, nonce: bytes) -> bytes:
        return super().server_first(nonce).replace(b"i=%d" % ITERATIONS, b"i=" + b"9" * 200_000)


class OtherNonce(Behaviour):
    def server_first(self, nonce: bytes) -> bytes:
        return super().server_first(b"x" * len(nonce))


class NonceOfTheClientAlone(Behaviour):
    def server_first(self, nonce: bytes) -> bytes:
        return super().server_first(nonce).replace(b"broker", b"")


class WrongSignature(Behaviour):
    def signature(self, final: bytes) -> bytes:
        return super().signature(final)[::-1]


class ShortSignature(Behaviour):
    def signature(self, final: bytes) -> bytes:
        return super().signature(final)[:4]


class NoSignature(Behaviour):
    def let_in(self, token: bytes = b"") -> Answer:
        return super().let_in()


class NoChallenge(Behaviour):
    def challenge(self, first: bytes) -> Answer:
        return self.let_in()


class SignatureInsteadOfAChallenge(Behaviour):
    def challenge(self, first: bytes) -> Answer:
        return self.let_in(b"v=" + base64.b64encode(bytes(32)))


class TellsAnError(Behaviour):
    def let_in(self, token: bytes = b"") -> Answer:
        return super().let_in(b"e=other-error")


class EndlessChallenges(Behaviour):
    def judge(self, token: bytes) -> Answer:
        return self.challenge(token) if token.startswith(b"n,,n=") else Answer(b"and now?")


class GoesOn(Behaviour):
    def let_in(self, token: bytes = b"") -> Answer:
        return Answer(b"and now?")


class Refuses(Behaviour):
    def judge(self, token: bytes) -> Answer:
        return Answer(error_code=58, message=f"{ESCAPES}{PASSWORD} {TOKEN}")


class RefusesInOtherWords(Behaviour):
    def judge(self, token: bytes) -> Answer:
        return Answer(error_code=58, message=f"refused at {time.monotonic_ns()}")


class UnknownError(Behaviour):
    def judge(self, token: bytes) -> Answer:
        return Answer(error_code=-1)


class RefusesTheMechanism(Behaviour):
    def handshake(self, number: int) -> bytes:
        name = ESCAPES.encode()
        names = struct.pack(">h", len(name)) + name
        return response(number, struct.pack(">hi", 33, 1) + names)


class ClaimsManyMechanisms(Behaviour):
    def handshake(self, number: int) -> bytes:
        return response(number, struct.pack(">hi", 33, 2**31 - 1))


class SaysHalf(Behaviour):
    def authenticate(self, number: int, version: int, token: bytes) -> bytes:
        return super().authenticate(number, version, token)[:-9]


class SaysNothing(Behaviour):
    def authenticate(self, number: int, version: int, token: bytes) -> bytes:
        return b""


class ClaimsAHundredMegabytes(Behaviour):
    def handshake(self, number: int) -> bytes:
        return response(number, bytes(100_000_000))[:1_000]


class HangsUp(Behaviour):
    def handshake(self, number: int) -> bytes:
        raise HangupError


class HalfABody(Behaviour):
    def authenticate(self, number: int, version: int, token: bytes) -> bytes:
        return response(number, self.judge(token).body(version)[:3])


class NegativeSize(Behaviour):
    def handshake(self, number: int) -> bytes:
        return struct.pack(">ii", -5, number)


class HundredMegabytes(Behaviour):
    def authenticate(self, number: int, version: int, token: bytes) -> bytes:
        return response(number, bytes(100_000_000))


class SixtyMegabytes(Behaviour):
    """Less than an answer to Metadata may have."""

    def authenticate(self, number: int, version: int, token: bytes) -> bytes:
        return response(number, b"\1" * 60_000_000)


class HundredMegabytesOfMechanisms(Behaviour):
    def handshake(self, number: int) -> bytes:
        return response(number, struct.pack(">hi", 0, 25_000_000) + bytes(100_000_000))


class OtherNumber(Behaviour):
    def handshake(self, number: int) -> bytes:
        return super().handshake(number + 7)


class AnswersNothing(Behaviour):
    def greet(self) -> bytes:
        return response(99, b"echo")


class AnswersTheClientFirst(Behaviour):
    def greet(self) -> bytes:
        return response(1, b"echo")


class RenewsWrongly(Behaviour):
    """Honest once."""

    lifetime_ms = 1

    def signature(self, final: bytes) -> bytes:
        right = super().signature(final)
        return right[::-1] if self.logins else right


class RenewsNever(Behaviour):
    lifetime_ms = 1

    def judge(self, token: bytes) -> Answer:
        return Answer(error_code=58, message=PASSWORD) if self.logins else super().judge(token)


class RenewsOutOfTurn(Behaviour):
    """Answers the SaslHandshake, and leaves the client's request before it unanswered."""

    lifetime_ms = 1

    def request(self, number: int) -> bytes:
        return b"" if number == LAST else super().request(number)
