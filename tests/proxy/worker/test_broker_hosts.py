"""All brokers at one TLS port: the server name selects the broker and the certificate."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.brokers.access import open_access
from proxy.config import from_mapping
from proxy.net.handshake_errors import UNRECOGNIZED_NAME
from proxy.net.tls_contexts import open_listener_tls
from proxy.net.tls_input import server_name
from proxy.store import open_store
from proxy.wire.apis import FETCH, METADATA
from proxy.wire.error_codes import ErrorCode
from proxy.wire.metadata import BrokerAddress, parse_response
from proxy.worker.endpoints import Endpoints
from proxy.worker.listener import Listener
from tests.support.authenticating_broker import Authenticator, Client
from tests.support.fake_broker import FakeBroker
from tests.support.frames import meaning, metadata, request
from tests.support.processes import until
from tests.support.relay import ListenerRecorder, Services, listener_of, listening, read_frame
from tests.support.tls import AUTHORITY, WALL, client_context, looked

BOOTSTRAP, ONE, TWO = (f"{name}.kafka.example" for name in ("bootstrap", "broker-1", "broker-2"))
WILD, NAMED, REPLACED = (
    AUTHORITY.issue(name, hosts=hosts)
    for name, hosts in (("wild", ("*.kafka.example",)), ("two", (TWO,)), ("a longer name", (TWO,)))
)
GIVEN: dict[str, Any] = {
    "name": "gate",
    "address": "127.0.0.1:9094",
    "routing": "gateway",
    "advertised.host": "Bootstrap.Kafka.example",
    "broker.hosts": "broker-$(id).kafka.example",
    "security.protocol": "SSL",
    "ssl.keystore.location": "wild.pem",
    "ssl.keystores": [{"ssl.keystore.location": "two.pem"}],
}


@dataclass
class Gate:
    """A gateway in front of brokers 1 and 2."""

    port: int
    brokers: dict[int, FakeBroker]
    front: Listener
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(
        self, name: str, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = context or client_context(AUTHORITY)
        found = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, server_hostname=name)
        self.writers.append(found[1])
        return found

    def reached(self) -> list[int]:
        """Ids of the brokers that got a Fetch, which the proxy itself never sends."""
        return [id_ for id_, one in self.brokers.items() if one.seen(FETCH)]


@asynccontextmanager
async def serving(
    directory: Path, kind: type[FakeBroker] = FakeBroker, /, **more: Any
) -> AsyncIterator[Gate]:
    for file, issued in {"wild.pem": WILD, "two.pem": NAMED}.items():
        (directory / file).write_bytes(issued.pem)
    versions = {3: (0, 13), 18: (0, 5), 1: (4, 17), 17: (0, 1), 36: (0, 2)}
    async with kind(node_id=1, versions=versions) as one, kind(node_id=2, versions=versions) as two:
        brokers = {1: one, 2: two}
        one.brokers = two.brokers = {id_: (b.host, b.port) for id_, b in brokers.items()}
        upstream = {"bootstrap.servers": one.address}
        if "sasl.termination" in more:
            upstream["security.protocol"] = "SASL_PLAINTEXT"
        mapping = {"upstream": upstream, "listeners": [GIVEN | more]}
        config = from_mapping(mapping, base_dir=directory)
        services = Services(access=open_access(config.upstream, None))
        tls = open_listener_tls(0, config.listeners[0], WALL)
        front = listener_of(config.listeners[0], services, tls=tls)
        front.observer = ListenerRecorder([])  # type: ignore[assignment]  # an observer
        store = open_store(f"sqlite:{directory / 'state.db'}")
        routing = Endpoints(services.spawn, config, [front], services.access, {}, store=store)
        sock = listening()
        sock.setblocking(False)

        async def at_once() -> None:
            """Accept clients at once."""

        await routing.open({"gate": sock}, at_once)
        assert routing.not_ready() == []
        try:
            yield (gate := Gate(sock.getsockname()[1], brokers, front))
        finally:
            routing.close()
            store.close()
            for writer in gate.writers:
                writer.close()
            for task in services.tasks:
                task.cancel()
            await until(lambda: not front.clients)


@pytest.mark.parametrize("port", ["", ":443"])
async def test_the_server_name_selects_the_broker(tmp_path: Path, port: str) -> None:
    """Clients get names; their case does not matter (RFC 9525 section 6.3)."""
    async with serving(tmp_path, **{"broker.hosts": f"broker-$(id).KAFKA.example{port}"}) as gate:
        shown = int(port[1:] or 9094)
        for name, id_ in ((TWO, 2), (ONE.upper(), 1), (TWO, 2)):
            reader, writer = await gate.connect(name)
            writer.write(metadata(1) + request(FETCH, 12, 2, b""))
            answer = (await read_frame(reader))[4:]
            assert parse_response(12, answer).brokers == {
                1: BrokerAddress(host=ONE, port=shown, rack="r1"),
                2: BrokerAddress(host=TWO, port=shown, rack="r1"),
            }
            await read_frame(reader)
            assert gate.reached() == [id_]
            gate.brokers[id_].requests.clear()
        reader, writer = await gate.connect(BOOTSTRAP)
        writer.write(request(FETCH, 12, 1, b""))
        await read_frame(reader)
        assert gate.reached() in ([1], [2])


async def test_the_broker_that_a_client_means_is_checked_against_the_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as gate:
        for node_id, error in ((2, ErrorCode.NONE), (1, ErrorCode.REBOOTSTRAP_REQUIRED)):
            reader, writer = await gate.connect(TWO)
            writer.write(meaning(1, "c1", node_id))
            answer = await read_frame(reader)
            assert int.from_bytes(answer[4:6]) == error


async def test_a_client_of_an_unknown_broker_logs_in_elsewhere_and_is_routed_when_it_returns(
    tmp_path: Path,
) -> None:
    """The proxy has no login of its own to ask for the brokers."""
    given: dict[str, Any] = {"security.protocol": "SASL_SSL", "sasl.termination": "broker"}
    async with serving(tmp_path, Authenticator, **given) as gate:
        client = Client(*await gate.connect(TWO))
        assert await client.log_in() == 0
        assert await client.is_closed()
        again = Client(*await gate.connect(TWO))
        assert await again.log_in() == 0
        await again.metadata()
        asked = {id_: broker.seen(METADATA) for id_, broker in gate.brokers.items()}
        assert asked == {1: 1, 2: 1}, "the first by the proxy"


@pytest.mark.parametrize(
    "name",
    [
        "127.0.0.1",
        "kafka.example",
        "broker-.kafka.example",
        "broker-02.kafka.example",
        "broker-7.kafka.example",
        f"broker-{2**31}.kafka.example",
        f"x.{TWO}",
        f"{TWO}.example",
    ],
)
async def test_an_unknown_or_missing_name_is_refused(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An IP address is not sent as a name (RFC 6066 section 3)."""
    async with serving(tmp_path) as gate:
        for _ in range(2):
            with pytest.raises(ssl.SSLError) as refused:
                await gate.connect(name)
            assert refused.value.reason == "TLSV1_UNRECOGNIZED_NAME"
        await until(lambda: not gate.front.clients)
        assert isinstance(gate.front.observer, ListenerRecorder)
        assert set(gate.front.observer.log) == {"closed tls_handshake_failed"}
        assert not gate.reached()
    what = "no server name" if name == "127.0.0.1" else f"the unknown server name '{name}'"
    (line,) = [one for one in caplog.messages if "handshake" in one]
    assert line == (
        f"listener gate: TLS handshake with 127.0.0.1 failed: it sends {what} (SNI);"
        " see advertised.host and broker.hosts"
    )


