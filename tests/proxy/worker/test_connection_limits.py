"""Limits of connections, counted and served."""

import contextlib
import select
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.connection.commands import CloseReason
from proxy.worker.connection_limits import ConnectionLimits, OpenConnections, Shared
from tests.support.frames import handshake
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, eventually

MANY = 1 << 30
FULL = CloseReason.TOO_MANY_CONNECTIONS
ADDRESS_FULL = CloseReason.TOO_MANY_FROM_ADDRESS


@dataclass(eq=False)
class Client:
    """A connection, and whether it was closed for another."""

    evicted: bool = False

    def evict(self) -> None:
        self.evicted = True


@dataclass
class Proxy:
    """Workers that share a listener; each opened connection comes a second after the last."""

    most: int = 4
    workers: int = 1
    per_address: int = MANY
    overrides: dict[str, int] = field(default_factory=dict)
    now: float = 1_000.0

    def __post_init__(self) -> None:
        self.shared = Shared(self.workers, [self.most])
        self.limits: list[ConnectionLimits] = []
        self.open: list[OpenConnections[Client]] = []
        for worker in range(self.workers):
            self.start(worker)

    def start(self, worker: int) -> None:
        """Again, if there was one."""
        del self.limits[worker : worker + 1], self.open[worker : worker + 1]
        self.limits.insert(worker, ConnectionLimits(self.shared, worker))
        self.limits[worker].apply(self.per_address, self.overrides)
        self.open.insert(worker, OpenConnections(self.limits[worker], 0))

    def connect(self, worker: int = 0, address: str = "192.0.2.1") -> Client | CloseReason:
        self.now += 1.0
        client = Client()
        decision = self.open[worker].open(client, address, self.now)
        if decision.evicts is not None:
            decision.evicts.evict()
        return client if decision.refused is None else decision.refused

    def client(self, worker: int = 0, address: str = "192.0.2.1") -> Client:
        client = self.connect(worker, address)
        assert isinstance(client, Client), client
        return client

    def user(self, worker: int = 0) -> Client:
        client = self.client(worker)
        self.open[worker].authenticated(client)
        return client

    def look(self, worker: int) -> None:
        """Run the requests of a worker."""
        for client in self.open[worker].to_evict():
            client.evict()


class TestInOneWorker:
    def test_who_is_unauthenticated_for_longest_makes_room(self) -> None:
        proxy = Proxy(most=3)
        first, second, third = proxy.client(), proxy.client(), proxy.client()
        proxy.open[0].authenticated(first)
        proxy.client()
        assert [one.evicted for one in (first, second, third)] == [False, True, False]
        proxy.client()
        assert [one.evicted for one in (first, second, third)] == [False, True, True]

    def test_silent_unauthenticated_clients_keep_no_user_out(self) -> None:
        proxy = Proxy(most=300)
        for _ in range(330):
            proxy.client()
        users = [proxy.user() for _ in range(300)]
        assert not any(user.evicted for user in users)

    def test_what_is_closed_twice_or_after_it_was_evicted_counts_once(self) -> None:
        proxy = Proxy(most=2, per_address=2)
        first, second = proxy.client(), proxy.client(address="192.0.2.2")
        proxy.client()
        assert first.evicted
        for one in (first, first, second, second):
            proxy.open[0].closed(one)
            proxy.open[0].authenticated(one)
        proxy.client()
        assert proxy.connect() == ADDRESS_FULL


