"""Share of one connection in its worker: long messages in steps, memory for them, its turn.

Reading a request item by item, judging it and writing the allowed rest costs at most ten
microseconds per byte, if its items are small and denied. A request of more than a few hundred bytes
is therefore judged in steps, by the same guards, in `proxy.scheduling.stepped_thread`, which costs
about fifty microseconds. Rules:

- A connection takes no other request while its own long request is judged, so order is kept.
- The ACLs that apply are those at the time of judging, not of arrival.
- At most `MAX_VALUES` items of a request are read.
- A connection with many requests that do not pass at a first look waits now and then, so that
  others have their turn, however short each request is.
- Memory for a request is released once the broker has it, or it is answered. A closed connection
  has no memory and no work under way.
"""

from collections.abc import Callable, Mapping
from math import inf
from sys import maxsize
from typing import Any, Final

from proxy.acl.decision import Guard, Inquiry, Judgement, TopicsUnknown
from proxy.connection.commands import CloseReason
from proxy.connection.life import PauseReason
from proxy.errors import BrokerFault, ClientFault
from proxy.scheduling.memory_budget import LONG_BYTES, WAIT_SECONDS, MemoryBudget
from proxy.scheduling.stepped_thread import TooManyValuesError, at_most, in_steps
from proxy.scheduling.steps import LongTask, Steps
from proxy.wire import fetch_requests, produce_requests
from proxy.wire.apis import FETCH, PRODUCE
from proxy.wire.primitives import Malformed
from proxy.wire.request import Request

MAX_AT_ONCE: Final = 16_384
"""Maximum size in bytes of a response that is changed at once, in 2 ms usually, and 16 ms at
worst."""
MAX_BYTES_JUDGED_AT_ONCE: Final = 512
"""Maximum size in bytes of a request that is judged at once, in 0.5 ms usually, and 5 ms at worst
(DescribeGroups)."""
MAX_JUDGED_AT_ONCE: Final = 128
"""Maximum number of topics and partitions of a Produce or Fetch that is judged at once; its size
does not matter."""
MAX_VALUES: Final = 400_000
"""Maximum number of items in all arrays of a request (topics, partitions, groups …), and of fields
in the answer about denied ones. They occupy at most 200 MB of memory. Kafka has no such bound, but
hardly any cluster has so many partitions.
"""
_BULK: Final[Mapping[int, Callable[[int, bytes], object]]] = {
    PRODUCE: produce_requests.parse,
    FETCH: fetch_requests.parse,
}
"""Parsers of frequent APIs whose requests cost time per item, not per byte."""


def takes_long(request: Request) -> bool:
    """Return whether a request must be judged in steps."""
    size = len(request.content)
    if size <= MAX_BYTES_JUDGED_AT_ONCE:
        return False
    walk = _BULK.get(request.api_key)
    if walk is None or size > LONG_BYTES:
        return True
    try:
        with at_most(MAX_JUDGED_AT_ONCE):
            walk(request.api_version, request.body)
    except TooManyValuesError:
        return True
    except Malformed:
        pass  # its guard will notice as fast
    return False


Found = Judgement | TopicsUnknown | CloseReason
"""Result of judging a request: a judgement, topics to look up first, or a close."""


def found(guard: Guard, inquiry: Inquiry) -> Found:
    """Judge a request."""
    try:
        return guard(inquiry)
    except TopicsUnknown as unknown:
        return unknown
    except (ClientFault, Malformed):
        return CloseReason.MALFORMED_FRAME
    except TooManyValuesError:
        return CloseReason.OVERSIZE_FRAME


def found_in_steps(guard: Guard, inquiry: Callable[[], Inquiry]) -> Steps[Found]:
    """Judge a request in steps; `inquiry` makes the argument of the guard."""
    return in_steps(lambda: found(guard, inquiry()), max_values=MAX_VALUES)


def changed_in_steps(
    transform: Callable[[bytes], bytes], content: bytes
) -> Steps[bytes | BrokerFault]:
    """Change a response in steps."""

    def change() -> bytes | BrokerFault:
        try:
            return transform(content)
        except BrokerFault as fault:
            return fault

    return in_steps(change, max_values=maxsize)


