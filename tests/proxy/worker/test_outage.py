"""Outage of one broker: who is held, who goes on, and in which order."""

from functools import partial

from proxy.worker.outage import MAX_HELD, MAX_HELD_PER_ADDRESS, RESUMED_AT_ONCE, Outage


class Clients:
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
    clients = Clients()
    assert all(clients.hold("192.0.2.1", "a", "b"))
    assert (clients.resumed, clients.outage.is_awaited) == ([], True)
    clients.outage.end()
    assert clients.resumed == ["a", "b"]
    assert clients.outage.resumes("a")


def test_a_few_go_on_at_a_time_and_addresses_take_turns() -> None:
    clients = Clients()
    clients.hold("192.0.2.1", *numbered("a", 100))
    clients.hold("192.0.2.2", *numbered("b", 2))
    clients.outage.end()
    resumed = RESUMED_AT_ONCE - 2
    assert clients.resumed == ["a0", "b0", "a1", "b1", *numbered("a", resumed)[2:]]
    clients.outage.release("a0")
    assert clients.resumed[-1] == f"a{resumed}"


def test_one_that_left_does_not_go_on() -> None:
    clients = Clients()
    clients.hold("192.0.2.1", "a", "b")
    clients.outage.release("a")
    clients.outage.end()
    clients.outage.release("b")
    assert (clients.resumed, clients.outage.is_forgotten) == (["b"], True)


def test_a_broker_that_fails_again_holds_the_rest() -> None:
    clients = Clients()
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
    clients = Clients()
    names = numbered("a", MAX_HELD_PER_ADDRESS)
    assert all(clients.hold("192.0.2.1", *names))
    assert clients.hold("192.0.2.1", "more") == [False]
    assert clients.hold("192.0.2.2", "b") == [True]
    clients.outage.release("a7")
    assert clients.hold("192.0.2.1", "more") == [True]


def test_addresses_of_a_host_share_its_places() -> None:
    clients = Clients()
    for number in range(MAX_HELD_PER_ADDRESS):
        clients.hold(f"2001:db8::{number:x}", f"a{number}")
    assert clients.hold("2001:db8::ffff:1", "more") == [False]


def test_all_addresses_together_have_no_more_than_the_limit() -> None:
    clients = Clients()
    for number in range(MAX_HELD):
        assert clients.hold(f"192.0.{number // 256}.{number % 256}", f"a{number}") == [True]
    assert clients.hold("198.51.100.1", "more") == [False]
