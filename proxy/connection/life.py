"""Life of a connection as a table: what leads to its end, and what it waits for.

| life      | begins when                  | takes requests  | ends, all being answered, unless  |
|           |                              |                 | it is held for                    |
|-----------|------------------------------|-----------------|-----------------------------------|
| SERVING   | the client connects          | yes             | (does not end)                    |
| FINISHING | the client sends no more     | what was sent   | anything, as it asked for more;   |
|           |                              |                 | before it authenticated, nothing  |
| DRAINING  | the proxy is to stop         | the rest of one | what is asked elsewhere, or steps |
| ENDING    | a fault, a denial, an expiry | no              | nothing                           |
| CLOSED    | so it ended; or a side is    | no              |                                   |
|           | gone, silence, a mistake     |                 |                                   |

A connection only ever moves down in this table. None ends while the broker has yet to take what was
written, but by the last row.
"""

from typing import Final

from proxy.connection.pause_reasons import PauseReason


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
