"""Ports of brokers: opened as brokers come, tried again where another program is in the way."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.brokers.access import open_access
from proxy.config import from_mapping
from proxy.net.handshake_errors import UNRECOGNIZED_NAME
from proxy.net.ports import BrokerPorts
from proxy.net.sockets import Inherited, listen
from proxy.net.tls_contexts import open_listener_tls
from proxy.net.tls_input import server_name
from proxy.scheduling.heartbeats import Heartbeat
from proxy.store import Store, open_store
from proxy.wire.apis import API_VERSIONS, FETCH, METADATA
from proxy.wire.error_codes import ErrorCode
from proxy.wire.metadata import BrokerAddress, parse_response
from proxy.worker.acceptor_link import (
    LAST_OFFER,
    OFFER,
    OWN,
    RESET,
    WITHDRAW,
    AcceptedConnections,
    EndpointId,
    Link,
)
from proxy.worker.endpoints import Endpoints
from proxy.worker.listener import Listener
from tests.support.authenticating_broker import Authenticator, Client
from tests.support.fake_broker import FakeBroker
from tests.support.frames import handshake, meaning, metadata, request
from tests.support.playbook import SCRAM
from tests.support.processes import free_port_range, until
from tests.support.relay import ListenerRecorder, Services, listener_of, listening, read_frame
from tests.support.tls import AUTHORITY, WALL, client_context, looked

HOST = "127.0.0.1"


def routed(
    broker: FakeBroker, first: int, *, link: Link | None = None, store: Store | None = None
) -> tuple[Endpoints, Listener]:
    """A gateway whose brokers 0 and 1 have the ports from `first` on.

    With `link`, an acceptor accepts the connections; with `store`, brokers authenticate clients.
    """
    listener: dict[str, object] = {
        "name": "gate",
        "address": f"{HOST}:{first + 2}",
        "routing": "gateway",
        "advertised.host": HOST,
        "broker.ports": f"{first}-{first + 1}",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
    }
    upstream = {"bootstrap.servers": f"{HOST}:{broker.port}"}
    if store is not None:
        listener["sasl.termination"] = "broker"
        upstream["security.protocol"] = "SASL_PLAINTEXT"
    config = from_mapping({"upstream": upstream, "listeners": [listener]}, base_dir=Path())
    services = Services(access=open_access(config.upstream, None))
    front = listener_of(config.listeners[0], services)
    front.observer = ListenerRecorder([])  # type: ignore[assignment]  # an observer, if not that one
    (settings,) = config.listeners
    assert settings.broker_ports is not None
    ports = BrokerPorts("broker.ports", HOST, settings.broker_ports, 1, Inherited())
    accepted = None if link is None else AcceptedConnections(link, [front], Heartbeat())
    return Endpoints(
        services.spawn, config, [front], services.access, {"gate": ports}, accepted, store
    ), front


def observed(front: Listener) -> list[str]:
    assert isinstance(front.observer, ListenerRecorder)
    return front.observer.log


async def at_once() -> None:
    """Clients may be accepted."""


def answers(port: int) -> Callable[[], bool]:
    def try_it() -> bool:
        try:
            socket.create_connection((HOST, port)).close()
        except ConnectionRefusedError:
            return False
        return True

    return try_it


async def test_a_port_that_another_program_has_is_told_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its broker is not shown as long as clients would be sent to that program."""
    caplog.set_level(logging.INFO)
    first = free_port_range(3)
    async with FakeBroker() as broker:
        broker.brokers = {0: (HOST, broker.port), 1: (HOST, broker.port)}
        routing, front = routed(broker, first)
        routing._make_gateway(front)
        assert routing._cluster is not None
        assert front.gateway is not None
        shown = front.gateway.resolve
        with socket.create_server((HOST, first + 1)):
            for now in (0.0, 5.0):
                assert await routing._cluster.round(now)
            assert shown(0, HOST, broker.port) == (HOST, first)
            assert shown(1, HOST, broker.port) is None
            assert front.gateway.not_shown == 1
            assert routing.not_ready() == [], "the other one is"
        await routing._cluster.round(10.0)
        assert shown(1, HOST, broker.port) == (HOST, first + 1)
        assert (front.gateway.not_shown, routing.not_ready()) == (0, [])
        await until(answers(first + 1))
        routing.close()
    reported = [one.getMessage() for one in caplog.records if "shown" in one.getMessage()]
    assert [text.partition(": ")[2][:24] for text in reported] == [
        "broker 1 is not shown: c",
        "broker 1 is shown now",
    ]


