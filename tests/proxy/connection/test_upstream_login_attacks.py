"""Brokers that lie to the proxy when it logs in: what clients say never reaches them."""

# ruff: noqa: ARG002 - who lies need not listen

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.fake_broker import ECHO, ESCAPES, ITERATIONS, PASSWORD, TOKEN, Answer, Behaviour
from tests.support.frames import fetch, produce, response
from tests.support.kafka.cluster import wait_until
from tests.support.kafka.wire_client import Outcome
from tests.support.upstream import MARKER, OAUTHBEARER, PLAIN, SCRAM, Attacked, assert_clean, start

LAST = 1_000_000
"""Correlation id of a request that is not answered."""


class TenMillionIterations(Behaviour):
    def server_first(self, nonce: bytes) -> bytes:
        return super().server_first(nonce).replace(b"i=%d" % ITERATIONS, b"i=10000000")


class ManyDigits(Behaviour):
    def server_first(self, nonce: bytes) -> bytes:
        return super().server_first(nonce).replace(b"i=%d" % ITERATIONS, b"i=" + b"9" * 200_000)


class WrongSignature(Behaviour):
    def signature(self, final: bytes) -> bytes:
        return super().signature(final)[::-1]


class EndlessChallenges(Behaviour):
    def judge(self, token: bytes) -> Answer:
        return self.challenge(token) if token.startswith(b"n,,n=") else Answer(b"and now?")


class Refuses(Behaviour):
    def judge(self, token: bytes) -> Answer:
        return Answer(error_code=58, message=f"{ESCAPES}{PASSWORD} {TOKEN}")


class RefusesInOtherWords(Behaviour):
    def judge(self, token: bytes) -> Answer:
        return Answer(error_code=58, message=f"refused at {time.monotonic_ns()}")


class RefusesTheMechanism(Behaviour):
    def handshake(self, number: int) -> bytes:
        name = ESCAPES.encode()
        names = struct.pack(">h", len(name)) + name
        return response(number, struct.pack(">hi", 33, 1) + names)


class ClaimsAHundredMegabytes(Behaviour):
    def handshake(self, number: int) -> bytes:
        return response(number, bytes(100_000_000))[:1_000]


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


class OtherNumber(Behaviour):
    def handshake(self, number: int) -> bytes:
        return super().handshake(number + 7)


class RenewsWrongly(Behaviour):
    """Honest once."""

    lifetime_ms = 1

    def signature(self, final: bytes) -> bytes:
        right = super().signature(final)
        return right[::-1] if self.logins else right


class RenewsOutOfTurn(Behaviour):
    """Answers the SaslHandshake, and leaves the client's request before it unanswered."""

    lifetime_ms = 1

    def request(self, number: int) -> bytes:
        return b"" if number == LAST else super().request(number)


pytestmark = pytest.mark.slow

MAX_GROWTH_KB = 40_000
MANY = 60
EXCUSES_SECONDS = 3.0
MAX_LINES_OF_MANY = 13
MAX_OF_A_PROXY_KB = 150_000
MAX_OF_A_REASON = 400


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Attacked]]:
    """One for each mechanism; whose log is judged when all is over."""
    started: dict[str, Attacked] = {}
    with ExitStack() as stack:

        def of(mechanism: str) -> Attacked:
            if mechanism not in started:
                started[mechanism] = start(mechanism, tmp_path_factory.mktemp(mechanism), stack)
            return started[mechanism]

        yield of
        logs = [one.proxy.log() for one in started.values()]
    for log in logs:
        assert_clean(log)


# --- the first login


FALSE: dict[str, tuple[type[Behaviour], ...]] = {
    SCRAM: (TenMillionIterations, ManyDigits, WrongSignature, EndlessChallenges),
    PLAIN: (
        Refuses,
        RefusesTheMechanism,
        NegativeSize,
        HundredMegabytes,
        ClaimsAHundredMegabytes,
        OtherNumber,
    ),
    OAUTHBEARER: (Refuses, EndlessChallenges, HundredMegabytes),
}


