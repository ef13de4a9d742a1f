"""The proxy's own questions over TLS: who is asked, and what a mistaken protocol is called."""

import asyncio
import ssl

import pytest
import uvloop

from proxy.brokers.access import Access
from proxy.brokers.service_connection import fetch_broker
from proxy.errors import BrokerFault
from tests.support.certificates import HOUR, Authority, Issued
from tests.support.fake_broker import FakeBroker
from tests.support.processes import PATIENCE_SECONDS
from tests.support.tls import AUTHORITY, OURS, Spoken, client_context, server_context

EXPIRED = AUTHORITY.issue(begins=-2 * HOUR, ends=-HOUR)


def asked(
    broker: ssl.SSLContext | None, ours: ssl.SSLContext | None, host: str = "127.0.0.1"
) -> int:
    """How many APIs the broker offers."""

    async def ask() -> int:
        async with FakeBroker(tls=broker) as listening:
            access = Access(timeout_s=PATIENCE_SECONDS, tls=None if ours is None else Spoken(ours))
            found, _ = await fetch_broker(host, listening.port, access)
            await asyncio.sleep(0.01)
            return len(found.apis)

    return uvloop.run(ask())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_broker_is_asked_over_tls(host: str) -> None:
    assert asked(server_context(OURS), client_context(AUTHORITY), host) == 3


def test_a_broker_that_wants_a_certificate_gets_it() -> None:
    broker = server_context(OURS, clients_of=AUTHORITY)
    assert asked(broker, client_context(AUTHORITY, shown=AUTHORITY.issue("proxy"))) == 3
    with pytest.raises(BrokerFault, match=r"wants a certificate of ours|closed the connection"):
        asked(broker, client_context(AUTHORITY))


@pytest.mark.parametrize(
    ("broker", "ours", "problem"),
    [
        (OURS, client_context(Authority("other")), "its certificate is refused: unable to get"),
        (EXPIRED, client_context(AUTHORITY), "its certificate is refused: certificate has expired"),
        (
            AUTHORITY.issue(hosts=("elsewhere",)),
            client_context(AUTHORITY),
            "its certificate is refused: IP address mismatch",
        ),
    ],
    ids=["unknown authority", "expired", "wrong host"],
)
def test_what_is_wrong_is_said(broker: Issued, ours: ssl.SSLContext, problem: str) -> None:
    with pytest.raises(BrokerFault, match=problem):
        asked(server_context(broker), ours)


def test_a_broker_that_answers_with_a_tls_alert_is_called_by_its_name() -> None:
    """`security.protocol` was forgotten: not "an answer of 352518144 bytes"."""

    async def ask() -> None:
        async with FakeBroker(answer=bytes.fromhex("15030300020246")) as broker:
            await fetch_broker("127.0.0.1", broker.port, Access(timeout_s=PATIENCE_SECONDS))

    with pytest.raises(BrokerFault, match=r"speaks TLS; set upstream.security.protocol: SSL"):
        uvloop.run(ask())


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "in the TLS handshake; does it speak TLS"),
        (b"\0\0\0\x0a\0\0\0\1\0\0\0\0\0\0", "it does not speak TLS"),
    ],
    ids=["closes, as Kafka does", "answers"],
)
def test_a_broker_without_tls_is_called_by_its_name(answer: bytes, problem: str) -> None:
    """A ClientHello is a frame of 369 MB to it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    async def ask() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            access = Access(timeout_s=PATIENCE_SECONDS, tls=Spoken(client_context(AUTHORITY)))
            await fetch_broker("127.0.0.1", port, access)

    with pytest.raises(BrokerFault, match=problem):
        uvloop.run(ask())
