"""Clients of a listener whose broker authenticates them, over real sockets."""

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from proxy.brokers.access import Access
from proxy.connection.interfaces import ConnectionRights
from tests.support.authenticating_broker import Authenticator, Client
from tests.support.playbook import HOUR_MS
from tests.support.relay import RunningListener, listen

RELAYS: dict[str, Any] = {"sasl.termination": "broker", "connections.max.reauth.ms": HOUR_MS}


def play(
    directory: Path,
    test: Callable[[RunningListener, Authenticator], Awaitable[None]],
    *,
    broker: Authenticator | None = None,
    access: Access | None = None,
    sock: socket.socket | None = None,
    rights: ConnectionRights | None = None,
    **more: Any,
) -> None:
    behind = broker or Authenticator()

    async def run(running: RunningListener) -> None:
        try:
            await test(running, behind)
        finally:
            while opened:
                opened.pop().writer.close()

    given = RELAYS | {key.replace("_", "."): value for key, value in more.items()}
    listen(directory, given, run, behind=behind, access=access, sock=sock, rights=rights)


opened: list[Client] = []


async def connected(running: RunningListener, **how: Any) -> Client:
    """Connect a client that is closed at the end of the test."""
    opened.append(Client(*await running.connect(**how)))
    return opened[-1]


def has_connections(broker: Authenticator, number: int) -> bool:
    return broker.connections == number


def slots_taken(running: RunningListener) -> tuple[int, int]:
    logins, renewals = running.listener.login_slots(running.upstream)
    return logins.taken, renewals.taken
