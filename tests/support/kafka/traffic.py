"""Traffic through the proxy that shows lost, duplicated and reordered records.

Every value begins with its number in its partition, so the numbers that are read are 0, 1, 2 …
"""

import itertools
import json
import math
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self

import confluent_kafka as confluent
import kafka as python

from tests.support.kafka.clients import User
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.java import RUN_SECONDS
from tests.support.kafka.sasl_differential.transcript import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    authenticate_body,
    bearer,
)
from tests.support.kafka.wire_client import Address, Outcome, WireClient, record_batch
from tests.support.messages import read_response, request_body
from tests.support.sasl import Issuer

PARTITIONS = 4
_NUMBER = struct.Struct(">q")
_PADDING_BYTES = 192
_READ_ON_SECONDS = 120.0


class TrafficFailed(Exception):
    """A record was refused, lost, duplicated or reordered."""


def java_traffic(
    who: User,
    bootstrap: str,
    topic: str,
    seconds: int,
    directory: Path,
    *,
    until: Path | None = None,
) -> list[int]:
    """Numbers of records per partition that Java's clients wrote and read back.

    They run for at least some seconds, and until the file `until` exists.
    """
    client = who.java(directory)
    arguments = (bootstrap, topic, str(PARTITIONS), str(seconds), *([str(until)] if until else []))
    done = client.run("Traffic", *arguments, timeout_seconds=seconds + 2 * RUN_SECONDS)
    if done.exit_status != 0:
        raise TrafficFailed(done.stderr)
    found: list[int] = json.loads(done.stdout)["records"]
    return found


def confluent_traffic(
    who: User,
    bootstrap: str,
    topic: str,
    seconds: float,
    _directory: Path | None = None,
    *,
    pause_seconds: float = 0.0,
    padding_bytes: int = _PADDING_BYTES,
    until: Path | None = None,
) -> list[int]:
    """The same with librdkafka; `pause_seconds` after each round of the partitions."""
    writer = _Writer(who, bootstrap, topic, seconds, pause_seconds, padding_bytes, until)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        return _read_back(who, bootstrap, topic, writer)
    finally:
        thread.join()


class _Writer:
    def __init__(
        self,
        who: User,
        bootstrap: str,
        topic: str,
        seconds: float,
        pause_seconds: float,
        padding_bytes: int,
        until: Path | None,
    ) -> None:
        self.acknowledged = [0] * PARTITIONS
        self.failure: str | None = None
        self.is_done = False
        self._until = until
        self._topic = topic
        self._seconds = seconds
        self._pause_seconds = pause_seconds
        self._padding = bytes(padding_bytes)
        self._producer = confluent.Producer(
            who.confluent(
                bootstrap,
                enable_idempotence=True,
                linger_ms=2,
                queue_buffering_max_messages=20_000,
            )
        )

    def run(self) -> None:
        """Produce until the end and until all records are acknowledged."""
        ends_at = time.monotonic() + self._seconds
        number = 0
        while self.failure is None and (time.monotonic() < ends_at or self._goes_on()):
            for partition in range(PARTITIONS):
                self._produce(partition, number)
            number += 1
            time.sleep(self._pause_seconds)
        if self._producer.flush(_READ_ON_SECONDS) and self.failure is None:
            self.failure = "not all was acknowledged"
        self.is_done = True

    def _goes_on(self) -> bool:
        return self._until is not None and not self._until.exists()

    def _produce(self, partition: int, number: int) -> None:
        value = _NUMBER.pack(number) + self._padding
        while True:
            try:
                self._producer.produce(
                    self._topic, value, partition=partition, on_delivery=self._delivered
                )
            except BufferError:
                self._producer.poll(0.01)
            else:
                self._producer.poll(0)
                return

    def _delivered(self, error: confluent.KafkaError | None, message: confluent.Message) -> None:
        partition = message.partition()
        if error is not None or partition is None:
            self.failure = str(error)
        else:
            self.acknowledged[partition] += 1


