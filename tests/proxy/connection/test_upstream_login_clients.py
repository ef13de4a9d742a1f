"""What clients do while the proxy logs in to the broker: nothing of it is lost, or comes twice."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.fake_broker import ECHO, Behaviour, Met
from tests.support.frames import fetch, produce, response
from tests.support.kafka.cluster import wait_until
from tests.support.kafka.wire_client import Outcome, WireClient
from tests.support.upstream import MARKER, OAUTHBEARER, PLAIN, SCRAM, Attacked, start

DUE_SECONDS = 1.2
"""Past the least interval between two logins."""
UNANSWERED = 77
FETCH, HANDSHAKE = 1, 17


class Slow(Behaviour):
    """Honest, but whoever logs in may do much meanwhile; and again as soon as may be."""

    lifetime_ms = 1

    def handshake(self, number: int) -> bytes:
        """After a while."""
        time.sleep(0.3)
        return super().handshake(number)

    def request(self, number: int) -> bytes:
        """Nothing to one of them, as if it were a Produce with acks=0."""
        return b"" if number == UNANSWERED else super().request(number)


@pytest.fixture(scope="module", params=[PLAIN, SCRAM, OAUTHBEARER])
def slow(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Attacked]:
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp(request.param)
        one = start(request.param, directory, stack, relayed=Slow)
        yield one
    assert "Traceback" not in one.proxy.log()


def heard(client: WireClient, numbers: range) -> bool:
    """Whether each is answered, in this order."""
    return all(client.receive() == response(number, ECHO)[4:] for number in numbers)


def with_client(one: Attacked, act: Callable[[WireClient], None]) -> Met:
    """What the broker heard of a client."""
    before = len(one.broker.met)
    with one.client() as client:
        act(client)
    wait_until(lambda: len(one.broker.met) > before, what="no connection")
    return one.broker.met[before]


def test_half_closed_client_gets_its_answers(slow: Attacked) -> None:
    def act(client: WireClient) -> None:
        client.raw(b"".join(fetch(number) for number in range(20)))
        client.finish_sending()
        assert heard(client, range(20))
        assert client.receive() is Outcome.CLOSED

    assert with_client(slow, act).keys.count(FETCH) == 20


@pytest.mark.parametrize("says_end", [False, True])
def test_request_that_wants_no_answer_arrives_though_its_client_is_gone(
    slow: Attacked, *, says_end: bool
) -> None:
    def act(client: WireClient) -> None:
        client.raw(produce(UNANSWERED, acks=0, records=MARKER))
        if says_end:
            client.finish_sending()
            assert client.receive() is Outcome.CLOSED

    met = with_client(slow, act)
    wait_until(lambda: MARKER in met.received, what="not written")


def test_renewal_waits_for_the_rest_of_a_request(slow: Attacked) -> None:
    """It is due in the middle of one; those behind it wait for it."""

    def act(client: WireClient) -> None:
        large = produce(2, records=bytes(500_000))
        client.raw(fetch(1))
        assert heard(client, range(1, 2))
        client.raw(large[:1_000])
        time.sleep(DUE_SECONDS)
        client.raw(large[1_000:] + b"".join(fetch(number) for number in range(3, 30)))
        assert heard(client, range(2, 30))

    keys = with_client(slow, act).keys
    assert keys[keys.index(0) + 1] == HANDSHAKE
    assert keys.count(HANDSHAKE) >= 2
    assert keys.count(FETCH) == 28


def test_bytes_that_come_one_by_one(slow: Attacked) -> None:
    """Headers that are cut anywhere, before and after a renewal."""

    def act(client: WireClient) -> None:
        client.raw(fetch(0))
        assert heard(client, range(1))
        time.sleep(DUE_SECONDS)
        for number in range(1, 4):
            for byte in fetch(number):
                client.raw(bytes([byte]))
                time.sleep(0.001)
            assert heard(client, range(number, number + 1))

    keys = with_client(slow, act).keys
    assert keys.count(HANDSHAKE) >= 2
    assert keys.count(FETCH) == 4