async def test_a_gateway_that_shows_no_broker_is_not_ready() -> None:
    first = free_port_range(3)
    async with FakeBroker() as broker:
        broker.brokers = {1: (HOST, broker.port)}
        routing, front = routed(broker, first)
        routing._make_gateway(front)
        assert routing._cluster is not None
        with socket.create_server((HOST, first + 1)):
            await routing._cluster.round(0.0)
            said = f"cannot listen on {HOST}:{first + 1}: Address already in use"
            assert routing.not_ready() == [f"listener gate: no broker is shown: {said}"]
        await routing._cluster.round(10.0)
        assert routing.not_ready() == []
        await until(answers(first + 1))
        routing.close()


async def test_brokers_ports_accept_nobody_before_the_listener_does() -> None:
    """Another process serves them, which is taken over from when this one is ready."""
    first = free_port_range(3)
    async with FakeBroker() as broker:
        broker.brokers = {0: (HOST, broker.port), 1: (HOST, broker.port)}
        routing, _ = routed(broker, first)
        assert routing._cluster is not None
        ready = asyncio.Event()

        async def may_accept() -> None:
            await ready.wait()

        own = listen(HOST, first + 2)
        opening = asyncio.create_task(routing.open({"gate": own}, may_accept))
        await until(answers(first + 1))
        broker.brokers = {0: (HOST, broker.port)}
        for now in (5.0, 10.0):
            await routing._cluster.round(now)
        await until(lambda: not answers(first + 1)())
        (waiting,) = routing._endpoints.values()
        assert isinstance(waiting, socket.socket), "clients wait in the queue of the port"
        ready.set()
        await opening
        assert routing._endpoints.keys() == {("gate", None), ("gate", 0)}
        assert not answers(first + 1)(), "its broker has left"
        routing.close()


@pytest.mark.parametrize("outside", [{1001}, {7, 1001}])
async def test_a_gateway_whose_brokers_have_no_port_is_not_ready(outside: set[int]) -> None:
    """It reached the cluster: the reason is the range of ports, and the one that fits is named."""
    first = free_port_range(3)
    async with FakeBroker() as broker:
        broker.brokers = dict.fromkeys(sorted(outside), (HOST, broker.port))
        routing, front = routed(broker, first)
        routing._make_gateway(front)
        assert routing._cluster is not None
        await routing._cluster.round(0.0)
        names = ", ".join(map(str, sorted(outside)))
        assert routing.not_ready() == [
            "listener gate: no broker is shown: no port in broker.ports,"
            f" {first}-{first + 1}, for broker {names} ({len(outside)} in all):"
            f" {first}-{first + 1001} would fit"
        ]
        assert front.gateway is not None
        assert front.gateway.not_shown == len(outside)
        broker.brokers = {0: (HOST, broker.port)}
        await routing._cluster.round(10.0)
        assert (routing.not_ready(), front.gateway.not_shown) == ([], 0)
        routing.close()


def authenticating() -> Authenticator:
    return Authenticator(versions={3: (0, 13), 17: (0, 1), 18: (0, 4), 36: (0, 2)})


async def client_of(port: int) -> Client:
    return Client(*await asyncio.open_connection(HOST, port))


async def test_a_client_of_an_unknown_broker_logs_in_elsewhere_and_is_routed_when_it_returns(
    tmp_path: Path,
) -> None:
    """After a restart without a store: the proxy has no login of its own to ask brokers by."""
    first = free_port_range(3)
    store = open_store(f"sqlite:{tmp_path / 'state.db'}")
    async with authenticating() as bootstrap, authenticating() as broker:
        bootstrap.brokers = broker.brokers = {1: (HOST, broker.port)}
        routing, front = routed(bootstrap, first, store=store)
        await routing.open({"gate": listen(HOST, first + 2)}, at_once)
        assert answers(first)()
        assert answers(first + 1)(), "all ports are open from the start"
        assert routing.not_ready() == []
        client = await client_of(first + 1)
        assert await client.log_in() == 0
        client.writer.write(metadata(client.next_id()))
        assert await client.is_closed()
        assert bootstrap.seen(METADATA) == 1, "the proxy's own"
        assert observed(front)[-2:] == ["authenticated User:alice", "closed broker_unknown"]
        again = await client_of(first + 1)
        await again.log_in()
        await again.metadata()
        assert (bootstrap.seen(METADATA), broker.seen(METADATA)) == (1, 1)
        assert {key for key, _ in bootstrap.requests} == {API_VERSIONS, METADATA, 17, 36}
        again.writer.close()
        routing.close()
    store.close()


