"""The proxy's own questions, asked of a broker over real TCP."""

import asyncio
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from proxy.brokers import service_connection
from proxy.brokers.access import Access
from proxy.brokers.own_requests import OWN_CORRELATION_ID
from proxy.brokers.service_connection import (
    MAX_ANSWER_BYTES,
    ServiceConnection,
    fetch_broker,
    fetch_metadata,
)
from proxy.errors import BrokerFault, LoginRefused
from proxy.net.dialler import Dialler
from proxy.wire.api_versions import UNKNOWN_BROKER, BrokerIdentity, UpstreamVersions
from proxy.wire.metadata import BrokerAddress
from sasl.login import ClientExchange, PlainClient
from sasl.messages import handshake_response
from tests.support.certificates import HOUR, Authority, Issued
from tests.support.fake_broker import FakeBroker, WantsLogin
from tests.support.keepalive import options_of_connections_to
from tests.support.processes import PATIENCE_SECONDS, free_ports
from tests.support.tls import AUTHORITY, OURS, Spoken, client_context, server_context

Fetch = Callable[..., Awaitable[Any]]


async def asked(
    broker: FakeBroker,
    fetch: Fetch = fetch_broker,
    *more: int | None,
    host: str = "127.0.0.1",
    timeout_s: float = PATIENCE_SECONDS,
    tls: ssl.SSLContext | None = None,
) -> Any:
    async with broker:
        access = Access(timeout_s=timeout_s, tls=None if tls is None else Spoken(tls))
        return await fetch(host, broker.port, access, *more)


@pytest.mark.parametrize("highest", range(6))
async def test_api_versions_of_brokers_old_and_new(highest: int) -> None:
    """A broker that does not know v5 names its own highest version (KIP-511)."""
    broker = FakeBroker(versions={18: (0, highest), 1: (4, 17)})
    upstream, identity = await asked(broker)
    assert upstream.apis == broker.versions
    assert identity == UNKNOWN_BROKER
    assert broker.requests == ([(18, 5)] if highest == 5 else [(18, 5), (18, highest)])


NODES = {1: ("kafka-1", 9092), 2: ("127.0.0.1", 0), 3: ("kafka-3", 9092)}
"""The second advertises the address at which it is reached."""
WITH_IDS = {3: (0, 13), 18: (0, 5)}


WITHOUT_CLUSTER = {3: (0, 1), 18: (0, 4)}
"""Metadata has a cluster id from v2 on."""


@pytest.mark.parametrize(
    ("given", "node_ids"),
    [
        *(({"versions": WITH_IDS, "node_id": node_id}, {node_id}) for node_id in NODES),
        ({"versions": WITH_IDS, "node_id": 7}, {}),
        ({"versions": WITH_IDS}, {}),
        ({}, {2}),
        ({"brokers": {1: ("kafka-1", 9092)}}, {}),
        ({"versions": WITHOUT_CLUSTER}, None),
    ],
    ids=[*NODES, "not registered yet", "refuses nobody", "older", "older, elsewhere", "nameless"],
)
@pytest.mark.parametrize("expected", [None, 1, 2, 3, 9])
async def test_which_node_a_broker_is(
    given: dict[str, Any], node_ids: set[int] | None, expected: int | None
) -> None:
    """A broker with ApiVersions v5 is known by its answer, an older one by the address that it
    advertises; what was expected does not matter."""
    async with FakeBroker(**{"brokers": dict(NODES)} | given) as broker:
        addresses = broker.brokers.items()
        broker.brokers = {id_: (host, port or broker.port) for id_, (host, port) in addresses}
        access = Access(timeout_s=PATIENCE_SECONDS)
        _, identity = await fetch_broker("127.0.0.1", broker.port, access, expected)
    if node_ids is None:
        assert identity == UNKNOWN_BROKER
    else:
        assert identity == BrokerIdentity(cluster_id="c1", node_ids=frozenset(node_ids))


async def test_versions_are_known_whatever_metadata_says() -> None:
    broker = FakeBroker(brokers={1: ("", 0)})
    upstream, identity = await asked(broker)
    assert upstream.apis == broker.versions
    assert identity == UNKNOWN_BROKER


@pytest.mark.parametrize("fetch", [fetch_broker, fetch_metadata])
async def test_a_listener_that_wants_a_login_is_known_by_its_hanging_up(fetch: Fetch) -> None:
    """Clients would be let in by us, and closed at their first request."""
    with pytest.raises(LoginRefused, match=r"set upstream\.security\.protocol: SASL_SSL"):
        await asked(WantsLogin(), fetch)


@pytest.mark.parametrize("version", range(1, 15))
async def test_metadata_in_every_version(version: int) -> None:
    broker = FakeBroker(
        brokers={1: ("kafka-1", 9092), 2: ("kafka-2", 9093)}, versions={18: (0, 4), 3: (0, version)}
    )
    view = await asked(broker, fetch_metadata)
    assert view.brokers == {
        1: BrokerAddress(host="kafka-1", port=9092, rack="r1"),
        2: BrokerAddress(host="kafka-2", port=9093, rack="r1"),
    }
    assert view.controller_id == 1
    assert view.cluster_id == ("c1" if version >= 2 else None)
    assert broker.requests[-1] == (3, min(version, 13))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x00",
        struct.pack(">i", -1),
        struct.pack(">i", 3),
        struct.pack(">i", MAX_ANSWER_BYTES + 1),
        struct.pack(">ii", 4, 99),
        struct.pack(">ii", 10, 1),
        struct.pack(">iih", 6, 1, 0),
        struct.pack(">iihi", 10, 1, 35, 0) + b"HTTP/1.1 400",
        struct.pack(">iih", 6, 1, 58) + b"\x01",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
