"""Slots for the connections that relayed logins need."""

from collections.abc import Callable
from functools import partial
from operator import itemgetter

import pytest

from proxy.worker.slots import (
    LOOK_SECONDS,
    MAX_HELD,
    MAX_HELD_PER_ADDRESS,
    READ_SECONDS,
    RESUMED_AT_ONCE,
    SILENCE_SECONDS,
    LoginSlots,
    Outage,
    Pace,
)


class Clients:
    """Clients that ask for slots: who got one, in order, and who lost it."""

    def __init__(self, limit: int) -> None:
        self.served: list[str] = []
        self.displaced: list[str] = []
        self.silent_since: dict[str, float] = {}
        """By client; the login of any other waits for its broker."""
        self.examined = 0
        self.now = 100.0
        self._due: list[tuple[float, Callable[[], None]]] = []
        self.slots: LoginSlots[str] = LoginSlots(
            limit,
            silence=self._silence,
            displace=self.displaced.append,
            call_later=lambda delay, call: self._due.append((self.now + delay, call)),
        )

    def _silence(self, name: str) -> float:
        self.examined += 1
        return self.now - self.silent_since.get(name, self.now)

    def ask(self, owner: str, *names: str) -> None:
        for name in names:
            self.slots.acquire(name, owner, partial(self.served.append, name))

    def silent(self, *names: str) -> None:
        self.silent_since |= dict.fromkeys(names, self.now)

    def release(self, *names: str) -> None:
        for name in names:
            self.slots.release(name)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self._due and min(self._due, key=itemgetter(0))[0] <= until:
            due = min(self._due, key=itemgetter(0))
            self._due.remove(due)
            self.now, call = due
            call()
        self.now = until


@pytest.mark.parametrize("owners", [10, 1])
def test_no_more_than_the_limit_at_once(owners: int) -> None:
    """One owner may have all slots: a load balancer hides the clients' addresses."""
    clients = Clients(4)
    for number in range(10):
        clients.ask(f"owner-{number % owners}", f"client-{number}")
    assert clients.slots.taken == 4
    clients.release("client-0")
    assert clients.served == [f"client-{number}" for number in range(5)]


def test_the_waiting_take_turns() -> None:
    clients = Clients(2)
    clients.ask("alice", "a0", "a1", "a2", "a3")
    clients.ask("bob", "b0", "b1")
    clients.ask("carol", "c0")
    clients.release("a0", "a1", "a2", "b0", "c0")
    assert clients.served == ["a0", "a1", "a2", "b0", "c0", "a3", "b1"]


def test_one_that_went_away_is_not_served() -> None:
    clients = Clients(1)
    clients.ask("alice", "a0", "a1", "a2")
    clients.release("a1", "a0")
    assert clients.served == ["a0", "a2"]
    clients.release("a2", "a2", "never")
    assert clients.slots.taken == 0


def test_nothing_is_kept_of_those_who_left() -> None:
    clients = Clients(2)
    for number in range(1_000):
        clients.ask("stranger", f"s{number}")
        if number > 1:
            clients.release(f"s{number}")
    clients.release("s0", "s1")
    assert not clients.slots._owners
    assert not clients.slots._waiting
    assert not clients.slots._taken


def test_a_slot_is_taken_where_most_are_from_the_client_that_is_silent_longest() -> None:
    clients = Clients(6)
    clients.ask("a", "a0", "a1")
    clients.ask("b", "b0", "b1", "b2", "b3")  # b3 waits for its broker
    for name in ("a0", "a1", "b1", "b0", "b2"):
        clients.silent(name)
        clients.wait(0.1)
    clients.wait(SILENCE_SECONDS)
    clients.ask("c", "c0", "c1", "c2", "c3")
    assert not clients.displaced, "what they have sent is read first"
    clients.wait(READ_SECONDS)
    assert clients.displaced == ["b1", "b0", "a0"]
    assert clients.served[6:] == ["c0", "c1", "c2"]
    clients.wait(10)
    assert len(clients.displaced) == 3, "others' last slots went to the owner that has most"
    assert clients.slots.taken == 6


