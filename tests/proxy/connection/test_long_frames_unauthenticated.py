"""Memory bound of frames of unauthenticated clients, for any number of them."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.connection.commands import CloseReason
from proxy.connection.connection import finishing
from proxy.scheduling.memory_budget import LONG_BYTES_UNAUTHENTICATED, MemoryBudget
from sasl.jwks import KeyCache
from tests.support.frames import authenticate, bearer, bearer_of_unknown_key, handshake
from tests.support.playbook import OAUTHBEARER, Playbook, log_in, logged_in

SIZE = 100_000
MOST = 3 * SIZE
REFUSED = ["closed oversize_frame", "close"]


def unauthenticated(memory: MemoryBudget, number: int = 0, **more: Any) -> Playbook:
    """A client that has chosen its mechanism."""
    play = Playbook(**more)
    play.connection.connection_id = f"c{number}"
    play.connection.rules = replace(play.rules, unauthenticated_memory=memory)
    play.client(handshake(1, OAUTHBEARER))
    play.take()
    return play


def long(message: bytes) -> bytes:
    """The frame with a token, made long by the blanks in front of it."""
    return authenticate(2, message.replace(b"Bearer ", b"Bearer" + b" " * SIZE))


def test_a_thousand_unauthenticated_clients_hold_what_a_few_may() -> None:
    memory = MemoryBudget(MOST)
    plays = [unauthenticated(memory, number) for number in range(20)]
    for play in plays:
        play.client(long(bearer())[:-1])
    assert sum(play.kept_bytes for play in plays) <= MOST
    assert [play.take() for play in plays] == [[]] * 2 + [REFUSED] * 18


def test_frames_as_most_clients_send_them_need_no_room() -> None:
    memory = MemoryBudget(MOST)
    assert memory.take("somebody", MOST)
    play = unauthenticated(memory)
    frame = authenticate(2, bearer())
    assert len(frame) < LONG_BYTES_UNAUTHENTICATED
    play.client(frame)
    assert play.session.principal == "User:alice"


@pytest.mark.parametrize(
    "ends",
    [
        finishing(CloseReason.CLIENT_CLOSED),
        finishing(CloseReason.INTERNAL_ERROR),
        finishing(CloseReason.KILLED),
    ],
)
def test_who_goes_leaves_room(ends: Any) -> None:
    memory = MemoryBudget(SIZE)
    first, second = unauthenticated(memory, 1), unauthenticated(memory, 2)
    first.client(long(bearer())[:-1])
    first.call(ends)
    second.client(long(bearer()))
    assert second.session.principal == "User:alice"


def test_who_is_let_in_leaves_room() -> None:
    memory = MemoryBudget(SIZE)
    for number in range(3):
        play = unauthenticated(memory, number)
        play.client(long(bearer()))
        assert play.session.principal == "User:alice"


def test_who_waits_for_keys_still_has_it() -> None:
    """Its token is kept until they are there."""
    memory = MemoryBudget(SIZE)
    first, second = unauthenticated(memory, 1, keys=KeyCache()), unauthenticated(memory, 2)
    first.client(long(bearer_of_unknown_key()))
    assert first.take() == ["seek keys"]
    second.client(long(bearer()))
    assert second.take() == REFUSED
    first.call(lambda c, now: c.resume_login(now))
    third = unauthenticated(memory, 3)
    third.client(long(bearer()))
    assert third.session.principal == "User:alice"


def test_who_is_known_needs_none() -> None:
    """A session must not end because unauthenticated clients send much."""
    memory = MemoryBudget(MOST)
    assert memory.take("somebody", MOST)
    play = logged_in()
    play.connection.rules = replace(play.rules, unauthenticated_memory=memory)
    log_in(play, first_id=3)
    play.now += 5
    play.client(handshake(5, OAUTHBEARER), long(bearer()))
    assert play.session.reauthentications == 2
