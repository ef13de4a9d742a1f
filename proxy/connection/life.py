"""Life of a connection as tables: its states, and the reasons for which its client is not read.

`NEXT` is the state machine: state and input give the next state, and an input that is absent is
illegal. `HELD_OPEN` defines when a state other than SERVING ends the connection: once all requests
are answered, and no reason of its row applies. CLOSED also follows at once when a side disappears,
a time limit passes, or the proxy finds a bug.

| state     | begins when                  | takes requests          |
|-----------|------------------------------|-------------------------|
| SERVING   | the client connects          | yes                     |
| FINISHING | the client sends EOF         | those already sent      |
| DRAINING  | the proxy is stopping        | the rest of one request |
| ENDING    | a fault, a denial, an expiry | no                      |
| CLOSED    | the connection has ended     | no                      |
"""

from collections.abc import Mapping
from typing import Final


class PauseReason:
    """Reasons for which a client is not read, as bits. Not an IntFlag, which is slow to test."""

    NO_BROKER: Final = 1
    """The upstream connection is not open yet."""
    WAITING: Final = 2
    """Keys, the store, or the broker's response to a question are needed first."""
    BROKER_FULL: Final = 4
    """The broker does not read."""
    CLIENT_FULL: Final = 8
    """The client does not read its responses."""
    IN_FLIGHT: Final = 16
    """The client is owed too many responses."""
    CLOSING: Final = 32
    THROTTLED: Final = 64
    """The client has exceeded a quota."""
    AUTHORIZING: Final = 128
    """A long request is being judged in steps."""
    NO_MEMORY: Final = 256
    """A long request waits for memory that other clients' long requests occupy."""
    LOGIN: Final = 512
    """A login to the broker is under way: the proxy's own, or the client's."""
    TURN: Final = 1_024
    """Other clients have their turn first."""
    BROKER_DOWN: Final = 2_048
    """The broker cannot be reached. Unlike with the other reasons, the client is still read, within
    bounds, so that its disconnect is noticed."""


BACK_PRESSURE: Final = (
    PauseReason.BROKER_FULL
    | PauseReason.CLIENT_FULL
    | PauseReason.IN_FLIGHT
    | PauseReason.THROTTLED
    | PauseReason.NO_MEMORY
)
"""Reasons for which a client is not read on purpose, regardless of its session; Kafka does the
same. All other reasons are the proxy's own delay."""


class Life:
    """States of a connection. Not an IntEnum, which is slow to test."""

    SERVING: Final = 0
    FINISHING: Final = 1
    DRAINING: Final = 2
    ENDING: Final = 3
    CLOSED: Final = 4


class Input:
    """Inputs of the state machine."""

    CLIENT_FINISHED: Final = 0
    """The client sent EOF."""
    DRAIN: Final = 1
    """The proxy is stopping."""
    END: Final = 2
    """A verdict ends the connection after the requests before it; there is at most one."""
    CLOSE: Final = 3
    """Close now."""


NEXT: Final[Mapping[tuple[int, int], int]] = {
    (Life.SERVING, Input.CLIENT_FINISHED): Life.FINISHING,
    (Life.SERVING, Input.DRAIN): Life.DRAINING,
    (Life.SERVING, Input.END): Life.ENDING,
    (Life.SERVING, Input.CLOSE): Life.CLOSED,
    (Life.FINISHING, Input.CLIENT_FINISHED): Life.FINISHING,
    (Life.FINISHING, Input.DRAIN): Life.DRAINING,
    (Life.FINISHING, Input.END): Life.ENDING,
    (Life.FINISHING, Input.CLOSE): Life.CLOSED,
    (Life.DRAINING, Input.CLIENT_FINISHED): Life.DRAINING,
    (Life.DRAINING, Input.DRAIN): Life.DRAINING,
    (Life.DRAINING, Input.END): Life.ENDING,
    (Life.DRAINING, Input.CLOSE): Life.CLOSED,
    (Life.ENDING, Input.CLIENT_FINISHED): Life.ENDING,
    (Life.ENDING, Input.DRAIN): Life.ENDING,
    (Life.ENDING, Input.CLOSE): Life.CLOSED,
}
"""Next state by state and input; absent pairs are illegal."""

HELD_OPEN: Final[Mapping[tuple[int, bool], int]] = {
    (Life.FINISHING, False): PauseReason.BROKER_FULL,
    (Life.FINISHING, True): ~PauseReason.CLOSING,  # it asked for more than it has been answered
    (Life.DRAINING, False): PauseReason.WAITING | PauseReason.AUTHORIZING | PauseReason.BROKER_FULL,
    (Life.DRAINING, True): PauseReason.WAITING | PauseReason.AUTHORIZING | PauseReason.BROKER_FULL,
    (Life.ENDING, False): PauseReason.BROKER_FULL,
    (Life.ENDING, True): PauseReason.BROKER_FULL,
}
"""Reasons that keep a connection open, by state and whether its client was ever authenticated."""


def next_life(life: int, event: int) -> int:
    """Return the state after an input. Raises AssertionError for an illegal one."""
    after = NEXT.get((life, event))
    assert after is not None, f"input {event} in state {life}"
    return after
