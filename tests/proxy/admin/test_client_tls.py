"""The client over TLS, and its errors if only one side uses TLS."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from proxy.admin import AdminClient, BrokerUnavailable
from tests.support.certificates import HOUR, Authority
from tests.support.fake_broker import ALICE, Peer, against
from tests.support.processes import PATIENCE_SECONDS
from tests.support.tls import AUTHORITY, OURS, client_context, server_context

TRUSTING = client_context(AUTHORITY)


async def described(client: AdminClient) -> None:
    assert (await client.describe_acls()).values() == ()


def failing(*problems: str) -> Callable[[AdminClient], Awaitable[None]]:
    """In one line, with the broker's address in front."""

    async def work(client: AdminClient) -> None:
        with pytest.raises(BrokerUnavailable) as caught:
            await client.describe_acls()
        address, _, said = str(caught.value).partition(": ")
        assert address.startswith("127.0.0.1:")
        assert any(said.startswith(problem) for problem in problems), said
        assert "\n" not in said

    return work


async def test_a_login_and_its_renewal_over_tls() -> None:
    peer = Peer(passwords={"alice": "alice-secret"}, tls=server_context(OURS), lifetime_ms=1)
    async with against(peer, login=ALICE, tls=TRUSTING) as client:
        for _ in range(2):
            await described(client)
    assert peer.seen(29) == 2


async def test_a_certificate_of_ours_is_shown() -> None:
    peer = Peer(tls=server_context(OURS, clients_of=AUTHORITY))
    shown = client_context(AUTHORITY, shown=AUTHORITY.issue("admin"))
    async with against(peer, tls=shown) as client:
        await described(client)


@pytest.mark.parametrize(
    ("server", "ours", "problem"),
    [
        (OURS, client_context(Authority("other")), "its certificate is refused: unable to get"),
        (
            AUTHORITY.issue(hosts=("elsewhere",)),
            TRUSTING,
            "its certificate is refused: IP address mismatch",
        ),
        (
            AUTHORITY.issue(begins=-2 * HOUR, ends=-HOUR),
            TRUSTING,
            "its certificate is refused: certificate has expired",
        ),
    ],
    ids=["untrusted", "wrong host", "expired"],
)
async def test_a_certificate_that_is_not_good(
    server: object, ours: ssl.SSLContext, problem: str
) -> None:
    async with against(Peer(tls=server_context(server)), tls=ours) as client:  # type: ignore[arg-type]
        await failing(problem)(client)


async def test_tls_where_there_is_none() -> None:
    """The bytes that it reads as a frame's size are too large."""
    problem = "it closes the connection in the TLS handshake; does it speak TLS?"
    async with against(Peer(), tls=TRUSTING) as client:
        await failing(problem)(client)


async def test_a_handshake_that_does_not_end() -> None:
    """The time for a request bounds it, too."""
    gate: list[asyncio.StreamWriter] = []
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        server = await asyncio.start_server(lambda _, writer: gate.append(writer), "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        client = AdminClient(f"127.0.0.1:{port}", ssl_context=TRUSTING, request_timeout_s=0.1)
        await failing("no answer within 0.1 s")(client)
        for writer in gate:
            writer.transport.abort()
        server.close()


async def test_none_where_there_is_tls() -> None:
    problem = "closed the connection instead of answering; does it speak TLS?"
    async with against(Peer(tls=server_context(OURS))) as client:
        await failing(problem)(client)


@pytest.mark.parametrize(
    ("first", "tls", "problem"),
    [
        (
            "15030300020246",  # the alert of a server that reads no record (RFC 8446 section 6)
            None,
            "it answers in TLS: set security.protocol to SSL or SASL_SSL",
        ),
        ("485454502f312e31", None, "the response claims 1213486160 bytes"),
        ("485454502f312e31", TRUSTING, "it does not speak TLS"),
        ("15030300020228", TRUSTING, "the other side refuses the handshake"),
        ("15030300020246", TRUSTING, "no version of TLS in common"),
    ],
)
async def test_an_answer_that_is_not_kafkas(
    first: str, tls: ssl.SSLContext | None, problem: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(bytes.fromhex(first))
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        served.set()

    served = asyncio.Event()
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with AdminClient(f"127.0.0.1:{port}", ssl_context=tls) as client:
            await failing(problem)(client)
        await served.wait()
        server.close()
