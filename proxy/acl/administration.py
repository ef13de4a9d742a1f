"""Administrative requests, which change the cluster, and their outcomes."""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

from proxy.acl.decision import Change, Forward
from proxy.acl.model import Operation, PatternType, Permission, ResourceType
from proxy.scheduling.steps import pausing
from proxy.wire import apis, messages
from proxy.wire.codec import decode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.schema import Message, message_type

ADMINISTRATIVE: Final = frozenset(
    {
        *apis.MUTATIONS,
        apis.DELETE_RECORDS,
        apis.CREATE_ACLS,
        apis.DELETE_ACLS,
        apis.ALTER_CONFIGS,
        apis.ALTER_REPLICA_LOG_DIRS,
        apis.DELETE_GROUPS,
        apis.ELECT_LEADERS,
        apis.INCREMENTAL_ALTER_CONFIGS,
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.OFFSET_DELETE,
        apis.ALTER_CLIENT_QUOTAS,
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        apis.UPDATE_FEATURES,
        apis.UNREGISTER_BROKER,
        apis.ADD_RAFT_VOTER,
        apis.REMOVE_RAFT_VOTER,
        apis.ALTER_SHARE_GROUP_OFFSETS,
        apis.DELETE_SHARE_GROUP_OFFSETS,
        apis.UNREGISTER_CONTROLLER,
    }
)
"""API keys of administrative requests."""

_DENIED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_NAMES: Final = ("name", "topic_name", "topic", "group_id", "resource_name", "user", "feature")
"""Fields of a response that name a resource."""


class Administered(NamedTuple):
    """Administrative request that a broker, or the store, has received."""

    key: int
    """API key << 16 | version."""
    at: float
    """Time of the request, or of the store's answer, in monotonic seconds."""
    request: bytes = b""
    """Body of a request to the store."""
    response: bytes | None = None
    """Body of the response; None if the connection ended before it."""

    def outcomes(self) -> dict[str | None, int | None]:
        """Return the error code of each resource in the response, 0 without an error.

        The key None stands for the request as a whole, and a code of None for an unknown outcome.
        The first of several errors of a resource counts. ACLs are named with all their fields.
        Refusals of requests to the store are left out: they are denials. Raises `Malformed`.
        """
        if self.response is None:
            return {None: None}
        api_key, version = self.key >> 16, self.key & 0xFFFF
        kind = message_type(f"{apis.APIS[api_key].name}Response")
        answer: Any = decode(kind, version, self.response)
        errors = _errors(answer, None)
        if api_key == apis.CREATE_ACLS:  # the response does not name them
            creations = decode(messages.CreateAclsRequest, version, self.request).creations
            codes = (one.error_code for one in answer.results)
            errors = zip(map(_acl, creations), codes, strict=False)
        from_store = apis.answered_here(api_key, version)
        found: dict[str | None, int | None] = {}
        for resource, code in errors:
            if not found.get(resource) and not (from_store and code == _DENIED):
                found[resource] = code
        return found


def with_report(judgement: Forward | Change, report: Callable[[bytes], None]) -> Change:
    """Return a judgement that also passes the body of the broker's response to `report`, before
    denied resources are added to it."""
    change = judgement if isinstance(judgement, Change) else Change()
    inner = change.response

    def response(body: bytes) -> bytes:
        report(body)
        return body if inner is None else inner(body)

    return change._replace(response=response)


def _errors(part: Message, name: str | None) -> Iterator[tuple[str | None, int]]:
    """Yield the name and error code of each part of a response. `name`: that of the outer part."""
    values = {field: getattr(part, field) for field in type(part).DEFAULTS}
    if "permission_type" in values:
        name = _acl(part)
    elif entity := values.get("entity"):
        name = ", ".join(f"{one.entity_type} {one.entity_name or '(default)'}" for one in entity)
    else:
        name = next((values[field] for field in _NAMES if values.get(field)), name)
    parts = [value for value in values.values() if isinstance(value, tuple)]
    if "error_code" in values and not (name is None and any(parts)):
        yield name, values["error_code"]
    for value in parts:
        for one in pausing(value):
            if isinstance(one, Message):
                yield from _errors(one, name)


def _acl(acl: Any) -> str:
    """Return an ACL of a message in one line, as `acls list` prints it."""
    created = hasattr(acl, "resource_pattern_type")
    pattern_type = acl.resource_pattern_type if created else acl.pattern_type
    words = (
        _word(ResourceType, acl.resource_type),
        _word(PatternType, pattern_type),
        acl.resource_name,
        acl.principal,
        acl.host,
        _word(Operation, acl.operation),
        _word(Permission, acl.permission_type),
    )
    return " ".join(words)


def _word(kind: type[IntEnum], code: int) -> str:
    return next((one.name for one in kind if one == code), str(code))  # it may be invalid