@pytest.mark.parametrize(
    ("mechanism", "lie"), [(mechanism, lie) for mechanism, lies in FALSE.items() for lie in lies]
)
def test_nothing_of_a_client_reaches_a_false_broker(
    attacked: Callable[[str], Attacked], mechanism: str, lie: type[Behaviour]
) -> None:
    """The client receives nothing, nobody else suffers, and it ends soon and in little
    memory."""
    one = attacked(mechanism)
    assert one.works()
    peak_kb = one.proxy.peak_kb()
    heard, met = one.ask(lie)
    assert heard is Outcome.CLOSED
    assert MARKER not in met.received
    assert len(met.keys) <= 4
    assert one.works()
    assert one.proxy.peak_kb() - peak_kb < MAX_GROWTH_KB


def test_a_broker_with_a_new_excuse_each_time_does_not_fill_the_log(tmp_path: Path) -> None:
    """Neither its messages to clients' connections nor those to the proxy's own fill the log."""
    with ExitStack() as stack:
        one = start(PLAIN, tmp_path, stack)
        one.broker.asked = RefusesInOtherWords
        began = time.monotonic()
        attempts = 0
        while attempts < MANY or time.monotonic() < began + EXCUSES_SECONDS:
            assert one.ask(RefusesInOtherWords)[0] is Outcome.CLOSED
            attempts += 1
            time.sleep(0.02)
        assert one.proxy.readiness() == 503
    assert len(one.proxy.log().splitlines()) <= MAX_LINES_OF_MANY


# --- lifetimes


@pytest.mark.parametrize("lifetime_ms", [-1, -(2**63), 2**63 - 1, 2**62])
@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM])
def test_impossible_lifetimes_are_no_lifetimes(
    attacked: Callable[[str], Attacked], mechanism: str, lifetime_ms: int
) -> None:
    one = attacked(mechanism)
    one.broker.relayed = type("Lives", (Behaviour,), {"lifetime_ms": lifetime_ms})
    before = len(one.broker.met)
    with one.client() as client:
        for number in range(20):
            client.raw(fetch(number))
            assert client.receive() == response(number, ECHO)[4:]
    assert one.broker.met[before].behaviour.logins == 1


# --- the next logins


@pytest.mark.parametrize("lie", [RenewsWrongly, RenewsOutOfTurn])
def test_a_broker_that_begins_to_lie_ends_the_connection(
    attacked: Callable[[str], Attacked], lie: type[Behaviour]
) -> None:
    """Requests that wait for a login never leave."""
    one = attacked(SCRAM)
    one.broker.relayed = lie
    before = len(one.broker.met)
    with one.client() as client:
        number = 0
        client.raw(fetch(number))
        heard = client.receive()
        assert heard == response(number, ECHO)[4:]
        met = one.broker.met[before]
        handshakes = met.keys.count(17)
        assert handshakes == 1
        if lie is RenewsOutOfTurn:
            client.raw(fetch(LAST))
        time.sleep(1.5)  # past the least interval between two logins
        client.raw(produce(2, records=MARKER))
        assert client.receive() is Outcome.CLOSED
    assert met.keys.count(17) == 2
    assert MARKER not in met.received
    assert one.works()


# --- the proxy's own questions


@pytest.mark.parametrize(
    ("mechanism", "lie"), [(PLAIN, Refuses), (PLAIN, SixtyMegabytes), (SCRAM, WrongSignature)]
)
def test_a_false_broker_is_told_of_in_one_line(
    tmp_path: Path, mechanism: str, lie: type[Behaviour]
) -> None:
    """At the start: `/readyz` and the log have the reason, without a secret."""
    with ExitStack() as stack:
        one = start(mechanism, tmp_path, stack, asked=lie, relayed=lie)
        assert one.proxy.readiness() == 503
        (reason,) = one.proxy.reasons()
        assert reason.isprintable()
        assert len(reason) < MAX_OF_A_REASON
        assert one.broker.address in reason
        with one.client() as client:
            client.raw(produce(1, records=MARKER))
            assert client.receive() is Outcome.CLOSED
        assert not any(MARKER in met.received for met in one.broker.met)
        one.broker.asked = Behaviour
        wait_until(lambda: one.proxy.readiness() == 200, what="not ready", details=one.proxy.log)
        assert one.works()
        assert one.proxy.peak_kb() < MAX_OF_A_PROXY_KB
    log = one.proxy.log()
    assert_clean(log)
    assert_clean(reason)