async def test_the_acceptor_is_told_which_ports_have_a_known_broker(tmp_path: Path) -> None:
    """The listener's own address comes last: then the acceptor knows all that it serves."""
    first = free_port_range(3)
    store = open_store(f"sqlite:{tmp_path / 'state.db'}")
    link = Link(1)

    def said() -> list[tuple[bytes, int]]:
        messages = iter(link.receive_message, None)
        return [(kind, endpoint.broker) for kind, endpoint in messages]

    async with authenticating() as bootstrap:
        routing, front = routed(bootstrap, first, link=link, store=store)
        await routing.open({}, at_once)
        assert said() == [(RESET, OWN), (LAST_OFFER, 0), (LAST_OFFER, 1), (OFFER, OWN)]
        assert front.gateway is not None
        assert front.gateway.resolve(1, HOST, bootstrap.port) == (HOST, first + 1)
        await asyncio.sleep(0)
        assert said() == [(OFFER, 1)]
        routing.close()
        assert sorted(said()) == [(WITHDRAW, OWN), (WITHDRAW, 0), (WITHDRAW, 1)]
    link.acceptor_end.close()
    link.worker_end.close()
    store.close()


async def test_brokers_without_a_port_are_noticed_in_what_clients_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The proxy has no login of its own: before that, it cannot know of them."""
    caplog.set_level(logging.WARNING)
    first = free_port_range(3)
    misfit = (
        f"no port in broker.ports, {first}-{first + 1}, for broker 1001, 1002 (2 in all):"
        f" {first}-{first + 1002} would fit"
    )
    store = open_store(f"sqlite:{tmp_path / 'state.db'}")
    async with authenticating() as bootstrap:
        bootstrap.brokers = {1001: (HOST, bootstrap.port), 1002: (HOST, 9)}
        routing, front = routed(bootstrap, first, store=store)
        await routing.open({"gate": listen(HOST, first + 2)}, at_once)
        assert routing.not_ready() == []
        client = await client_of(first + 2)
        await client.log_in()
        await client.metadata()
        assert front.gateway is not None
        assert front.gateway.not_shown == 2
        assert routing.not_ready() == [f"listener gate: no broker is shown: {misfit}"]
        await until(lambda: misfit in caplog.text)
        client.writer.close()
        routing.close()
    store.close()


async def test_a_replaced_worker_serves_the_connections_that_wait_for_its_brokers() -> None:
    """It was sent them before it died, and knows its brokers before it takes them."""
    first = free_port_range(3)
    link = Link(1)
    async with FakeBroker() as broker:
        broker.brokers = {0: (HOST, broker.port), 1: (HOST, broker.port)}
        clients = []
        for broker_id in (0, 1, 0, 1):
            client, accepted = socket.socketpair()
            assert link.send_connection(EndpointId(0, broker_id), accepted)
            clients.append(await asyncio.open_connection(sock=client))
        routing, front = routed(broker, first, link=link)
        await routing.open({}, at_once)
        for reader, writer in clients:
            writer.write(handshake(1, SCRAM))
            assert await read_frame(reader)
            writer.close()
        client, accepted = socket.socketpair()
        assert link.send_connection(EndpointId(0, 7), accepted)
        reader, writer = await asyncio.open_connection(sock=client)
        assert await reader.read() == b""
        writer.close()
        assert "refused broker_unreachable" in observed(front), "its broker has left"
        routing.close()
    link.acceptor_end.close()
    link.worker_end.close()


# All brokers at one TLS port: the server name selects the broker and the certificate


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


async def test_a_client_of_the_name_of_an_unknown_broker_logs_in_elsewhere(tmp_path: Path) -> None:
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
