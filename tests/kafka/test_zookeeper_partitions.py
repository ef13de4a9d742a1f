"""Logins continue with the last known users while ZooKeeper is down or unreachable.

The proxy, a broker and the clients are in one network namespace, each server of ZooKeeper in
another.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from proxy.acl.model import Acl, AclFilter, Operation
from proxy.config import from_mapping
from proxy.store.zookeeper import Zookeeper
from proxy.store.zookeeper.content import Unanswered
from sasl.credentials import ScramCredential, ScramMechanism
from tests.support.acls import acl
from tests.support.fake_broker import running_in
from tests.support.kafka.clients import password_of
from tests.support.kafka.cluster import wait_until
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.wire_client import WireClient, metadata_fields
from tests.support.kafka.zookeeper import Ensemble
from tests.support.messages import request_body
from tests.support.processes import Namespace, bridged
from tests.support.proxy_process import ProxyProcess
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
METADATA = 3
SHA_256 = ScramMechanism.SCRAM_SHA_256
TOPIC_AUTHORIZATION_FAILED = 29
ALICE = "alice"
"""A user from the start who may describe the topic of her name."""
CONVERSATIONS = 4
"""Successful logins that each test requires during a fault."""


def verifier(user: str) -> ScramCredential:
    return ScramCredential.from_password(SHA_256, password_of(user), b"salt", 4_096)


def topic_acl(user: str) -> Acl:
    return acl(user, f"User:{user}", operation=Operation.DESCRIBE)


@dataclass
class World:
    """The proxy and the servers, each in its namespace."""

    here: Namespace
    servers: list[Namespace]
    ensemble: Ensemble
    proxy: ProxyProcess
    names: Iterator[int] = field(default_factory=count)

    # The proxy, and its clients

    def sees(self, user: str, *, password: str | None = None) -> bool | None:
        """Log in; return whether the user may describe the topic of that name, None if refused."""
        (address,) = self.proxy.addresses().values()
        with WireClient(address) as client:
            actor = Actor(client, Issuer())
            actor.scram(user, password=password or password_of(user))
            body = request_body(METADATA, 12, **metadata_fields([user]))
            answer = actor.ask(METADATA, 12, body)
        if answer is None:
            return None
        return all(one.error_code != TOPIC_AUTHORIZATION_FAILED for one in answer.topics)

    def age(self) -> float:
        """Value of `store_age_seconds`."""
        return self.here.inside(lambda: self.proxy.metric("store_age_seconds"))

    def reasons(self) -> list[str]:
        return self.here.inside(self.proxy.reasons)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what=what, details=self.proxy.log)

    def until_seen(self, user: str, seen: bool | None) -> None:
        self.until(lambda: self.here.inside(lambda: self.sees(user)) is seen, f"{user}: not {seen}")

    def until_serving_without(self, server: int) -> None:
        others = [number for number in range(3) if number != server]
        self.until(lambda: self.ensemble.serving() == others, "no quorum of two")

    # Changes by other programs

    def change(self, call: Callable[[Zookeeper], Any], beside: int = 0) -> None:
        """Change data in ZooKeeper, connected to one of its servers."""
        settings = from_mapping(self.proxy.config, base_dir=ROOT).store

        def change() -> bool:
            with suppress(Unanswered):  # a busy machine
                call(Zookeeper(settings, None))
                return True
            return False

        self.until(lambda: self.ensemble.beside(beside, change), "not changed")

    def add(self, user: str, beside: int = 0) -> None:
        upsert = {(user, SHA_256): verifier(user)}
        self.change(lambda at: at.alter_credentials(upsert=upsert), beside)
        self.change(lambda at: at.create_acls([topic_acl(user)]), beside)

    def add_here(self, user: str) -> None:
        """The same with commands, from the proxy's namespace."""
        scram = ("--mechanism", "SCRAM-SHA-256", "--iterations", "4096", "--password-file", "-")
        rule = ("--allow-principal", f"User:{user}", "--operation", "Describe", "--topic", user)

        def add() -> None:
            self.proxy.command("users", "add", user, *scram, stdin=password_of(user))
            self.proxy.command("acls", "add", *rule)

        self.here.inside(add)

    def remove(self, user: str) -> None:
        self.change(lambda at: at.alter_credentials(delete=[(user, SHA_256)], upsert={}))
        self.change(lambda at: at.delete_acls([AclFilter(name=user)]))

    @contextmanager
    def logins(self) -> Iterator[Callable[[], None]]:
        """Log in continuously; yields a function that waits for more successful logins."""
        wrong: list[str] = []
        rounds = 0
        ending = threading.Event()

        def log_in() -> None:
            nonlocal rounds
            self.here.enter()
            while not ending.is_set():
                seen = {
                    "alice": self.sees(ALICE),
                    "alice with a wrong password": self.sees(ALICE, password="wrong"),
                    "nobody": self.sees("nobody"),
                }
                if [*seen.values()] != [True, None, None]:
                    wrong.append(f"{seen}")
                rounds += 1

        def wait() -> None:
            enough = rounds + CONVERSATIONS
            self.until(lambda: rounds >= enough or not running.is_alive(), "no logins")

        running = threading.Thread(target=log_in)
        running.start()
        try:
            yield wait
        finally:
            ending.set()
            running.join()
        assert not wrong, self.proxy.log()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with (
        bridged(3) as (here, servers),
        Ensemble(3, at=servers) as ensemble,
        running_in(here, {1: "127.0.0.1:9092"}),
    ):
        ensemble.make_nodes()
        process = proxy_of(ensemble, here, tmp_path_factory.mktemp("proxy"))
        one = World(here, servers, ensemble, process)
        one.add(ALICE)
        with process:
            one.until_seen(ALICE, True)
            yield one
        assert "Traceback" not in process.log()


