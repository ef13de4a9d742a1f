"""A broker that breaks off in the middle of a response: no part of it passes for a whole."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.wire_client import Address, Outcome, WireClient, record_batch
from tests.support.messages import request_body
from tests.support.proxy_process import ProxyProcess, gateway_config, sidecar_config
from tests.support.sasl import Issuer

pytestmark = pytest.mark.kafka

_FETCH, _METADATA, _PRODUCE = 1, 3, 0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class BreakingBroker:
    """Passes everything to a real broker, and breaks off after so many bytes of its answers."""

    def __init__(self, broker: Address) -> None:
        self._broker = broker
        self._accepting = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._accepting.getsockname())
        self.answer_bytes: int | None = None
        """Of connections that begin from now on; None: all of them."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Closing alone would leave the thread in accept().
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
def proxy(
    breaking: BreakingBroker, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    config = sidecar_config(str(breaking.address), jwks, listeners={"LONG": 3_600_000})
    with ProxyProcess(config, tmp_path_factory.mktemp("faults")) as process:
        yield process


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
    """Cut through: the client has got a part of it by then, and knows that it is a part."""
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
    """A gateway begins without a cluster, refuses clients, and says that it is not ready."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = Address(*taken.getsockname())
    config = gateway_config(str(nowhere), jwks, listeners={"LONG": 3_600_000})
    with ProxyProcess(config, tmp_path) as process:
        with WireClient(process.addresses()["LONG"]) as client:
            assert client.receive() is Outcome.CLOSED
        assert process.readiness() == 503
        assert "Traceback" not in process.log()
