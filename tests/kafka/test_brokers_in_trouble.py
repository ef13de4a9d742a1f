"""Brokers that close in the middle of a response, die, and return, compared to direct clients."""

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import confluent_kafka
import kafka
import pytest

from tests.support.kafka import go
from tests.support.kafka.clients import User, add_users, password_of, user
from tests.support.kafka.cluster import KafkaCluster, StartCluster
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.wire_client import Address, Outcome, WireClient, record_batch
from tests.support.messages import request_body
from tests.support.proxy_process import (
    ProxyProcess,
    Serve,
    gateway_config,
    relaying_logins,
    sidecar_config,
)
from tests.support.sasl import Issuer

pytestmark = pytest.mark.kafka


_FETCH, _METADATA, _PRODUCE = 1, 3, 0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class BreakingBroker:
    """Forwards to a real broker and resets the connection after some bytes of a response."""

    def __init__(self, broker: Address) -> None:
        self._broker = broker
        self._accepting = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._accepting.getsockname())
        self.answer_bytes: int | None = None
        """Bytes of responses on new connections; None for all."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # close() alone would leave the thread in accept().
        self._accepting.shutdown(socket.SHUT_RDWR)
        self._accepting.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._accepting.accept()
            except OSError:
                return
            far = socket.create_connection(self._broker[:2])
            threading.Thread(target=_pass, args=(near, far, None), daemon=True).start()
            limit = self.answer_bytes
            threading.Thread(target=_pass, args=(far, near, limit), daemon=True).start()


def _pass(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
    left = limit
    try:
        while left != 0 and (data := source.recv(65_536 if left is None else left)):
            sink.sendall(data)
            left = None if left is None else left - len(data)
    except OSError:
        pass
    if left == 0:
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RD)  # wakes the other thread, which holds it open
        end.close()


@pytest.fixture(scope="module")
def breaking(kafka: KafkaCluster) -> Iterator[BreakingBroker]:
    with BreakingBroker(kafka.address()) as broker:
        yield broker


@pytest.fixture(scope="module")
def proxy(breaking: BreakingBroker, jwks: Path, serve: Serve) -> ProxyProcess:
    config = sidecar_config(str(breaking.address), jwks, listeners={"LONG": 3_600_000})
    return serve(config, users=False)


@pytest.mark.parametrize("answer_bytes", [1, 4, 7, 30])
def test_short_answer_breaks_off(
    breaking: BreakingBroker, proxy: ProxyProcess, issuer: Issuer, answer_bytes: int
) -> None:
    breaking.answer_bytes = answer_bytes
    with WireClient(proxy.addresses()["LONG"]) as client:
        actor = Actor(client, issuer)
        actor.oauth(issuer.mint("carol"))
        actor.metadata()
        assert actor.lines[-1] == "< closed"
    assert "Traceback" not in proxy.log()


@pytest.mark.parametrize("answer_bytes", [2_000, 400_000])
def test_long_answer_breaks_off(
    breaking: BreakingBroker,
    proxy: ProxyProcess,
    kafka: KafkaCluster,
    issuer: Issuer,
    topic: str,
    answer_bytes: int,
) -> None:
    """The response is relayed in pieces, so the client has received a part of it."""
    fill(kafka, topic)
    breaking.answer_bytes = answer_bytes
    with WireClient(proxy.addresses()["LONG"]) as client:
        actor = Actor(client, issuer)
        actor.oauth(issuer.mint("carol"))
        actor.send(_FETCH, 4, fetch_body(topic))
        assert client.receive() is Outcome.CLOSED
    assert "Traceback" not in proxy.log()


def fill(kafka: KafkaCluster, topic: str) -> None:
    """800 KB."""
    body = request_body(
        _PRODUCE,
        9,
        transactional_id=None,
        acks=-1,
        timeout=60_000,
        topic_data=[
            {
                "name": topic,
                "partition_data": [{"index": 0, "records": record_batch(b"x" * 800_000)}],
            }
        ],
    )
    with WireClient(kafka.address()) as client:
        client.send_frame(_PRODUCE, 9, 1, "fill", body)
        assert isinstance(client.receive(), bytes)


def fetch_body(topic: str) -> bytes:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
    return request_body(
        _FETCH,
        4,
        max_wait=100,
        min_bytes=1,
        max_bytes=1_000_000,
        isolation_level=0,
        topics=[{"topic": topic, "partitions": [partition]}],
    )


def test_broker_that_was_never_reached(jwks: Path, tmp_path: Path) -> None:
    """A gateway without a cluster starts, refuses clients, and reports that it is not ready."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = Address(*taken.getsockname())
    config = gateway_config(str(nowhere), jwks, listeners={"LONG": 3_600_000})
    with ProxyProcess(config, tmp_path) as process:
        with WireClient(process.addresses()["LONG"]) as client:
            assert client.receive() is Outcome.CLOSED
        assert process.readiness() == 503
        assert "Traceback" not in process.log()