def _read_back(who: User, bootstrap: str, topic: str, writer: _Writer) -> list[int]:
    deadline = math.inf
    settings = {"group_id": topic, "auto_offset_reset": "earliest"}
    consumer = confluent.Consumer(who.confluent(bootstrap, **settings))
    consumer.subscribe([topic])
    read = [0] * PARTITIONS
    try:
        while not writer.is_done or read != writer.acknowledged:
            if writer.failure is not None:
                raise TrafficFailed(writer.failure)
            if writer.is_done:
                deadline = min(deadline, time.monotonic() + _READ_ON_SECONDS)
            if time.monotonic() > deadline:
                raise TrafficFailed(f"read {read} of {writer.acknowledged}")
            for message in consumer.consume(10_000, timeout=0.1):
                _check(message, read)
    finally:
        consumer.close()
    return read


def _check(message: confluent.Message, read: list[int]) -> None:
    if message.error() is not None:
        raise TrafficFailed(str(message.error()))
    partition, value = message.partition(), message.value()
    assert partition is not None
    assert value is not None
    if _NUMBER.unpack_from(value)[0] != read[partition]:
        raise TrafficFailed(f"partition {partition}: not {read[partition]} at {message.offset()}")
    read[partition] += 1


Traffic = Callable[..., list[int]]


def traffic_until(
    condition: Callable[[], bool],
    traffic: Traffic,
    who: User,
    bootstrap: str,
    topic: str,
    directory: Path,
    **more: Any,
) -> list[int]:
    """The same until a condition holds."""
    enough = directory / f"enough-{topic}"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(traffic, who, bootstrap, topic, 1, directory, until=enough, **more)
        try:
            wait_until(lambda: running.done() or condition(), what="not enough traffic")
        finally:
            enough.touch()
        return running.result()


def end_offset(kafka: KafkaCluster, topic: str, partition: int) -> int:
    """End offset according to the broker."""
    consumer = python.KafkaConsumer(bootstrap_servers=kafka.bootstrap())
    try:
        where = python.TopicPartition(topic, partition)
        found: int = consumer.end_offsets([where])[where]
    finally:
        consumer.close()
    return found


# Raw clients that never reconnect: a closed connection is an error.
#
# Only one of them writes a partition, so the offsets in its answers are 0, 1, 2 …

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

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def send(
        self, api_key: int, version: int, body: bytes, then: Callable[..., None] = lambda _: None
    ) -> None:
        """Send a request; `then` is called with the answer."""
        number = next(self._numbers)
        self._in_flight.append((api_key, version, number, then))
        self.client.send_frame(api_key, version, number, "traffic", body)

    def hear(self, most_in_flight: int = 0) -> None:
        """Read answers until at most this many are outstanding."""
        while len(self._in_flight) > most_in_flight:
            api_key, version, number, then = self._in_flight.popleft()
            frame = self.client.receive()
            assert not isinstance(frame, Outcome), f"{frame} instead of API {api_key}"
            correlation_id, answer = read_response(api_key, version, frame)
            assert correlation_id == number
            then(answer)

    def log_in(self) -> None:
        """Log in or re-authenticate; the SaslHandshake follows requests in flight."""
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
    """Write records of these sizes repeatedly; return their number.

    `window` requests are in flight when it pauses; it logs in again after `renew_seconds`.
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
        timeout=60_000,
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
    """Read records of these sizes until the end; return their number.

    Each Fetch waits at the broker for up to `wait_ms`.
    """
    offset = 0

    def take(answer: object) -> None:
        nonlocal offset
        (found,) = getattr(answer, "responses")[0].partitions  # noqa: B009 - of any version
        assert found.error_code == 0
        for base_offset, length in _batches(bytes(found.records or b"")):
            assert base_offset == offset
            # The overhead of a record is less than 100 bytes.
            assert sizes[offset % len(sizes)] < length < sizes[offset % len(sizes)] + 100
            offset += 1

    with Connection(address, issuer) as connection:
        connection.log_in()
        while goes_on(offset):
            connection.send(FETCH, 4, _fetch_body(topic, offset, wait_ms), take)
            connection.hear()
    return offset


def _batches(records: bytes) -> list[tuple[int, int]]:
    """Base offset and length of each complete batch."""
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
        max_wait=wait_ms,
        min_bytes=_LARGEST_FETCH,
        max_bytes=_LARGEST_FETCH,
        isolation_level=0,
        topics=[{"topic": topic, "partitions": [wanted]}],
    )
