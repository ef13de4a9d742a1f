"""Life of a connection as a table: why its client is not read, what leads to its end.

| life      | begins when                  | takes requests  | ends, all being answered, unless  |
|           |                              |                 | it is held for                    |
|-----------|------------------------------|-----------------|-----------------------------------|
| SERVING   | the client connects          | yes             | (does not end)                    |
| FINISHING | the client sends no more     | what was sent   | anything, as it asked for more;   |
|           |                              |                 | before it authenticated, or while |
|           |                              |                 | its broker is down, nothing       |
| DRAINING  | the proxy is to stop         | the rest of one | what is asked elsewhere, or steps |
| ENDING    | a fault, a denial, an expiry | no              | nothing                           |
| CLOSED    | so it ended; or a side is    | no              |                                   |
|           | gone, silence, a mistake     |                 |                                   |

A connection only ever moves down in this table. None ends while the broker has yet to take what was
written, but by the last row.
"""

from typing import Final


class PauseReason:
    """Reasons for which a client is not read, as bits. No IntFlag, which is slow to test."""

    NO_BROKER: Final = 1
    WAITING: Final = 2
    """For keys, for the store, or for what the broker says of topics."""
    BROKER_FULL: Final = 4
    CLIENT_FULL: Final = 8
    """It does not read its answers."""
    IN_FLIGHT: Final = 16
    CLOSING: Final = 32
    THROTTLED: Final = 64
    """It used more than its quota."""
    AUTHORIZING: Final = 128
    """Its request is long, and is judged in steps."""
    NO_MEMORY: Final = 256
    """Its request is long, and others' fill the memory that there is for such."""
    LOGIN: Final = 512
    """The proxy logs in to the broker."""
    TURN: Final = 1_024
    """Much was done for it, and others have their turn first."""
    BROKER_DOWN: Final = 2_048
    """Its broker cannot be reached for now. Unlike with the other reasons, the client is still read
    within bounds, so that its disconnect is noticed."""


BACK_PRESSURE: Final = (
    PauseReason.BROKER_FULL
    | PauseReason.CLIENT_FULL
    | PauseReason.IN_FLIGHT
    | PauseReason.THROTTLED
    | PauseReason.NO_MEMORY
)
"""Reasons for which a client is not read on purpose, whatever its session; Kafka does not read it
either. All others are the proxy's own delay."""


class Life:
    """State of a connection in the table at the head of this module. No IntEnum, which is slow
    to test."""

    SERVING: Final = 0
    FINISHING: Final = 1
    DRAINING: Final = 2
    ENDING: Final = 3
    CLOSED: Final = 4


def waits_for(life: int, *, authenticated: bool) -> int:
    """Return the holds during which a connection does not end."""
    if life == Life.FINISHING and authenticated:
        return ~PauseReason.CLOSING
    if life == Life.DRAINING:
        return PauseReason.WAITING | PauseReason.AUTHORIZING | PauseReason.BROKER_FULL
    return PauseReason.BROKER_FULL