def proxy_of(ensemble: Ensemble, here: Namespace, directory: Path) -> ProxyProcess:
    config = {
        "upstream": {"bootstrap.servers": "127.0.0.1:9092"},
        "listeners": [
            {
                "name": "clients",
                "address": "127.0.0.1:9094",
                "routing": "sidecar",
                "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
            }
        ],
        "store": {
            "url": ensemble.url,
            "refresh.ms": 500,
            "zookeeper": {"session.timeout.ms": 6_000},
        },
        "authorizer": {"mode": "enforce"},
        "http": {"address": "127.0.0.1:9404"},
        "workers": 2,
    }
    process = ProxyProcess(config, directory)
    process.prefix = here.prefix
    return process


@contextmanager
def killed(world: World, server: int) -> Iterator[None]:
    world.ensemble.kill(server)
    world.until_serving_without(server)
    yield
    world.ensemble.start(server)


@contextmanager
def cut_off_from_the_proxy(world: World, server: int) -> Iterator[None]:
    with world.here.cut_off_from(world.servers[server]):
        yield


@contextmanager
def cut_off_from_the_others(world: World, server: int) -> Iterator[None]:
    """Cut one server off from the others, but not from the proxy."""
    others = [one for number, one in enumerate(world.servers) if number != server]
    with world.servers[server].cut_off_from(*others):
        world.until_serving_without(server)
        yield
    world.ensemble.wait_ready()


@pytest.mark.parametrize("fault", [killed, cut_off_from_the_proxy, cut_off_from_the_others])
def test_changes_arrive_by_the_servers_that_are_left(world: World, fault: Any) -> None:
    """Without the leader, then without the server that the proxy is connected to."""
    lost = range(3) if fault is cut_off_from_the_proxy else [world.ensemble.leader()]
    with world.logins() as wait:
        for server in lost:
            here, there = (f"user-{next(world.names)}" for _ in range(2))
            with fault(world, server):
                world.add_here(here)
                world.add(there, beside=(server + 1) % 3)
                world.until_seen(here, True)
                world.until_seen(there, True)
                wait()
    world.until(lambda: not world.reasons(), "not ready")


def test_without_a_quorum_logins_go_on(world: World) -> None:
    with world.logins() as wait:
        world.ensemble.kill(0)
        world.ensemble.kill(1)
        world.until(lambda: any("does not answer" in one for one in world.reasons()), "not told")
        told_at = time.monotonic()
        wait()
        since = time.monotonic() - told_at
        assert world.age() >= since
        world.ensemble.start(0)
        world.ensemble.start(1)
        world.until(lambda: not world.reasons(), "not ready again")
        wait()


def test_nothing_removed_is_let_in_after_the_age_that_is_told(world: World) -> None:
    """Cut off until its session has expired, the proxy uses its last known users."""
    removed, added = (f"user-{next(world.names)}" for _ in range(2))
    world.add(removed)
    world.until_seen(removed, True)
    with world.logins() as wait:
        with world.here.cut_off_from(*world.servers):
            world.remove(removed)
            removed_at = time.monotonic()
            world.add(added)
            world.until(lambda: world.ensemble.sessions() == 0, "a session is left")
            world.until(lambda: any("not answer" in one for one in world.reasons()), "not told")
            wait()
            assert world.here.inside(lambda: world.sees(added)) is None
            assert world.here.inside(lambda: world.sees(removed)) is True

        def is_refused() -> bool:
            began = time.monotonic()
            age = world.age()
            if world.here.inside(lambda: world.sees(removed)) is None:
                return True
            assert age >= began - removed_at
            return False

        world.until(is_refused, "the user is let in yet")
        world.until_seen(added, True)
        world.until(lambda: not world.reasons(), "not ready again")
        wait()


def test_nobody_is_let_in_by_the_state_of_before_a_start(world: World) -> None:
    """A client waits until the store has been read again."""
    removed = f"user-{next(world.names)}"
    world.add(removed)
    world.until_seen(removed, True)
    world.proxy.stop()
    with ThreadPoolExecutor(2, initializer=world.here.enter) as clients:
        with world.here.cut_off_from(*world.servers):
            world.here.inside(world.proxy.start_unready)
            world.remove(removed)
            waiting = [clients.submit(world.sees, user) for user in (ALICE, removed)]
            world.until(lambda: any("not answer" in one for one in world.reasons()), "not told")
            assert not any(one.done() for one in waiting)
        assert [one.result() for one in waiting] == [True, None]
    world.until(lambda: not world.reasons(), "not ready")