MAX_IN_A_TURN: Final = 64
"""Number of parts of a turn, of about twenty microseconds each; a small request takes one."""
LOOK_SECONDS: Final = 1.0
"""Seconds between two checks whether other clients wait for the memory of a slow client."""
_BYTES_OF_A_PART: Final = 32
"""Size of a part of a request, in bytes; denying small items takes 10 µs per byte at worst."""
_MAX_PARTS: Final = 16
"""Maximum number of parts that a request takes; longer ones are judged in steps."""

IN_MEMORY: Final = (
    PauseReason.WAITING
    | PauseReason.AUTHORIZING
    | PauseReason.BROKER_FULL
    | PauseReason.BROKER_DOWN
)
"""Reasons for a hold while the client's request is in memory."""


class LongWork:
    """Share of one connection in the memory and time of its worker for long requests."""

    __slots__ = (
        "_budget",
        "_patient_until",
        "_reserved",
        "_reserved_by",
        "_spent",
        "_under_way",
        "looks_at",
    )

    def __init__(self) -> None:
        self._budget: MemoryBudget | None = None
        """Budget of the reserved memory; None if no memory is reserved."""
        self._reserved = 0
        """Reserved bytes."""
        self._reserved_by = ""
        """Principal for which they were reserved, even if the session changes."""
        self._patient_until = inf
        """Deadline for the client to send a long request and take the response, in monotonic
        seconds."""
        self.looks_at = inf
        """Time of the next check whether others wait for the memory, in monotonic seconds; inf if
        no check is due."""
        self._under_way: tuple[LongTask, ...] = ()
        self._spent = 0
        """Number of parts of the turn that were used."""

    # Turns

    def spend(self, size: int) -> None:
        """Use up part of the turn, for a request of `size` bytes that did not pass at a first
        look."""
        self._spent += min(1 + size // _BYTES_OF_A_PART, _MAX_PARTS)

    @property
    def turn_is_over(self) -> bool:
        """True if others must have their turn first."""
        return self._spent >= MAX_IN_A_TURN

    def begin_turn(self) -> None:
        """Begin a new turn."""
        self._spent = 0

    # Memory

    def reserves(self, size: int) -> bool:
        """Return whether memory is reserved for a request of this size."""
        return size == self._reserved

    @property
    def reserves_any(self) -> bool:
        """True if memory is reserved for any request."""
        return self._reserved > 0

    def reserve(self, budget: MemoryBudget, principal: str, size: int) -> bool:
        """Reserve memory for a request; return False if there is not enough."""
        self.release_memory()
        if not budget.take(principal, size):
            return False
        self.take(budget, principal, size)
        return True

    def take(self, budget: MemoryBudget, principal: str, size: int) -> None:
        """Keep memory that was reserved in `budget`."""
        self._budget, self._reserved_by, self._reserved = budget, principal, size

    def release_memory(self) -> None:
        """Release the reserved memory."""
        budget, self._budget = self._budget, None
        self._reserved, self._patient_until, self.looks_at = 0, inf, inf
        if budget is not None:
            budget.release(self._reserved_by)

    def be_patient(self, now: float) -> None:
        """Give the client time to send the request, even if others wait for the memory."""
        self._patient_until = self.looks_at = now + WAIT_SECONDS

    def is_too_slow(self, now: float) -> bool:
        """Return whether others wait for memory that the client has occupied for too long."""
        if self._budget is None:
            return False
        self.looks_at = max(self._patient_until, now + LOOK_SECONDS)
        return now >= self._patient_until and self._budget.is_wanted

    # Steps

    def begin(
        self, principal: str, steps: Steps[Any], size: int, then: Callable[[Any, float], None]
    ) -> LongTask:
        """Return a task on a message of `size` bytes; `then(result, now)` is called when it is
        done."""
        long_task = LongTask(principal, steps, then, size=size)
        self._under_way = (*self._under_way, long_task)
        return long_task

    def done(self, long_task: LongTask, result: Any, now: float) -> None:
        """Handle the result of a task."""
        self._under_way = tuple(one for one in self._under_way if one is not long_task)
        long_task.done(result, now)

    def drop(self) -> None:
        """Release everything that requests hold: the connection is closed."""
        self.release_memory()
        for long_task in self._under_way:
            long_task.drop()
        self._under_way = ()
