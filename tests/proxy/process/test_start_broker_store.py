"""A start with `broker:` as store: nobody is let in before the brokers have answered once."""

import asyncio
import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from tests.support.acls import MemoryAclStore, acl
from tests.support.fake_broker import Peer, in_a_thread
from tests.support.frames import handshake
from tests.support.processes import free_ports
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, alive, eventually

ACCEPTING = "listener clients: accepting on 127.0.0.1:"
NOT_KNOWN = "the brokers' ACLs and quotas are unknown"


@dataclass(eq=False)
class PeerAt(Peer):
    """A broker that comes up where it was waited for."""

    at: int = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.at)
        self.port = self.at
        return self


class Waiting(Serving):
    """A proxy whose broker, which keeps its ACLs and quotas, does not exist yet."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, workers=2)
        (self.broker_port,) = free_ports(1)
        self.store_path = directory / "state.db"
        self.settings |= {
            "upstream": {"bootstrap.servers": f"127.0.0.1:{self.broker_port}"},
            "store": {"url": f"broker:{self.store_path}", "refresh.ms": 200},
            "authorizer": {"mode": "enforce", "allow.everyone.if.no.acl.found": True},
            "quotas": {"mode": "enforce"},
            "shutdown.drain.ms": 2 * int(PATIENCE_SECONDS) * 1000,
        }
        self.write()

    def has_printed(self) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def wait_unknown(self) -> None:
        """Wait until both workers report that the broker has not answered."""
        address = f"{NOT_KNOWN}: 127.0.0.1:{self.broker_port}: "
        eventually(
            lambda: len(self.reasons()) == 2 and all(address in one for one in self.reasons()),
            "both workers say why",
        )

    def client(self) -> socket.socket:
        """One that has asked for something; its connection waits in the kernel's queue."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)
        client.sendall(handshake(1, "SCRAM-SHA-256"))
        return client


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Waiting]:
    with Waiting(tmp_path) as one:
        yield one


def is_readable(client: socket.socket) -> bool:
    return bool(select.select([client], [], [], 0)[0])


def test_a_proxy_whose_brokers_are_away_accepts_nobody_and_can_be_stopped(serving: Waiting) -> None:
    """With no ACLs everything would be allowed here; clients that came meanwhile are not served."""
    serving.launch()
    serving.wait_unknown()
    with serving.client() as client:
        for _ in range(5):  # each is a question to both workers, which have their turns meanwhile
            serving.reasons()
        assert not is_readable(client)
        assert not serving.has_printed()
        children = serving.children()
        assert len(children) == 5, "two workers, the acceptor, the HTTP process, and the follower"
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(PATIENCE_SECONDS) == 0, "long before shutdown.drain.ms"
        with suppress(ConnectionResetError):  # what it sent was never read
            assert client.recv(100) == b""
    assert not any(map(alive, children))
    log = serving.log()
    assert "Traceback" not in log
    assert 1 <= log.count(NOT_KNOWN) <= 2, "once a minute, and by the follower alone"
    assert ACCEPTING not in log


def test_clients_are_let_in_when_the_brokers_have_answered(serving: Waiting) -> None:
    """Waiting clients, too; and the follower that updates the copy is replaced if it dies."""
    serving.launch()
    serving.wait_unknown()
    with serving.client() as client:
        assert not is_readable(client)
        peer = PeerAt(acl_store=MemoryAclStore(acl("a")), at=serving.broker_port)
        with in_a_thread(peer):
            assert serving.process.stdout is not None
            assert serving.process.stdout.readline().startswith(ACCEPTING)
            answer = client.recv(1000)
            assert int.from_bytes(answer[8:10]) == 0
            eventually(lambda: serving.get("/readyz")[0] == 200, "ready")
            eventually(lambda: serving.metric("acls") == 1, "its ACLs are known")

            os.kill(serving.children()[-1], signal.SIGKILL)
            again = "follower of the brokers was ended by SIGKILL, restarting it"
            eventually(lambda: again in serving.log(), "noticed")
            peer.acl_store.acls = {acl("a"), acl("b")}
            eventually(lambda: serving.metric("acls") == 2, "it follows again")
        eventually(lambda: any(NOT_KNOWN in one for one in serving.reasons()), "away again")
        eventually(lambda: serving.metric("acls") == 2, "they are still known")
        assert serving.handshake_error() == 0, "what was known goes on applying"
    children = serving.children()
    serving.process.kill()
    serving.process.wait()
    eventually(lambda: not any(map(alive, children)), "nobody outlives the parent")
    assert "Traceback" not in serving.log()
