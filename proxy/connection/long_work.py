"""Share of one connection in its worker: memory for long requests, time slices, its turn.

Laws: a connection of which much is not forwarded at a first look waits now and then, so that others
have their turn, however little each request takes; memory that a request takes is released when
the broker has it, or it is answered; a closed connection has neither memory nor work under way.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import inf
from sys import maxsize
from typing import Any, Final

from proxy.acl.decision import Authority, Guard, Inquiry, Judgement, TopicsUnknown
from proxy.acl.model import Operation, ResourceType
from proxy.connection.commands import CloseReason
from proxy.connection.life import PauseReason
from proxy.errors import BrokerFault, ClientFault
from proxy.scheduling.memory_budget import LONG_BYTES, WAIT_SECONDS, MemoryBudget
from proxy.scheduling.stepped_thread import TooManyValuesError, at_most, in_steps, pause
from proxy.scheduling.steps import LongTask, Steps
from proxy.wire import fetch_requests, produce_requests
from proxy.wire.apis import FETCH, PRODUCE
from proxy.wire.primitives import Malformed
from proxy.wire.request import Request

MAX_AT_ONCE: Final = 16_384
"""Bytes of a response that is changed at once: 2 ms as a rule, 16 at worst."""
MAX_BYTES_JUDGED_AT_ONCE: Final = 512
"""Bytes of a request: half a millisecond as a rule, five at worst (DescribeGroups)."""
MAX_JUDGED_AT_ONCE: Final = 128
"""Topics and partitions of a Produce or Fetch, which may have any number of bytes."""
MAX_VALUES: Final = 400_000
"""Items that a request may have, in all of its arrays (topics, partitions, groups …), and fields in
what is said of those that are denied. They take up to 200 MB of memory. Kafka has no such bound,
but hardly a cluster with so many partitions.
"""
_NAMES_AT_ONCE: Final = 64
"""Number of names that are checked between two pauses, in some tens of microseconds."""
_BULK: Final[Mapping[int, Callable[[int, bytes], object]]] = {
    PRODUCE: produce_requests.parse,
    FETCH: fetch_requests.parse,
}
"""APIs whose requests are no rare ones, and how they are walked through: for how long does not
depend on their bytes."""


def takes_long(request: Request) -> bool:
    """Return whether a request is to be judged in steps."""
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
        pass  # which its guard will see as soon
    return False


Found = Judgement | TopicsUnknown | CloseReason
"""Result of judging a request: a judgement, the topics to look up first, or a close."""


def found(guard: Guard, inquiry: Inquiry) -> Found:
    """Have a request judged."""
    try:
        return guard(inquiry)
    except TopicsUnknown as unknown:
        return unknown
    except (ClientFault, Malformed):
        return CloseReason.MALFORMED_FRAME
    except TooManyValuesError:
        return CloseReason.OVERSIZE_FRAME


def found_in_steps(guard: Guard, inquiry: Callable[[], Inquiry]) -> Steps[Found]:
    """Do the same in steps; `inquiry` makes what is judged."""
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


class PausingAuthority:
    """An authority that is asked in steps: others may ask theirs between two questions."""

    __slots__ = ("_asks", "_authority")

    def __init__(self, authority: Authority, asks: Callable[[], None]) -> None:
        """`asks` says on whose behalf the next question is."""
        self._authority = authority
        self._asks = asks

    @property
    def auditing(self) -> bool:
        """Return whether denials are only counted."""
        return self._authority.auditing

    def may(
        self, operation: Operation, resource_type: ResourceType, name: str, *, report: bool = True
    ) -> bool:
        """Return whether it may do this."""
        pause()
        self._asks()
        return self._authority.may(operation, resource_type, name, report=report)

    def may_each(
        self, operation: Operation, resource_type: ResourceType, names: Sequence[str]
    ) -> list[bool]:
        """Return whether it may do this to each of these resources."""
        decided: list[bool] = []
        for at in range(0, len(names), _NAMES_AT_ONCE):
            pause()
            some = names[at : at + _NAMES_AT_ONCE]
            decided += self._authority.may_each(operation, resource_type, some)
        return decided

    def operations_each(self, resource_type: ResourceType, names: Sequence[str]) -> list[int]:
        """Return the authorized-operations bit field for each of these resources."""
        found: list[int] = []
        for at in range(0, len(names), _NAMES_AT_ONCE):
            pause()
            found += self._authority.operations_each(resource_type, names[at : at + _NAMES_AT_ONCE])
        return found

    def reused(self, key: Hashable, content: bytes, cut: Callable[[], bytes]) -> bytes:
        """Return what `cut` makes of `content`, or made of it before."""
        return self._authority.reused(key, content, cut)

    def may_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether it may do this to any one resource of the type."""
        self._asks()
        return self._authority.may_any(operation, resource_type)

    def may_every(
        self,
        operation: Operation,
        resource_type: ResourceType,
        name_prefix: str,
        *,
        report: bool = True,
    ) -> bool:
        """Return whether it may do this to every resource whose name begins so."""
        self._asks()
        return self._authority.may_every(operation, resource_type, name_prefix, report=report)

    def may_administer(self, operation: Operation) -> bool:
        """Return whether it may do this to ACLs, quotas and users."""
        self._asks()
        return self._authority.may_administer(operation)

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the authorized-operations bit field."""
        pause()
        self._asks()
        return self._authority.operations(resource_type, name)


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
