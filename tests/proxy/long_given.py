"""Long requests and responses, and somebody who asks for groups."""

from kio.schema.describe_groups.v5.response import DescribedGroup, DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from proxy.acl.guards.entities import NOT_THROTTLED, make
from proxy.acl.model import Operation
from proxy.connection.long_requests import MAX_AT_ONCE
from proxy.scheduling.memory_budget import LONG_BYTES, MemoryBudget
from proxy.wire.codec import decode, encode, request_type
from tests.proxy.acl.guards.given import group
from tests.proxy.frames_given import request, response
from tests.proxy.guarded_given import Guarded

DESCRIBE_GROUPS = 15
PADDING = 200
"""Characters of each group's name."""
LITTLE, MUCH = MAX_AT_ONCE // PADDING + 1, LONG_BYTES // PADDING + 1
"""Groups of a request that is long, and of one that needs room."""


def describe(correlation_id: int, *names: str, more: int = 0, hidden: bool = False) -> bytes:
    """Ask for groups: those named, and as many as are visible, or not."""
    prefix = "h" if hidden else "v"
    groups = [*names, *(f"{prefix}{number}".ljust(PADDING, ".") for number in range(more))]
    body = request_type(DESCRIBE_GROUPS, 5)(
        groups=tuple(GroupId(name) for name in groups), include_authorized_operations=False
    )
    return request(DESCRIBE_GROUPS, 5, correlation_id, encode(body))


def described(correlation_id: int, *names: str) -> bytes:
    body = DescribeGroupsResponse(
        throttle_time=NOT_THROTTLED,
        groups=tuple(
            make(
                DescribedGroup,
                error_code=ErrorCode.none,
                group_id=GroupId(name),
                group_state="Stable",
                protocol_type="",
                protocol_data="",
                members=(),
            )
            for name in names
        ),
    )
    return response(correlation_id, b"\0" + encode(body))


class Describer(Guarded):
    """May describe `mine` and the visible groups; does its long work when it is told to."""

    def __init__(self, room: MemoryBudget | None = None) -> None:
        names = [f"v{number}".ljust(PADDING, ".") for number in range(MUCH)]
        super().__init__(group(Operation.DESCRIBE, "mine", *names), room=room)
        self.play.client(describe(99, "mine"))
        self.play.broker(described(99, "mine"))
        self.play.take()
        self.play.to_broker.clear()
        self.play._seen_by_broker = 0
        self.play.received.clear()
        self.play.thinks_at_once = False

    def groups(self, frame: int) -> list[tuple[str, str]]:
        """Names and errors in a response that the client received."""
        body = decode(DescribeGroupsResponse, self.play.received[frame], 5)
        return [(one.group_id.strip("."), one.error_code.name) for one in body.groups]
