"""Requests that are timed: which are, and what the broker and the proxy took."""

from collections.abc import Callable

import pytest

from proxy.connection.inflight import SAMPLE_SECONDS, LatencySampler, announcing
from proxy.net.read_buffer import BUFFER_BYTES
from proxy.wire.apis import FETCH, METADATA, PRODUCE
from tests.support.frames import fetch, metadata, produce, response
from tests.support.playbook import Playbook, logged_in


class Timed:
    """A logged-in connection, whose proxy takes `spends` seconds for each read."""

    def __init__(self, *, spends: float = 0.0, connects: bool = True) -> None:
        self.reports: list[tuple[int, float, float]] = []
        self.spends = spends
        self.sampler = LatencySampler(self._clock, lambda *report: self.reports.append(report))
        self.play = logged_in(Playbook(latency=self.sampler, connects=connects))

    def _clock(self) -> float:
        return self.play.now + self.spends

    def after(self, seconds: float, what: Callable[..., None], *pieces: bytes) -> None:
        self.play.now += seconds
        what(*pieces)

    def taken(self) -> list[tuple[int, float, float]]:
        """Return the latencies reported since the last call, in milliseconds."""
        taken, self.reports[:] = list(self.reports), []
        return [
            (key, round(broker * 1e3, 3), round(proxy * 1e3, 3)) for key, broker, proxy in taken
        ]


def test_both_parts_of_a_request() -> None:
    """The proxy's is what it took for the request, and what it took for the response."""
    one = Timed(spends=0.002)
    one.play.client(produce(1))
    one.after(0.05, one.play.broker, response(1))
    assert one.taken() == [(PRODUCE, 48.0, 4.0)]


def test_of_those_that_pass_together_the_last_is_timed() -> None:
    one = Timed()
    one.play.client(fetch(1))
    one.play.broker(response(1))
    assert len(one.taken()) == 1
    one.after(1.0, one.play.client, fetch(2), fetch(3), fetch(4))
    one.after(0.01, one.play.broker, response(2), response(3))
    assert one.taken() == []
    one.after(0.01, one.play.broker, response(4))
    assert one.taken() == [(FETCH, 20.0, 0.0)]


def test_one_that_is_answered_before_all_of_it_came_is_not_timed() -> None:
    """No honest broker does that. The response is relayed, and the next request is timed."""
    one = Timed()
    one.play.client(produce(3, records=b"r" * 100)[:60])
    one.play.broker(response(3))
    one.play.client(produce(3, records=b"r" * 100)[60:], produce(4))
    one.after(0.01, one.play.broker, response(4))
    assert one.play.take() == [
        "connect",
        "to client: #3",
        "to broker: Produce v9 #3",
        "to broker: Produce v9 #4",
        "to client: #4",
    ]
    assert one.taken() == [(PRODUCE, 10.0, 0.0)]


def test_no_more_than_one_in_so_long_of_all_connections() -> None:
    one = Timed()
    other = logged_in(Playbook(latency=one.sampler))
    for number in range(1, 1_001):
        one.after(0.001, one.play.client, fetch(number))
        other.now = one.play.now
        other.client(fetch(number))
        for play in (one.play, other):
            play.broker(response(number))
    assert 1.0 / SAMPLE_SECONDS / 2 < len(one.taken()) <= 1.0 / SAMPLE_SECONDS + 1


def test_one_that_waits_has_waited_in_the_proxy_and_those_after_it_have_not() -> None:
    """For the broker's connection here."""
    one = Timed(connects=False)
    one.play.client(fetch(1), fetch(2))
    one.after(2.0, one.play.broker_connects)
    one.after(0.5, one.play.broker, response(1), response(2))
    one.after(5.0, one.play.client, fetch(3))
    one.after(0.5, one.play.broker, response(3))
    assert one.taken() == [(FETCH, 500.0, 2_000.0), (FETCH, 500.0, 0.0)]


@pytest.mark.parametrize("size", [3 * BUFFER_BYTES, 100_000])
def test_a_long_one_begins_when_it_is_all_there(size: int) -> None:
    one = Timed()
    frame = produce(1, records=bytes(size))
    one.play.client(frame[:1_000])
    one.after(3.0, one.play.client, frame[1_000:])
    one.after(0.25, one.play.broker, response(1))
    assert one.taken() == [(PRODUCE, 250.0, 0.0)]


@pytest.mark.parametrize(
    ("request_", "timed"), [(fetch(1), (FETCH, 250.0, 2.0)), (metadata(1), (METADATA, 250.0, 2.0))]
)
def test_the_broker_is_done_with_the_first_bytes(
    request_: bytes, timed: tuple[int, float, float]
) -> None:
    """And the proxy is not charged for a response that it rewrites, while it comes."""
    one = Timed(spends=0.001)
    one.play.client(request_)
    answer = response(1, bytes(100_000))
    one.after(0.251, one.play.broker, answer[:20])
    one.after(3.0, one.play.broker, answer[20:])
    assert one.taken() == [timed]


def test_a_response_that_is_changed_later_is_still_that_one() -> None:
    """A throttle time is announced in the last response that is owed."""
    one = Timed()
    one.play.client(fetch(1))
    amend_last = one.play.connection.inflight.amend_last
    amend_last(lambda _: True, lambda route: announcing(route, 7))
    one.play.call(lambda connection, now: connection.broker_bytes(b"", now))
    assert one.taken() == []
    one.after(0.5, one.play.broker, response(1, bytes(20)))
    assert one.taken() == [(FETCH, 500.0, 0.0)]


def test_what_nobody_answers_is_not_timed() -> None:
    one = Timed()
    one.play.client(produce(1, acks=0))
    assert one.play.connection.inflight.timed is None
    one.after(0.5, one.play.client, fetch(2))
    one.after(0.5, one.play.broker, response(2))
    assert one.taken() == [(FETCH, 500.0, 0.0)]