def test_one_look_takes_as_many_slots_as_logins_wait_for() -> None:
    """Also where a load balancer hides the clients' addresses, and all have one owner."""
    clients = Clients(4)
    clients.ask("balancer", "c0", "c1", "c2", "c3", "c4", "c5", "c6")
    clients.silent("c0", "c1", "c2", "c3")
    clients.wait(SILENCE_SECONDS + LOOK_SECONDS)
    assert len(clients.displaced) == 3
    assert clients.served[4:] == ["c4", "c5", "c6"]


def test_two_owners_that_hold_all_slots_keep_nobody_out() -> None:
    """Whatever they do: all of their other logins wait as well, and take turns with the rest."""
    clients = Clients(100)
    for number in range(140):
        name = f"s{number}"
        clients.ask(f"stranger-{number % 2}", name)
        clients.silent(name)
    clients.wait(SILENCE_SECONDS)
    others = [f"o{number}" for number in range(25)]
    for number, name in enumerate(others):
        clients.ask(f"owner-{number % 5}", name)
    clients.wait(LOOK_SECONDS)
    assert set(others) <= set(clients.served)
    assert not set(others) & set(clients.displaced)


@pytest.mark.parametrize("owner", ["a", "b"])
def test_a_slot_is_left_to_a_client_that_is_silent_for_a_moment(owner: str) -> None:
    """Also where the waiting login is of the same owner, as behind a load balancer."""
    clients = Clients(1)
    clients.ask("a", "a0")
    clients.silent("a0")
    clients.ask(owner, "waiting")
    clients.wait(SILENCE_SECONDS - LOOK_SECONDS)
    assert not clients.displaced
    clients.wait(LOOK_SECONDS + READ_SECONDS)
    assert clients.displaced == ["a0"]
    assert clients.served == ["a0", "waiting"]


def test_a_client_whose_broker_is_awaited_keeps_its_slot() -> None:
    clients = Clients(1)
    clients.ask("a", "a0")
    clients.ask("b", "b0")
    clients.wait(60)
    assert not clients.displaced
    clients.silent("a0")
    clients.wait(SILENCE_SECONDS + LOOK_SECONDS)
    assert clients.displaced == ["a0"]


def test_clients_are_examined_no_more_often_than_that() -> None:
    clients = Clients(1)
    for number in range(1_000):
        clients.ask("a", f"a{number}")
    clients.wait(1)
    assert clients.examined == 1 / LOOK_SECONDS
    clients.release(*(f"a{number}" for number in range(999, -1, -1)))
    clients.wait(10)
    assert clients.examined == 1 / LOOK_SECONDS


class HeldClients:
    """Clients of a broker that is down."""

    def __init__(self) -> None:
        self.outage: Outage[str] = Outage()
        self.outage.begin()
        self.resumed: list[str] = []

    def hold(self, address: str, *names: str) -> list[bool]:
        return [
            self.outage.hold(name, address, partial(self.resumed.append, name)) for name in names
        ]


def numbered(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(count)]


def test_nobody_goes_on_before_the_broker_is_back() -> None:
    clients = HeldClients()
    assert all(clients.hold("192.0.2.1", "a", "b"))
    assert (clients.resumed, clients.outage.is_awaited) == ([], True)
    clients.outage.end()
    assert clients.resumed == ["a", "b"]
    assert clients.outage.resumes("a")


def test_a_few_go_on_at_a_time_and_addresses_take_turns() -> None:
    clients = HeldClients()
    clients.hold("192.0.2.1", *numbered("a", 100))
    clients.hold("192.0.2.2", *numbered("b", 2))
    clients.outage.end()
    resumed = RESUMED_AT_ONCE - 2
    assert clients.resumed == ["a0", "b0", "a1", "b1", *numbered("a", resumed)[2:]]
    clients.outage.release("a0")
    assert clients.resumed[-1] == f"a{resumed}"


