"""A gateway that is replaced under load, in front of librdkafka's mock cluster."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.processes import free_port_range
from tests.support.proxy_process import PATIENCE_SECONDS, Serving

TOPIC = "restarts"
BROKERS = 3


@contextmanager
def mock_cluster() -> Iterator[str]:
    """Run a cluster of three brokers; yield its bootstrap servers."""
    command = [sys.executable, "-m", "proxy.demo.broker"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as cluster:
        assert cluster.stdout is not None
        try:
            yield cluster.stdout.readline().strip()
        finally:
            cluster.terminate()


class Gateway(Serving):
    """A proxy whose processes each take over from the previous one."""

    def __init__(self, directory: Path, workers: int, bootstrap_servers: str) -> None:
        super().__init__(directory, workers)
        port = free_port_range(BROKERS + 2)
        self.port = port
        self.settings["upstream"] = {"bootstrap.servers": bootstrap_servers.split(",")}
        self.settings["listeners"] = [
            {
                "name": "clients",
                "address": f"127.0.0.1:{port}",
                "routing": "gateway",
                "advertised.host": "127.0.0.1",
                "broker.ports": f"{port + 1}-{port + 1 + BROKERS}",
                "security.protocol": "PLAINTEXT",
            }
        ]
        self.broker_ports = [port + 1 + broker_id for broker_id in range(1, BROKERS + 1)]
        self.logs: list[Path] = []
        self.write()

    def launch(self) -> None:
        self.log_path = self.path.with_name(f"proxy-{len(self.logs)}.log")
        self.logs.append(self.log_path)
        super().launch()

    def take_over(self) -> float:
        """Replace the running process; return the seconds until the next one serves."""
        old, begun = self.process, time.monotonic()
        self.options = ["--take-over"]
        if not self.start():
            super().stop()
            self.process = old
            raise AssertionError(self.log())
        took = time.monotonic() - begun
        assert old.wait(PATIENCE_SECONDS) == 0, self.logs[-2].read_text()
        assert old.stdout is not None
        old.stdout.close()
        return took

    def has_confirmed(self, replaced: int) -> Callable[[], bool]:
        """Return a check that this process has replaced the given one."""
        return lambda: f"take-over: process {replaced} is replaced" in self.log()

    def restart(self) -> float:
        """End the process, and start the next; return the seconds until it serves."""
        self.stop()
        begun = time.monotonic()
        assert self.start(), self.log()
        return time.monotonic() - begun


class Connecting:
    """A thread that connects repeatedly to each port in turn."""

    def __init__(self, ports: list[int]) -> None:
        self.connected = 0
        self.worst_seconds = 0.0
        """Longest time of a connection attempt."""
        self.refused: list[OSError] = []
        self._ports = ports
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(0.002):
            for port in self._ports:
                begun = time.monotonic()
                try:
                    socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS).close()
                    self.connected += 1
                    self.worst_seconds = max(self.worst_seconds, time.monotonic() - begun)
                except OSError as error:
                    self.refused.append(error)


class Producing:
    """A thread that produces numbered messages."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.delivered: set[int] = set()
        self.failed: list[str] = []
        self.refused: list[str] = []
        self.worst_seconds = 0.0
        """Longest time until a message was acknowledged."""
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "linger.ms": 1,
                "acks": "all",
                "error_cb": self._error,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,  # doubles at restarts within ten seconds
                "log_level": 0,
            }
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.flush(PATIENCE_SECONDS)

    def _error(self, error: KafkaError) -> None:
        if "refused" in error.str():
            self.refused.append(error.str())

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.01):
            self._produce(number)
            number += 1
            self._producer.poll(0)

    def _produce(self, number: int) -> None:
        begun = time.monotonic()

        def done(error: KafkaError | None, _: Message) -> None:
            self.worst_seconds = max(self.worst_seconds, time.monotonic() - begun)
            if error is None:
                self.delivered.add(number)
            else:
                self.failed.append(error.str())

        self._producer.produce(TOPIC, str(number).encode(), on_delivery=done)


def messages(bootstrap_servers: str) -> set[int]:
    """Return the numbers of all messages in the topic."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    )
    partitions = consumer.list_topics(TOPIC, PATIENCE_SECONDS).topics[TOPIC].partitions
    consumer.assign([TopicPartition(TOPIC, one, 0) for one in partitions])
    found: set[int] = set()
    ended: set[int] = set()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(ended) < len(partitions):
        assert time.monotonic() < deadline, "the topic has no end"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if (error := message.error()) is None:
            found.add(int(message.value() or b""))
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition() or 0)
    consumer.close()
    return found
