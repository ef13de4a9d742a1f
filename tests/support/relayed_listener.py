"""Clients of a listener whose broker authenticates them, over real sockets."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from proxy.brokers.access import Access
from proxy.connection.interfaces import ConnectionRights
from tests.support.authenticating_broker import Authenticator, Client
from tests.support.playbook import HOUR_MS
from tests.support.relay import RunningListener, listen

RELAYS: dict[str, Any] = {"sasl.termination": "broker", "connections.max.reauth.ms": HOUR_MS}


@asynccontextmanager
async def play(
    directory: Path,
    *,
    broker: Authenticator | None = None,
    access: Access | None = None,
    sock: socket.socket | None = None,
    rights: ConnectionRights | None = None,
    **more: Any,
) -> AsyncIterator[tuple[RunningListener, Authenticator]]:
    """Run a listener whose broker authenticates its clients."""
    behind = broker or Authenticator()
    given = RELAYS | {key.replace("_", "."): value for key, value in more.items()}
    served = listen(directory, given, behind=behind, access=access, sock=sock, rights=rights)
    async with served as running:
        yield running, behind


async def connected(running: RunningListener, **how: Any) -> Client:
    return Client(*await running.connect(**how))


def has_connections(broker: Authenticator, number: int) -> bool:
    return broker.connections == number


def slots_taken(running: RunningListener) -> tuple[int, int]:
    logins, renewals = running.listener.login_slots(running.upstream)
    return logins.taken, renewals.taken
