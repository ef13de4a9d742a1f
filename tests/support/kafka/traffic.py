"""Traffic through the proxy that shows lost, duplicated and reordered records.

Every value begins with its number in its partition, so the numbers that are read are 0, 1, 2 …
"""

import json
import math
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import confluent_kafka as confluent
import kafka as python

from tests.support.kafka.clients import User
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.java import RUN_SECONDS

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
                bootstrap, enable_idempotence=True, linger_ms=2, queue_buffering_max_messages=20_000
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


def traffic_until(
    condition: Callable[[], bool], who: User, bootstrap: str, topic: str, directory: Path
) -> list[int]:
    """librdkafka's traffic until a condition holds."""
    enough = directory / f"enough-{topic}"
    traffic = partial(confluent_traffic, pause_seconds=0.01, until=enough)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(traffic, who, bootstrap, topic, 1)
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
