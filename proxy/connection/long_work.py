"""Share of one connection in its worker: memory for long requests, time slices, its turn.

Laws: a connection of which much is not forwarded at a first look waits now and then, so that others
have their turn, however little each request takes; memory that a request takes is released when
the broker has it, or it is answered; a closed connection has neither memory nor work under way.
"""

from collections.abc import Callable
from math import inf
from typing import Any, Final

from proxy.connection.life import PauseReason
from proxy.scheduling.memory_budget import WAIT_SECONDS, MemoryBudget
from proxy.scheduling.steps import LongTask, Steps

MAX_IN_A_TURN: Final = 64
"""Parts of a turn, of some twenty microseconds: a small request takes one."""
LOOK_SECONDS: Final = 1.0
"""Between two looks whether others wait for the memory of a slow client."""
_BYTES_OF_A_PART: Final = 32
"""Size of a part of a request, in bytes; denials of small items take ten µs per byte at worst."""
_MAX_PARTS: Final = 16
"""Number of parts of a request; one with more is judged in steps."""

IN_MEMORY: Final = (
    PauseReason.WAITING
    | PauseReason.AUTHORIZING
    | PauseReason.BROKER_FULL
    | PauseReason.BROKER_DOWN
)
"""Reasons for which a client is held while its request is in memory."""


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
        """The budget of which memory is reserved; None: none is."""
        self._reserved = 0
        """Bytes."""
        self._reserved_by = ""
        """The principal that it is reserved for, whatever becomes of the session."""
        self._patient_until = inf
        """Deadline of the client to send and take what is long, in monotonic seconds."""
        self.looks_at = inf
        """Time of the next look whether others wait for the memory, in monotonic seconds; infinity:
        there is none."""
        self._under_way: tuple[LongTask, ...] = ()
        self._spent = 0
        """Parts of its turn."""

    # Turns

    def spend(self, size: int) -> None:
        """A request of so many bytes is dealt with, which is not forwarded at a first look."""
        self._spent += min(1 + size // _BYTES_OF_A_PART, _MAX_PARTS)

    @property
    def turn_is_over(self) -> bool:
        """Return whether others are to have their turn first."""
        return self._spent >= MAX_IN_A_TURN

    def begin_turn(self) -> None:
        """Others had their turn, or will have it."""
        self._spent = 0

    # Memory

    def reserves(self, size: int) -> bool:
        """Return whether there is memory for a request of this size."""
        return size == self._reserved

    @property
    def reserves_any(self) -> bool:
        """Return whether there is memory for any request."""
        return self._reserved > 0

    def reserve(self, budget: MemoryBudget, principal: str, size: int) -> bool:
        """Reserve memory for a request; return False if there is not enough now."""
        self.release_memory()
        if not budget.take(principal, size):
            return False
        self.take(budget, principal, size)
        return True

    def take(self, budget: MemoryBudget, principal: str, size: int) -> None:
        """Memory was reserved."""
        self._budget, self._reserved_by, self._reserved = budget, principal, size

    def release_memory(self) -> None:
        """Release what is reserved."""
        budget, self._budget = self._budget, None
        self._reserved, self._patient_until, self.looks_at = 0, inf, inf
        if budget is not None:
            budget.release(self._reserved_by)

    def be_patient(self, now: float) -> None:
        """Wait for the client to send the request, even if others wait for the memory."""
        self._patient_until = self.looks_at = now + WAIT_SECONDS

    def is_too_slow(self, now: float) -> bool:
        """Return whether others wait for memory that the client has had for too long."""
        if self._budget is None:
            return False
        self.looks_at = max(self._patient_until, now + LOOK_SECONDS)
        return now >= self._patient_until and self._budget.is_wanted

    # Steps

    def begin(
        self, principal: str, steps: Steps[Any], size: int, then: Callable[[Any, float], None]
    ) -> LongTask:
        """Return a task about so many bytes; `then(result, now)` is called when it is done."""
        long_task = LongTask(principal, steps, then, size=size)
        self._under_way = (*self._under_way, long_task)
        return long_task

    def done(self, long_task: LongTask, result: Any, now: float) -> None:
        """A task was done."""
        self._under_way = tuple(one for one in self._under_way if one is not long_task)
        long_task.done(result, now)

    def drop(self) -> None:
        """The connection is closed: let go of all that its requests hold."""
        self.release_memory()
        for long_task in self._under_way:
            long_task.drop()
        self._under_way = ()