def test_one_that_left_does_not_go_on() -> None:
    clients = HeldClients()
    clients.hold("192.0.2.1", "a", "b")
    clients.outage.release("a")
    clients.outage.end()
    clients.outage.release("b")
    assert (clients.resumed, clients.outage.is_idle) == (["b"], True)


def test_a_broker_that_fails_again_holds_the_rest() -> None:
    clients = HeldClients()
    names = numbered("a", 100)
    clients.hold("192.0.2.1", *names)
    clients.outage.end()
    (first, *_) = resumed = list(clients.resumed)
    clients.outage.begin()
    clients.hold("192.0.2.1", first)
    for name in resumed[1:]:
        clients.outage.release(name)
    assert clients.resumed == resumed
    assert not clients.outage.resumes(first)


def test_an_address_has_half_of_the_places_and_gets_them_back() -> None:
    clients = HeldClients()
    names = numbered("a", MAX_HELD_PER_ADDRESS)
    assert all(clients.hold("192.0.2.1", *names))
    assert clients.hold("192.0.2.1", "more") == [False]
    assert clients.hold("192.0.2.2", "b") == [True]
    clients.outage.release("a7")
    assert clients.hold("192.0.2.1", "more") == [True]


def test_addresses_of_a_host_share_its_places() -> None:
    clients = HeldClients()
    for number in range(MAX_HELD_PER_ADDRESS):
        clients.hold(f"2001:db8::{number:x}", f"a{number}")
    assert clients.hold("2001:db8::ffff:1", "more") == [False]


def test_all_addresses_together_have_no_more_than_the_limit() -> None:
    clients = HeldClients()
    for number in range(MAX_HELD):
        assert clients.hold(f"192.0.{number // 256}.{number % 256}", f"a{number}") == [True]
    assert clients.hold("198.51.100.1", "more") == [False]


class Dialler:
    """Clients that connect at a pace; `dialled` has the time and the name of each."""

    def __init__(self, rate: int, workers: int = 1) -> None:
        self.clients = Clients(1)  # its clock
        self.pace = Pace(rate, workers, self._later)
        self.dialled: list[tuple[float, object]] = []

    def _later(self, delay: float, call: Callable[..., None], *args: object) -> None:
        self.clients._due.append((self.clients.now + delay, partial(call, *args)))

    def ask(self, owner: str, *names: str) -> None:
        for name in names:
            self.pace.acquire(name, owner, partial(self._dial, name))

    def _dial(self, name: str) -> None:
        self.dialled.append((self.clients.now, name))


@pytest.mark.parametrize(
    ("rate", "workers", "seconds"), [(10, 1, 0.1), (100, 3, 0.03), (4, 8, 2.0), (1, 1, 1.0)]
)
def test_connections_are_evenly_spaced(rate: int, workers: int, seconds: float) -> None:
    """Also those of a burst: brokers count in seconds of their own."""
    dialler = Dialler(rate, workers)
    dialler.ask("owner", *map(str, range(20)))
    dialler.clients.wait(20 * seconds)
    times = [when - dialler.dialled[0][0] for when, _ in dialler.dialled]
    assert times == pytest.approx([seconds * turn for turn in range(20)], abs=0.01)
    dialler.clients.wait(seconds)
    assert dialler.pace.is_idle


def test_owners_take_turns_to_connect_and_who_left_takes_none() -> None:
    dialler = Dialler(1)
    dialler.ask("busy", "a", "b", "c", "e")
    dialler.ask("other", "d")
    dialler.pace.release("c")
    dialler.pace.release("a")  # its turn is over: nothing changes
    dialler.clients.wait(5)
    assert [name for _, name in dialler.dialled] == ["a", "b", "d", "e"]
