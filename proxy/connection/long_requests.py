"""Judging and changing of long messages in steps, so that other connections go on.

Reading a request item by item, judging it and writing what is left of it takes up to ten
microseconds a byte, if its items are small and denied. What is longer than a few hundred bytes is
therefore done in steps, by the same guards, in `proxy.scheduling.stepped_thread`, which costs some
fifty microseconds. Laws:

- A connection waits for its own long request, and takes no other meanwhile: order is kept.
- The ACLs are those that apply while it is judged, not before it came.
- Of a request no more than `MAX_VALUES` are made; a connection that is closed keeps nothing.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from sys import maxsize
from typing import Final

from proxy.acl.decision import Authority, Guard, Inquiry, Judgement, TopicsUnknown
from proxy.acl.model import Operation, ResourceType
from proxy.connection.commands import CloseReason
from proxy.errors import BrokerFault, ClientFault
from proxy.scheduling.memory_budget import LONG_BYTES
from proxy.scheduling.stepped_thread import TooManyValuesError, at_most, in_steps, pause
from proxy.scheduling.steps import Steps
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