class TestInSeveralWorkers:
    def test_the_limit_is_for_all_of_them(self) -> None:
        proxy = Proxy(most=3, workers=2)
        users = [proxy.user(0) for _ in range(3)]
        assert proxy.connect(0) == proxy.connect(1) == FULL
        assert proxy.open[1].is_full
        assert not any(user.evicted for user in users)
        proxy.open[0].closed(users[0])
        proxy.client(1)

    def test_the_longest_makes_room_in_whichever_it_is(self) -> None:
        proxy = Proxy(most=3, workers=3)
        first, second = proxy.client(1), proxy.client(2)
        mine = proxy.client(0)
        proxy.client(0)
        assert [proxy.shared.outstanding(worker, 0) for worker in range(3)] == [0, 1, 0]
        proxy.look(1)
        proxy.look(2)
        assert [one.evicted for one in (first, second, mine)] == [True, False, False]

    def test_a_user_comes_in_where_all_are_authenticated(self) -> None:
        proxy = Proxy(most=3, workers=2)
        proxy.user(0)
        proxy.user(0)
        unauthenticated = proxy.client(1)
        user = proxy.user(0)
        proxy.look(1)
        assert unauthenticated.evicted
        assert not user.evicted
        assert proxy.connect(1) == FULL

    def test_no_more_is_asked_of_a_worker_than_it_has(self) -> None:
        """One that hangs, say: what it holds is exceeded by its unauthenticated clients, once."""
        proxy = Proxy(most=3, workers=2)
        unauthenticated = [proxy.client(1) for _ in range(2)]
        proxy.user(0)
        proxy.user(0)
        proxy.user(0)
        assert proxy.connect(0) == FULL
        proxy.look(1)
        assert all(unauthenticated.evicted for unauthenticated in unauthenticated)
        assert proxy.connect(0) == FULL

    def test_who_authenticates_meanwhile_stays(self) -> None:
        proxy = Proxy(most=2, workers=2)
        proxy.user(0)
        quick = proxy.client(1)
        proxy.user(0)
        proxy.open[1].authenticated(quick)
        proxy.look(1)
        assert not quick.evicted
        assert proxy.connect(0) == proxy.connect(1) == FULL

    def test_a_worker_that_starts_anew_leaves_nothing_behind(self) -> None:
        proxy = Proxy(most=4, workers=2, per_address=4)
        for _ in range(3):
            proxy.client(1)
        mine = proxy.client(0)
        proxy.start(1)
        for _ in range(3):
            proxy.client(1)
        assert not mine.evicted
        assert proxy.connect(1) == ADDRESS_FULL

    @settings(deadline=None)
    @given(
        st.lists(st.tuples(st.sampled_from(["open", "user", "close", "look"]), st.integers(0, 2)))
    )
    def test_never_are_more_open_than_may_be(self, steps: list[tuple[str, int]]) -> None:
        """Except connections that a worker was asked to close and has not closed yet."""
        proxy, alive = Proxy(most=4, workers=3), [set[Client]() for _ in range(3)]
        users = set[Client]()
        for step, worker in steps:
            if step in ("open", "user"):
                client = proxy.connect(worker)
                if isinstance(client, Client):
                    alive[worker].add(client)
                    if step == "user":
                        proxy.open[worker].authenticated(client)
                        users.add(client)
            elif step == "look":
                proxy.look(worker)
            elif alive[worker]:
                client = alive[worker].pop()
                proxy.open[worker].closed(client)
            for one in alive:
                one -= {client for client in one if client.evicted}
        assert not any(user.evicted for user in users)
        for worker in range(3):
            proxy.look(worker)
        for one in alive:
            one -= {client for client in one if client.evicted}
        assert sum(map(len, alive)) <= 4 + sum(len(one & users) for one in alive)
        assert [len(one._keys) for one in proxy.open] == [len(one) for one in alive]


class TestFromOneAddress:
    def test_a_further_one_is_refused_and_costs_nobody_a_place(self) -> None:
        proxy = Proxy(most=3, per_address=2)
        unauthenticated = proxy.client(address="192.0.2.9")
        mine = [proxy.client(), proxy.user()]
        assert proxy.connect() == ADDRESS_FULL
        assert not unauthenticated.evicted
        proxy.open[0].closed(mine[0])
        proxy.client()

    def test_all_workers_count_together(self) -> None:
        proxy = Proxy(most=100, workers=3, per_address=3)
        clients = [proxy.client(worker) for worker in range(3)]
        assert [proxy.connect(worker) for worker in range(3)] == [ADDRESS_FULL] * 3
        proxy.open[1].closed(clients[1])
        proxy.client(2)

    def test_all_listeners_count_together(self) -> None:
        shared = Shared(1, [10, 10])
        limits = ConnectionLimits(shared, 0)
        limits.apply(2, {})
        first, second = (OpenConnections[Client](limits, number) for number in range(2))
        assert first.open(Client(), "192.0.2.1", 1.0).refused is None
        assert second.open(Client(), "192.0.2.1", 1.0).refused is None
        assert second.open(Client(), "192.0.2.1", 1.0).refused == ADDRESS_FULL

    def test_an_override_counts_instead(self) -> None:
        proxy = Proxy(most=100, per_address=0, overrides={"192.0.2.7": 1})
        proxy.client(address="192.0.2.7")
        assert proxy.connect(address="192.0.2.7") == proxy.connect() == ADDRESS_FULL

    def test_the_addresses_of_an_ipv6_subnet_count_together(self) -> None:
        """A host may use any address of its /64; an address with an override counts by itself."""
        proxy = Proxy(most=100, per_address=2, overrides={"2001:db8::ba": 3})
        proxy.client(address="2001:db8::1")
        mine = proxy.client(address="2001:db8::ffff:ffff:ffff:ffff")
        assert proxy.connect(address="2001:db8::2") == ADDRESS_FULL
        proxy.client(address="2001:db8:0:1::2")
        for _ in range(3):
            proxy.client(address="2001:db8::ba")
        assert proxy.connect(address="2001:db8::ba") == ADDRESS_FULL
        proxy.limits[0].apply(2, {"2001:db8::ffff:ffff:ffff:ffff": 1})
        proxy.open[0].closed(mine)
        proxy.client(address="2001:db8::2")
        assert proxy.connect(address="2001:db8::3") == ADDRESS_FULL

    def test_a_change_holds_for_who_comes_after(self) -> None:
        proxy = Proxy(most=100)
        for _ in range(5):
            proxy.client()
        proxy.limits[0].apply(5, {})
        assert proxy.connect() == ADDRESS_FULL
        proxy.client(address="192.0.2.2")
        proxy.limits[0].apply(5, {"192.0.2.1": 6})
        proxy.client()

    def test_many_addresses_take_no_more_memory_and_few_are_counted_too_high(self) -> None:
        """As many as there can be at a time, one connection each; then each comes once more."""
        most = 2_000
        proxy = Proxy(most=2 * most, per_address=1)
        size = len(proxy.shared.addresses)
        came = [proxy.connect(address=f"2001:db8:{number:x}::1") for number in range(most)]
        refused = sum(not isinstance(one, Client) for one in came)
        assert refused <= most * 0.01
        assert len(proxy.shared.addresses) == size
        again = [proxy.connect(address=f"2001:db8:{number:x}::1") for number in range(most)]
        assert again == [ADDRESS_FULL] * most, "none is counted too low"
        for one in came:
            if isinstance(one, Client):
                proxy.open[0].closed(one)
        assert not any(proxy.shared.addresses), "nothing is left of them"

    def test_the_memory_has_a_bound(self) -> None:
        assert Shared(1, [2**31 - 1]).cells == 1 << 20