# --- a killed broker

LISTENER, ORDERS = "LONG", "orders"
DOWN_SECONDS = 12.0
PAUSE_SECONDS = 0.05
"""Pause between two records of a client."""
HELD_SECONDS = 3.0
"""As docs/operations.md says."""
CONNECTIONS_AT_ONCE = 2
"""Connections per client: to the bootstrap server and to the broker."""


class Producers:
    """A producer of each library at the same address, until a file exists."""

    def __init__(self, who: User, bootstrap: str, until: Path) -> None:
        self._who, self._bootstrap, self._until = who, bootstrap, until
        self.errors: Counter[str] = Counter()
        """What librdkafka reports to the application."""
        self.lost: list[str] = []

    def start(self, pool: ThreadPoolExecutor) -> list["Future[int]"]:
        """Start the producers; each returns the number of unacknowledged records."""
        return [pool.submit(run) for run in (self._confluent, self._python, self._franz)]

    def _confluent(self) -> int:
        settings = self._who.confluent(self._bootstrap)
        settings["error_cb"] = lambda error: self.errors.update([error.name()])
        producer = confluent_kafka.Producer(settings)

        def done(error: Any, _message: object) -> None:
            if error is not None:
                self.lost.append(f"librdkafka: {error}")

        while not self._until.exists():
            producer.produce(ORDERS, b"x", on_delivery=done)
            producer.poll(PAUSE_SECONDS)
        return producer.flush(120)

    def _python(self) -> int:
        producer = kafka.KafkaProducer(**self._who.python(self._bootstrap))
        sent = []
        while not self._until.exists():
            sent.append(producer.send(ORDERS, b"x"))
            time.sleep(PAUSE_SECONDS)
        producer.flush(120)
        self.lost += [f"kafka-python: {one.exception}" for one in sent if one.failed()]
        producer.close()
        return sum(not one.succeeded() for one in sent)

    def _franz(self) -> int:
        login = self._who.name, password_of(self._who.name)
        marker = self._until.with_suffix(".rebootstrapped")
        go.run("produce", [self._bootstrap, *login, ORDERS, str(self._until), str(marker)])
        return 0  # otherwise it has failed


@pytest.mark.slow
@pytest.mark.parametrize("termination", ["proxy", "broker"])
def test_a_dead_broker_looks_dead(
    start_cluster: StartCluster, issuer: Issuer, jwks: Path, tmp_path: Path, termination: str
) -> None:
    """No record is lost, and clients reconnect no more often than they are disconnected."""
    cluster = start_cluster(nodes=1)
    cluster.create_topic(ORDERS)
    who, relays = user(issuer, "SCRAM-SHA-256"), termination == "broker"
    cluster.add_scram_user(who.name, password_of(who.name))
    upstream = str(cluster.address(1, LISTENER) if relays else cluster.address())
    config = gateway_config(upstream, jwks, listeners={LISTENER: 3_600_000})
    until = tmp_path / "until"
    with (
        ProxyProcess(relaying_logins(config) if relays else config, tmp_path) as proxy,
        ThreadPoolExecutor(6) as pool,
    ):
        if not relays:
            add_users(proxy)
        proxied = Producers(who, str(proxy.addresses()[LISTENER]), until)
        direct = Producers(who, str(cluster.address(1, LISTENER)), until)
        try:
            running = proxied.start(pool) + direct.start(pool)
            time.sleep(5)
            opened, began = proxy.metric("connections_opened_total"), time.monotonic()
            cluster.kill_node(1)
            time.sleep(DOWN_SECONDS)
            cluster.start_node(1)
            opened = proxy.metric("connections_opened_total") - opened
            closes = CONNECTIONS_AT_ONCE * ((time.monotonic() - began) / HELD_SECONDS + 1)
            time.sleep(5)
        finally:
            until.touch()
        unacknowledged = [one.result() for one in running]
    assert (unacknowledged, proxied.lost, direct.lost) == ([0] * 6, [], [])
    assert opened <= 3 * closes
    assert proxied.errors.keys() - direct.errors.keys() <= {"_AUTHENTICATION"}
    assert proxied.errors["_AUTHENTICATION"] <= closes
