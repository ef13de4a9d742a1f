"""A client at work against a broker that speaks the bytes that kio writes."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeVar

from proxy.admin import (
    AdminClient,
    Login,
    Scram,
)
from tests.proxy.admin.peer import Peer
from tests.proxy.waiting import PATIENCE_SECONDS

DESCRIBE, CREATE, DELETE = 29, 30, 31
T = TypeVar("T")
ALICE = Scram(username="alice", password="alice-secret")


def against(
    peer: Peer,
    work: Callable[[AdminClient], Awaitable[T]],
    *,
    login: Login | None = None,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = PATIENCE_SECONDS,
) -> T:
    """Runs the work with a client of the peer, in a bounded time."""

    async def run() -> T:
        async with (
            asyncio.timeout(2 * PATIENCE_SECONDS),
            peer,
            AdminClient(
                peer.address, login=login, ssl_context=tls, request_timeout_s=timeout_s
            ) as client,
        ):
            return await work(client)

    return asyncio.run(run())