@pytest.mark.parametrize("fetch", [fetch_broker, fetch_metadata])
async def test_whatever_else_comes_is_the_brokers_fault(fetch: Fetch, answer: bytes) -> None:
    with pytest.raises(BrokerFault):
        await asked(FakeBroker(answer=answer), fetch)


async def test_the_kernel_probes_the_connection() -> None:
    async def question(_: ServiceConnection) -> list[tuple[int, ...]]:
        return list(options_of_connections_to(broker.port))

    async with FakeBroker() as broker:
        access = Access(timeout_s=PATIENCE_SECONDS, dialler=Dialler(50_000))
        met = await service_connection.ask("127.0.0.1", broker.port, access, question)
        assert met == [(1, 50, 10, 3, 80_000)]


async def test_silence_ends_with_the_timeout() -> None:
    with pytest.raises(BrokerFault, match="no answer within"):
        await asked(FakeBroker(silent=True), timeout_s=0.05)


@pytest.mark.parametrize("host", ["127.0.0.1", "a" * 70 + ".invalid", "\udcff"])
async def test_a_broker_that_cannot_be_reached(host: str) -> None:
    """Refused, or a name that no resolver would take."""
    (port,) = free_ports(1)
    with pytest.raises(BrokerFault):
        await fetch_broker(host, port, Access(timeout_s=PATIENCE_SECONDS))


async def test_a_view_with_an_impossible_broker_is_refused() -> None:
    with pytest.raises(BrokerFault, match="broker 1 at"):
        await asked(FakeBroker(brokers={1: ("", 0)}), fetch_metadata)


async def test_a_login_whose_answer_has_a_broken_header() -> None:
    """The number of tagged fields is there, and the fields are missing."""

    class Sent:
        def write(self, data: bytes) -> None:
            """Nobody reads it."""

    reader = asyncio.StreamReader()
    for answer in (handshake_response(0, ("PLAIN",)), b"\x05"):
        content = struct.pack(">i", OWN_CORRELATION_ID) + answer
        reader.feed_data(struct.pack(">i", len(content)) + content)
    connection = ServiceConnection(reader, cast(asyncio.StreamWriter, Sent()))
    connection.offered = UpstreamVersions(apis={36: (0, 2)})

    async def exchange() -> ClientExchange:
        return PlainClient("ann", "secret")

    with pytest.raises(BrokerFault, match="API 36"):
        await connection.log_in(exchange())


EXPIRED = AUTHORITY.issue(begins=-2 * HOUR, ends=-HOUR)
TRUSTING = client_context(AUTHORITY)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_broker_is_asked_over_tls(host: str) -> None:
    found, _ = await asked(FakeBroker(tls=server_context(OURS)), host=host, tls=TRUSTING)
    assert len(found.apis) == 3


async def test_a_broker_that_wants_a_certificate_gets_it() -> None:
    wanting = server_context(OURS, clients_of=AUTHORITY)
    ours = client_context(AUTHORITY, shown=AUTHORITY.issue("proxy"))
    found, _ = await asked(FakeBroker(tls=wanting), tls=ours)
    assert len(found.apis) == 3
    with pytest.raises(BrokerFault, match=r"requires a client certificate|closed the connection"):
        await asked(FakeBroker(tls=wanting), tls=TRUSTING)


@pytest.mark.parametrize(
    ("broker", "ours", "problem"),
    [
        (OURS, client_context(Authority("other")), "its certificate is refused: unable to get"),
        (EXPIRED, TRUSTING, "its certificate is refused: certificate has expired"),
        (
            AUTHORITY.issue(hosts=("elsewhere",)),
            TRUSTING,
            "its certificate is refused: IP address mismatch",
        ),
    ],
    ids=["unknown authority", "expired", "wrong host"],
)
async def test_what_is_wrong_is_said(broker: Issued, ours: ssl.SSLContext, problem: str) -> None:
    with pytest.raises(BrokerFault, match=problem):
        await asked(FakeBroker(tls=server_context(broker)), tls=ours)


async def test_a_broker_that_answers_with_a_tls_alert_is_called_by_its_name() -> None:
    """`security.protocol` was forgotten: not "an answer of 352518144 bytes"."""
    with pytest.raises(BrokerFault, match=r"speaks TLS; set upstream.security.protocol: SASL_SSL"):
        await asked(FakeBroker(answer=bytes.fromhex("15030300020246")))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "in the TLS handshake; does it speak TLS"),
        (b"\0\0\0\x0a\0\0\0\1\0\0\0\0\0\0", "it does not speak TLS"),
    ],
    ids=["closes, as Kafka does", "answers"],
)
async def test_a_broker_without_tls_is_called_by_its_name(answer: bytes, problem: str) -> None:
    """A ClientHello is a frame of 369 MB to it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        access = Access(timeout_s=PATIENCE_SECONDS, tls=Spoken(TRUSTING))
        with pytest.raises(BrokerFault, match=problem):
            await fetch_broker("127.0.0.1", port, access)