# Limits of connections, of a proxy of two workers as an operator runs it

LIMIT = 20
ELSEWHERE = "127.0.0.9"
"""All of 127.0.0.0/8 is this machine."""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path, workers=2) as made:
        made.settings["listeners"][0]["max.connections"] = LIMIT
        made.write()
        yield made


def connect(serving: Serving, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(
        ("127.0.0.1", serving.port), timeout=PATIENCE_SECONDS, source_address=(source, 0)
    )


def closed(serving: Serving, reason: str) -> float:
    return serving.metric("connections_closed_total", reason=reason)


def test_unauthenticated_clients_keep_nobody_out(serving: Serving) -> None:
    """An old unauthenticated connection is closed to free a slot, in whichever worker it is.

    They come one by one: two at once, in two workers, may close more than two others.
    """
    assert "accepting" in serving.start()
    clients: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for _ in range(3 * LIMIT):
            newest = stack.enter_context(connect(serving))
            assert is_served(newest)
            clients.append(newest)
            if len(clients) > LIMIT:
                (evicted,), _, _ = select.select(clients, [], [], PATIENCE_SECONDS)
                assert evicted is not newest
                clients.remove(evicted)
        eventually(lambda: closed(serving, "evicted") == 2 * LIMIT, "they are counted")
        assert closed(serving, "too_many_connections") == 0


def test_an_address_has_as_many_as_it_may_have_in_all_workers(serving: Serving) -> None:
    """A reload changes it for those that come after.

    They come one by one: of two at once for the last place, in two workers, both may be refused.
    """
    serving.settings |= {
        "max.connections.per.ip": 6,
        "max.connections.per.ip.overrides": f"{ELSEWHERE}:2",
    }
    serving.write()
    assert "accepting" in serving.start()
    with contextlib.ExitStack() as clients:
        mine = [is_served(clients.enter_context(connect(serving))) for _ in range(10)]
        others = [is_served(clients.enter_context(connect(serving, ELSEWHERE))) for _ in range(4)]
        assert (mine, others) == ([True] * 6 + [False] * 4, [True] * 2 + [False] * 2)
        eventually(lambda: closed(serving, "too_many_from_address") == 6, "they are counted")
        serving.settings["max.connections.per.ip.overrides"] = [f"{ELSEWHERE}:3"]
        serving.write()
        serving.process.send_signal(signal.SIGHUP)
        reported = "reloaded: max.connections.per.ip.overrides"
        eventually(lambda: reported in serving.log(), "the reload is told")

        def comes_in() -> bool:
            with connect(serving, ELSEWHERE) as client:
                return is_served(client)

        eventually(comes_in, "every worker has heard of it")


def is_served(client: socket.socket) -> bool:
    """Return whether it gets an answer; otherwise it is closed."""
    with contextlib.suppress(ConnectionError):
        client.sendall(handshake(1, "SCRAM-SHA-256"))
        return bool(client.recv(1_000))
    return False
