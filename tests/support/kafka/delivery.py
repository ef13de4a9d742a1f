"""Delivery of events to a topic: events, the deliverer, and the topic's content."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as confluent

from metrics.event_log import EventLog, EventLogSettings

LINE = '{{"schema_version":1,"kind":"closed","connection_id":"{}","sequence":{}}}'
WALL = 1_780_315_200.0


def messages(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes]]:
    """Keys and values of a topic, partition by partition."""
    reader = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    try:
        found = reader.list_topics(topic, timeout=60).topics[topic].partitions
        everything = []
        for partition in found:
            place = confluent.TopicPartition(topic, partition, 0)
            _, end = reader.get_watermark_offsets(place, timeout=60)
            reader.assign([place])
            while reader.position([place])[0].offset < end:
                if (message := reader.poll(1.0)) is not None:
                    assert message.error() is None, message.error()
                    value = message.value()
                    assert value is not None
                    everything.append((message.key(), value))
                elif not end:
                    break
        return everything
    finally:
        reader.close()


def command(folder: Path, topic: str, *more: str) -> list[str]:
    return ["events", "deliver", "--events", str(folder), "--to", f"kafka:{topic}", *more]


@contextmanager
def following(folder: Path, topic: str, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    arguments = command(folder, topic, "--follow", *more)
    with (folder.parent / "deliverer.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "proxy", *arguments], stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def log_in(folder: Path, **more: Any) -> EventLog:
    settings = EventLogSettings(directory=folder, proxy_id="pod", worker=0, rotate_bytes=5000)
    return EventLog(settings._replace(**more))


def lines(connection: str, numbers: range) -> list[str]:
    return [LINE.format(connection, number) for number in numbers]


def arrived(bootstrap: str, topic: str, expected: Sequence[str]) -> bool:
    found = {value for _, value in messages(bootstrap, topic)}
    return found >= {line.encode() for line in expected}
