"""Slots for the connections that relayed logins need."""

from functools import partial

from proxy.worker.login_slots import LoginSlots


class Clients:
    """Clients that ask for slots, in the order in which they get one."""

    def __init__(self, limit: int) -> None:
        self.slots: LoginSlots[str] = LoginSlots(limit)
        self.served: list[str] = []

    def ask(self, owner: str, *names: str) -> None:
        for name in names:
            self.slots.acquire(name, owner, partial(self.served.append, name))

    def release(self, *names: str) -> None:
        for name in names:
            self.slots.release(name)


def test_no_more_than_the_limit_at_once() -> None:
    clients = Clients(4)
    for number in range(10):
        clients.ask(f"owner-{number}", f"client-{number}")
    assert clients.slots.taken == 4
    clients.release("client-0")
    assert clients.served == [f"client-{number}" for number in range(5)]


def test_nobody_has_more_than_half_of_them() -> None:
    """One address that finishes no login leaves room for the others."""
    clients = Clients(4)
    clients.ask("stranger", *(f"s{number}" for number in range(100)))
    clients.ask("alice", "a0", "a1", "a2")
    assert clients.served == ["s0", "s1", "a0", "a1"]


def test_the_waiting_take_turns() -> None:
    clients = Clients(2)
    clients.ask("alice", "a0", "a1", "a2")
    clients.ask("bob", "b0", "b1")
    clients.ask("carol", "c0")
    clients.release("a0", "b0", "a1", "c0")
    assert clients.served == ["a0", "b0", "a1", "b1", "c0", "a2"]


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


def test_a_limit_of_one_serves_everybody_in_turn() -> None:
    clients = Clients(1)
    clients.ask("alice", "a0")
    clients.ask("bob", "b0")
    clients.release("a0")
    assert clients.served == ["a0", "b0"]
