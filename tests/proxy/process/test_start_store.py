"""A running proxy whose store is replaced, lost, locked, or on a disk that is full."""

import asyncio
import os
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from proxy.store import Store, open_store
from sasl.login import Derive, LoggedIn, Login, LoginError, ScramClient, Send, Step
from tests.support.acls import MemoryAclStore, acl
from tests.support.fake_broker import Peer, in_a_thread
from tests.support.frames import handshake, request
from tests.support.processes import free_ports
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, alive, eventually
from tests.support.store import PASSWORD, SHA_256, content, of, put, verifier

CONNECTIONS = 4
"""Number of connections at a time, so that each of two workers has some: the next one is always
sent to the worker that has fewest."""


class Kept(Serving):
    """A proxy with users and ACLs in its store."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        super().__init__(directory, workers)
        self.store_path = directory / "state.db"
        self.settings["authorizer"] = {
            "mode": "enforce",
            "allow.everyone.if.no.acl.found": True,
            "super.users": ["User:admin"],
        }
        self.write()

    @contextmanager
    def store(self) -> Iterator[Store]:
        with closing(open_store(f"sqlite:{self.store_path}")) as opened:
            yield opened

    def add(self, *users: str) -> None:
        with self.store() as store:
            store.alter_credentials(upsert={(user, SHA_256): verifier() for user in users})

    def remove(self, user: str) -> None:
        with self.store() as store:
            assert not store.alter_credentials(delete=[(user, SHA_256)], upsert={})

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "proxy", *arguments, "--config", str(self.path)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def outcomes(self, user: str) -> set[bool]:
        """Whether logins as this user succeed, at all workers."""
        address = ("127.0.0.1", self.port)
        with ExitStack() as stack:
            clients = [
                stack.enter_context(socket.create_connection(address, timeout=PATIENCE_SECONDS))
                for _ in range(CONNECTIONS)
            ]
            return {log_in(client, user) for client in clients}

    def until_all(self, user: str, *, let_in: bool) -> None:
        eventually(lambda: self.outcomes(user) == {let_in}, f"{user} is let in by all: {let_in}")

    def replace_worker(self, number: int = 0) -> None:
        """Kill a worker; return when another is up in its place."""
        before = self.log().count("was ended by SIGKILL")
        os.kill(self.children()[number], signal.SIGKILL)
        eventually(lambda: self.log().count("was ended by SIGKILL") > before, "it is noticed")
        self.until_up()


def log_in(client: socket.socket, user: str) -> bool:
    login = Login(ScramClient(SHA_256, user, PASSWORD), 1)
    step: Step = login.begin()
    try:
        while not isinstance(step, LoggedIn):
            match step:
                case Send():
                    step = login.answered(ask(client, step.api_key, step.api_version, step.body))
                case Derive():
                    step = login.derived(step.work())
    except LoginError:
        return False
    return True


def ask(client: socket.socket, api_key: int, api_version: int, body: bytes) -> bytes:
    """Return the body of the response; b"": the connection was closed."""
    client.sendall(request(api_key, api_version, 1, body))
    with client.makefile("rb") as stream:
        return stream.read(int.from_bytes(stream.read(4)))[4:]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Kept]:
    with Kept(tmp_path) as one:
        one.add("alice", "bob")
        one.start()
        one.until_up()
        yield one
        assert "Traceback" not in one.log()


def test_a_backup_that_is_put_in_place_is_what_applies(proxy: Kept, tmp_path: Path) -> None:
    """As administrators do it: with `mv`, while the proxy runs."""
    shutil.copy(proxy.store_path, tmp_path / "backup.db")
    proxy.remove("bob")
    proxy.add("carol")
    proxy.until_all("bob", let_in=False)
    proxy.until_all("carol", let_in=True)

    (tmp_path / "backup.db").rename(proxy.store_path)
    for leftover in ("state.db-wal", "state.db-shm"):
        (tmp_path / leftover).unlink(missing_ok=True)

    proxy.until_all("bob", let_in=True)
    proxy.until_all("carol", let_in=False)
    eventually(lambda: proxy.log().count("was replaced or restored") >= 2, "both workers say so")
    assert proxy.command("users", "remove", "bob").returncode == 0
    proxy.until_all("bob", let_in=False)
    assert proxy.outcomes("alice") == {True}
    # a restarted worker sees the same
    proxy.replace_worker()
    assert proxy.outcomes("bob") == {False}
    assert proxy.outcomes("alice") == {True}


def test_a_store_that_is_lost_is_told_and_nobody_makes_an_empty_one(
    proxy: Kept, tmp_path: Path
) -> None:
    """With `allow.everyone.if.no.acl.found`, an empty store would allow everything."""
    away = proxy.store_path.rename(tmp_path / "away.db")
    eventually(
        lambda: all(str(proxy.store_path) in reason for reason in proxy.reasons()), "both say so"
    )
    assert proxy.outcomes("alice") == {True}, "what was known goes on applying"
    first, second = proxy.children()[:2]
    os.kill(first, signal.SIGKILL)
    eventually(lambda: "waits to start: " in proxy.log(), "it says what it waits for")
    assert alive(second)
    refused = proxy.command("users", "list")
    assert (refused.returncode, "was removed while a proxy runs" in refused.stderr) == (1, True)
    assert not proxy.store_path.exists()
    away.rename(proxy.store_path)
    proxy.until_up()
    eventually(
        lambda: not any(str(proxy.store_path) in reason for reason in proxy.reasons()), "it is read"
    )
    assert proxy.outcomes("alice") == {True}


@pytest.mark.parametrize("how", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_store_that_is_locked_serves_on(proxy: Kept, how: str) -> None:
    """A restarted worker serves too, if SQLite allows reading."""
    with closing(sqlite3.connect(proxy.store_path, isolation_level=None)) as other:
        other.execute(how)
        assert proxy.outcomes("alice") == {True}
        assert proxy.outcomes("eve") == {False}
        if how == "BEGIN IMMEDIATE":
            proxy.replace_worker()
            assert proxy.outcomes("alice") == {True}
            assert "is locked" not in proxy.log()
        else:
            eventually(lambda: all("is locked" in one for one in proxy.reasons()), "both say so")
        other.execute("ROLLBACK")
    eventually(lambda: not any("is locked" in one for one in proxy.reasons()), "it is read again")
    proxy.remove("alice")
    proxy.until_all("alice", let_in=False)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "small"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(directory)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path) -> None:
    with (directory / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return


def test_a_full_disk_takes_no_changes_and_serves_on(small_disk: Path) -> None:
    """Also a restarted worker, and a whole proxy: reading needs no write."""
    with Kept(small_disk.parent) as proxy:
        proxy.store_path = small_disk / "state.db"
        proxy.settings["store"]["url"] = f"sqlite:{proxy.store_path}"
        proxy.settings["admin"] = {"socket": str(small_disk.parent / "admin.sock")}
        proxy.write()
        proxy.add("alice", "admin")
        proxy.start()
        proxy.until_up()
        fill(small_disk)
        proxy.replace_worker()
        proxy.replace_worker()
        assert proxy.outcomes("alice") == {True}
        assert proxy.outcomes("eve") == {False}
        assert proxy.command("users", "list").returncode == 0
        refused = proxy.command("users", "remove", "alice")
        assert (refused.returncode, "the disk is full" in refused.stderr) == (1, True)
        proxy.stop()
        proxy.start()
        assert proxy.outcomes("alice") == {True}
        (small_disk / "filler").unlink()
        assert proxy.command("users", "remove", "alice").returncode == 0
        proxy.until_all("alice", let_in=False)
        assert "Traceback" not in proxy.log()


def test_all_workers_follow_a_file_of_users(tmp_path: Path) -> None:
    """They report why they are not ready while it is broken; the store's users do not count."""
    file = tmp_path / "users.json"
    put(file, content(bob=of(SHA_256)))
    with Kept(tmp_path) as proxy:
        proxy.settings["store"]["users.file"] = str(file)
        proxy.write()
        proxy.add("alice")
        proxy.start()
        proxy.until_up()
        told = f"SCRAM users of {proxy.settings['store']['url']} do not count"
        assert f"store.users.file is set: {told}" in proxy.log()
        assert "no user has a password for SCRAM" not in proxy.log()
        for found, is_told in (("half a fi", True), (content(carol=of(SHA_256)), False)):
            put(file, found)
            eventually(
                lambda is_told=is_told: (  # type: ignore[misc]
                    [str(file) in reason for reason in proxy.reasons()] == [is_told] * 2
                ),
                "both workers have read it",
            )
        assert [proxy.outcomes(user) for user in ("alice", "carol")] == [{False}, {True}]


# A start with a store at brokers: nobody is let in before the brokers have answered once


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
    """A proxy that keeps ACLs and quotas at a broker that is not running yet."""

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
            eventually(lambda: serving.page("/readyz")[0] == 200, "ready")
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
