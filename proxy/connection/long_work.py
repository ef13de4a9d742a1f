"""Share of one connection in its worker: long messages in steps, memory for them, its turn.

Reading a request item by item, judging it and writing the allowed rest costs at most ten
microseconds per byte, if its items are small and denied. A request of more than a few hundred bytes
is therefore judged in steps, by the same guards, in `proxy.scheduling.steps`, which costs
about fifty microseconds. Rules:

- A connection takes no other request while its own long request is judged, so order is kept.
- The ACLs that apply are those at the time of judging, not of arrival.
- At most `MAX_VALUES` items of a request are read.
- A connection with many requests that do not pass at a first look waits now and then, so that
  others have their turn, however short each request is.
- Memory for a request is released once the broker has it, or it is answered. A closed connection
  has no memory and no work under way.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from math import inf
from sys import maxsize
from typing import Any, Final, final

from proxy.acl.decision import ClientAuthority, Guard, Inquiry, Judgement, TopicsUnknown, Used
from proxy.acl.model import Operation, ResourceType
from proxy.connection.commands import CloseReason
from proxy.connection.life import PauseReason
from proxy.errors import BrokerFault, ClientFault
from proxy.scheduling.memory_budget import LONG_BYTES, WAIT_SECONDS, MemoryBudget
from proxy.scheduling.steps import LongTask, Steps, TooManyValuesError, at_most, in_steps, pause
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
_NAMES_AT_ONCE: Final = 64
"""Number of names that are checked between two pauses, in tens of microseconds."""
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


@final
class SteppedAuthority:
    """Authority for a request that is judged in steps.

    It pauses between questions, so that other connections can ask theirs.
    """

    __slots__ = ("_asks", "_authority", "_used")

    def __init__(
        self,
        authority: ClientAuthority,
        asks: Callable[[], None],
        used: dict[Used, None] | None = None,
    ) -> None:
        """`asks` is called before each question to the authority, to identify the connection;
        `used` receives the uses of the request; None if they are not counted."""
        self._authority = authority
        self._asks = asks
        self._used = used

    @property
    def auditing(self) -> bool:
        """True if denials are only counted."""
        return self._authority.auditing

    def may(
        self, operation: Operation, resource_type: ResourceType, name: str, *, report: bool = True
    ) -> bool:
        """Return whether the client may do this."""
        with self:
            return self._authority.may(operation, resource_type, name, report=report)

    def permits(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the ACLs allow this, also in audit mode."""
        with self:
            return self._authority.permits(operation, resource_type, name)

    def may_each(
        self, operation: Operation, resource_type: ResourceType, names: Sequence[str]
    ) -> list[bool]:
        """Return whether the client may do this to each of these resources."""
        decided: list[bool] = []
        for some in _parts(names):
            decided += self._authority.may_each(operation, resource_type, some)
        return decided

    def operations_each(self, resource_type: ResourceType, names: Sequence[str]) -> list[int]:
        """Return the authorized-operations bit field for each of these resources."""
        fields: list[int] = []
        for some in _parts(names):
            fields += self._authority.operations_each(resource_type, some)
        return fields

    def reused(self, key: Hashable, content: bytes, cut: Callable[[], bytes]) -> bytes:
        """Return the result of `cut` for `content`, which may be cached."""
        return self._authority.reused(key, content, cut)

    def may_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether the client may do this to any resource of the type."""
        with self:
            return self._authority.may_any(operation, resource_type)

    def may_every(
        self,
        operation: Operation,
        resource_type: ResourceType,
        name_prefix: str,
        *,
        report: bool = True,
    ) -> bool:
        """Return whether the client may do this to all resources whose names have the prefix."""
        with self:
            return self._authority.may_every(operation, resource_type, name_prefix, report=report)

    def may_administer(self, operation: Operation) -> bool:
        """Return whether the client may do this to ACLs, quotas and users."""
        with self:
            return self._authority.may_administer(operation)

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the authorized-operations bit field."""
        with self:
            return self._authority.operations(resource_type, name)

    def __enter__(self) -> None:
        pause()
        self._asks()
        self._authority.used = self._used

    def __exit__(self, *_: object) -> None:
        self._authority.used = None


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(names), _NAMES_AT_ONCE):
        pause()
        yield names[at : at + _NAMES_AT_ONCE]


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
