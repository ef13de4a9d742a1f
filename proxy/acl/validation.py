"""Refusals of ACLs, filters and changes of users, with Kafka's checks, order and messages."""

from typing import Final, NamedTuple

from proxy.acl.matching import acl_host_key
from proxy.acl.model import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from proxy.scheduling.steps import pausing
from proxy.wire import messages
from proxy.wire.error_codes import ErrorCode

MAX_QUOTE: Final = 200
"""Maximum length in characters of a client's text in a message, which must fit into a STRING."""


class Refusal(NamedTuple):
    """Refusal of an item of a request."""

    code: ErrorCode
    """Error code for the client."""
    message: str
    """Error message for the client."""


def invalid(message: str) -> Refusal:
    """Return the refusal of an invalid item: INVALID_REQUEST with this message."""
    return Refusal(ErrorCode.INVALID_REQUEST, message)


UNAUTHORIZED: Final = Refusal(
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."
)
DISABLED: Final = Refusal(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
DISABLED_TO_DESCRIBE: Final = Refusal(
    ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker"
)
_CLUSTER_NAME_ONLY: Final = invalid(
    f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
)
_NO_NAME: Final = invalid("Invalid empty resource name")
_NO_HOST: Final = invalid("Host pattern cannot be null or empty")
_UNKNOWN_PATTERN: Final = invalid("Unknown patternFilter.")
_UNKNOWN_ENTRY: Final = invalid("Unknown entryFilter.")


def creation_refusal(acl: Acl) -> Refusal | None:
    """Return the refusal of an ACL that may not be created; None if it may.

    A host that is empty, or has a slash but is not a CIDR block, never applies. Since 4.4 Kafka
    refuses it, after all other checks.
    """
    if refusal := acl_refusal(acl):
        return refusal
    if not acl.host:
        return _NO_HOST
    if "/" in acl.host and acl_host_key(acl.host) is None:
        quoted = _quoted(acl.host)
        return invalid(f"Invalid CIDR notation '{quoted}': Could not parse [{quoted}]")
    return None


def acl_refusal(acl: Acl) -> Refusal | None:
    """Return the refusal of an invalid ACL; None if it is valid.

    An existing ACL may have any host, because Kafka before 4.4 accepted every host.
    """
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        return _CLUSTER_NAME_ONLY
    if not acl.name:
        return _NO_NAME
    if field := _invalid_field(acl):
        return invalid(f"Invalid {field}")
    if ":" not in acl.principal:
        return invalid(
            f"Could not parse principal from `{_quoted(acl.principal)}` (no colon is present"
            " separating the principal type from the principal name)"
        )
    return None


def _invalid_field(acl: Acl) -> str | None:
    """Return the first field whose value is unknown, or allowed in filters only."""
    if acl.resource_type <= ResourceType.ANY:
        return f"resourceType {acl.resource_type.name}"
    if acl.pattern_type < PatternType.LITERAL:
        return f"patternType {acl.pattern_type.name}"
    if acl.operation <= Operation.ANY:
        return f"operation {acl.operation.name}"
    if acl.permission <= Permission.ANY:
        return f"permissionType {acl.permission.name}"
    return None


def _quoted(text: str) -> str:
    return text if len(text) <= MAX_QUOTE else text[:MAX_QUOTE] + "..."


def filter_refusal(wanted: AclFilter) -> Refusal | None:
    """Return the refusal of an invalid filter; None if it is valid."""
    if ResourceType.UNKNOWN is wanted.resource_type or PatternType.UNKNOWN is wanted.pattern_type:
        return _UNKNOWN_PATTERN
    if Operation.UNKNOWN is wanted.operation or Permission.UNKNOWN is wanted.permission:
        return _UNKNOWN_ENTRY
    return None


def refused_scram_users(
    request: messages.DescribeUserScramCredentialsRequest,
) -> messages.DescribeUserScramCredentialsResponse:
    """Return the response to a client that may not Describe the cluster."""
    response = messages.DescribeUserScramCredentialsResponse
    # Kafka repeats the error for each user, without the user's name
    nameless = response.DescribeUserScramCredentialsResult(
        error_code=UNAUTHORIZED.code, error_message=None
    )
    results = (nameless,) * len(request.users or ())
    return response(error_code=UNAUTHORIZED.code, error_message=None, results=results)


def refused_scram_changes(
    request: messages.AlterUserScramCredentialsRequest,
) -> messages.AlterUserScramCredentialsResponse:
    """Return the response to a client that may not Alter the cluster."""
    response = messages.AlterUserScramCredentialsResponse
    names = dict.fromkeys(one.name for one in pausing(request.deletions))
    names |= dict.fromkeys(one.name for one in pausing(request.upsertions))
    results = (
        response.AlterUserScramCredentialsResult(
            user=name, error_code=UNAUTHORIZED.code, error_message=UNAUTHORIZED.message
        )
        for name in names
    )
    return response(results=tuple(results))
