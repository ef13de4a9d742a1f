"""Traffic of raw clients, which never connect anew: a connection that ends is an error.

A partition is written by one of them alone, so the offsets that it is told are 0, 1, 2 …
"""

import itertools
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from tests.kafka.tokens import Issuer
from tests.kafka.transcript import SASL_AUTHENTICATE, SASL_HANDSHAKE, authenticate_body, bearer
from tests.kafka.wire_client import (
    Address,
    Outcome,
    WireClient,
    milliseconds,
    record_batch,
    request_body,
    response,
)

PRODUCE, FETCH = 0, 1
_BATCH_PREFIX = struct.Struct(">qi")
_LARGEST_FETCH = 4_000_000


class Connection:
    """A client of the proxy, with several requests in flight."""

    def __init__(self, address: Address, issuer: Issuer) -> None:
        self.client = WireClient(address)
        self._issuer = issuer
        self._numbers = itertools.count(1)
        self._in_flight: deque[tuple[int, int, int, Callable[..., None]]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()

    def send(
        self, api_key: int, version: int, body: bytes, then: Callable[..., None] = lambda _: None
    ) -> None:
        """`then` is told the answer."""
        number = next(self._numbers)
        self._in_flight.append((api_key, version, number, then))
        self.client.send_frame(api_key, version, number, "traffic", body)

    def hear(self, most_in_flight: int = 0) -> None:
        """Reads answers until no more than so many are to come."""
        while len(self._in_flight) > most_in_flight:
            api_key, version, number, then = self._in_flight.popleft()
            frame = self.client.receive()
            assert not isinstance(frame, Outcome), f"{frame} instead of API {api_key}"
            correlation_id, answer = response(api_key, version, frame)
            assert correlation_id == number
            then(answer)

    def log_in(self) -> None:
        """Or do it anew: the SaslHandshake goes out behind whatever is in flight."""
        self.send(SASL_HANDSHAKE, 1, request_body(SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER"))
        self.hear()
        token = bearer(self._issuer.mint("carol"))
        self.send(SASL_AUTHENTICATE, 2, authenticate_body(token, 2), _is_in)
        self.hear()


def _is_in(answer: object) -> None:
    assert getattr(answer, "error_code", None) == 0, answer


def write(
    address: Address,
    issuer: Issuer,
    topic: str,
    goes_on: Callable[[], bool],
    sizes: Sequence[int],
    *,
    window: int,
    pause_seconds: float,
    renew_seconds: float = float("inf"),
) -> int:
    """Writes records of these sizes, one after the other and again; returns how many.

    `window` requests are in flight when it pauses; a login is done anew after `renew_seconds`.
    """
    bodies = [_produce_body(topic, record_batch(bytes(size))) for size in sizes]
    written = 0
    with Connection(address, issuer) as connection:
        connection.log_in()
        logged_in_at = time.monotonic()
        while goes_on():
            for _ in range(window):
                then = partial(_has_offset, written)
                connection.send(PRODUCE, 9, bodies[written % len(bodies)], then)
                written += 1
            connection.hear(window // 2)
            if time.monotonic() - logged_in_at > renew_seconds:
                connection.log_in()
                logged_in_at = time.monotonic()
            time.sleep(pause_seconds)
        connection.hear()
    return written


def _produce_body(topic: str, batch: bytes) -> bytes:
    return request_body(
        PRODUCE,
        9,
        transactional_id=None,
        acks=-1,
        timeout=milliseconds(60_000),
        topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
    )


def _has_offset(expected: int, answer: object) -> None:
    (topic,) = getattr(answer, "responses")  # noqa: B009 - of any version
    (found,) = topic.partition_responses
    assert (found.error_code, found.base_offset) == (0, expected)


def read(
    address: Address,
    issuer: Issuer,
    topic: str,
    goes_on: Callable[[int], bool],
    sizes: Sequence[int],
    *,
    wait_ms: int,
) -> int:
    """Reads records of these sizes, for as long as it may; returns how many there were.

    Each Fetch waits at the broker for `wait_ms`, or for more than comes in that time.
    """
    offset = 0

    def take(answer: object) -> None:
        nonlocal offset
        (found,) = getattr(answer, "responses")[0].partitions  # noqa: B009 - of any version
        assert found.error_code == 0
        for base_offset, length in _batches(bytes(found.records or b"")):
            assert base_offset == offset
            # What is around a record takes less than 100 bytes.
            assert sizes[offset % len(sizes)] < length < sizes[offset % len(sizes)] + 100
            offset += 1

    with Connection(address, issuer) as connection:
        connection.log_in()
        while goes_on(offset):
            connection.send(FETCH, 4, _fetch_body(topic, offset, wait_ms), take)
            connection.hear()
    return offset


def _batches(records: bytes) -> list[tuple[int, int]]:
    """Base offset and length of each whole one."""
    found = []
    position = 0
    while position + _BATCH_PREFIX.size <= len(records):
        base_offset, length = _BATCH_PREFIX.unpack_from(records, position)
        position += _BATCH_PREFIX.size + length
        if position <= len(records):
            found.append((base_offset, length))
    return found


def _fetch_body(topic: str, offset: int, wait_ms: int) -> bytes:
    wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": _LARGEST_FETCH}
    return request_body(
        FETCH,
        4,
        max_wait=milliseconds(wait_ms),
        min_bytes=_LARGEST_FETCH,
        max_bytes=_LARGEST_FETCH,
        isolation_level=0,
        topics=[{"topic": topic, "partitions": [wanted]}],
    )