async def test_names_have_certificates_of_their_own_which_are_replaced(tmp_path: Path) -> None:
    def serial(writer: asyncio.StreamWriter) -> int:
        return int(writer.get_extra_info("peercert")["serialNumber"], 16)

    async with serving(tmp_path) as gate:
        for name, issued in ((ONE, WILD), (TWO, NAMED), (BOOTSTRAP, WILD), (TWO, REPLACED)):
            if issued is REPLACED:
                (tmp_path / "two.pem").write_bytes(REPLACED.pem)
                assert gate.front.tls is not None
                assert looked(gate.front.tls.others[0])
            _, writer = await gate.connect(name)
            assert serial(writer) == issued.serial


# The parser


def hello(name: str | None) -> bytes:
    """The ClientHello of OpenSSL, as one record."""
    context, sent = ssl.create_default_context(), ssl.MemoryBIO()
    context.check_hostname = False
    near = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        near.do_handshake()
    return sent.read()


def records(record: bytes, size: int) -> bytes:
    """The same content in records of `size` bytes."""
    content = record[5:]
    parts = (content[start : start + size] for start in range(0, len(content), size))
    return b"".join(record[:3] + len(part).to_bytes(2) + part for part in parts)


def spoiled(record: bytes) -> Iterator[bytes]:
    """Every truncation, and every byte of the content changed."""
    for end in range(5, len(record)):
        yield record[:3] + (end - 5).to_bytes(2) + record[5:end]
        yield record[:end] + b"\xff" + record[end + 1 :]


def test_the_server_name_of_any_hello() -> None:
    sent = hello(TWO.upper())
    for size in (1, 7, 1 << 14):
        assert server_name(records(sent, size)) == TWO
    assert server_name(hello(None)) is None
    for one in spoiled(sent):
        name = server_name(one)
        assert name is None or name.isascii()
    forged = sent.replace(b"KER-2", b"\r\n\x1b\xff2")
    assert server_name(forged) == "bro\r\n\x1b\\xff2.kafka.example"


async def test_a_forged_name_is_refused_on_one_printable_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent = hello(TWO).replace(b"ker-2", b"\r\n\x1b\xff2")
    async with serving(tmp_path) as gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
        writer.write(sent)
        assert await reader.read() == UNRECOGNIZED_NAME
        writer.close()
    (line,) = caplog.messages
    assert r"'bro\r\n\x1b\\xff2.kafka.example'" in line
    assert line.isprintable()
