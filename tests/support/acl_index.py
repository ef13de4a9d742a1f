"""Model of Kafka's `StandardAuthorizer`, and ACL indexes to compare with it."""

import ipaddress
import sys
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType

# ACLs and indexes with defaults

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALL, READ, WRITE, DESCRIBE = Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALICE, ADDRESS = "User:alice", "10.0.0.1"


def acl(
    name: str = "orders",
    operation: Operation = READ,
    permission: Permission = ALLOW,
    *,
    resource_type: ResourceType = TOPIC,
    pattern_type: PatternType = LITERAL,
    principal: str = ALICE,
    host: str = "*",
) -> Acl:
    return Acl(resource_type, pattern_type, name, principal, host, operation, permission)


def index(*acls: Acl, everyone: bool = False, super_users: Sequence[str] = ()) -> AclIndex:
    return AclIndex(
        acls, allow_everyone_if_no_acl_found=everyone, super_users=frozenset(super_users), version=1
    )


def may(
    acls: AclIndex, operation: Operation = READ, name: str = "orders", host: str = ADDRESS
) -> bool:
    return acls.decide((ALICE,), host, operation, TOPIC, name).allowed


def calls(work: Callable[[], object]) -> int:
    """Count the function calls and returns of some work, including built-in functions."""
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


# Any ACLs, from a few values of each kind

NAMES = st.sampled_from(["*", "a", "ab", "abc", "abd", "b", "hardcode", "h", "a\0", "é"])
PRINCIPALS = st.sampled_from(
    ["User:a", "User:b", "User:*", "Group:*", *(f"Group:{name}" for name in "abcdefgh")]
)
HOSTS = st.sampled_from(
    ["*", "10.0.0.1", "::ffff:10.0.0.1", "10.0.0.0/8", "10.0.0.1/8", "0.0.0.0/0", "::1", "x"]
)
OPERATIONS = st.sampled_from([one for one in Operation if one >= ALL][:10])
ACLS = st.lists(
    st.builds(
        Acl,
        st.sampled_from([TOPIC, GROUP]),
        st.sampled_from([LITERAL, PREFIXED]),
        NAMES,
        PRINCIPALS,
        HOSTS,
        OPERATIONS,
        st.sampled_from([ALLOW, DENY]),
    ),
    max_size=40,
)

# The semantics of `StandardAuthorizer` as a plain loop over all ACLs.
#
# Slow and plain, so that it can be read side by side with Kafka's documentation; the index must
# answer alike

IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def permission(
    acls: Sequence[Acl],
    principal: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
) -> Permission | None:
    """Permission by the ACLs; None if no ACL matches."""
    mine = [one for one in _named(acls, resource_type, name) if concerns(one, principal, host)]
    denied = {one.operation for one in mine if one.permission is Permission.DENY}
    allowed = {one.operation for one in mine if one.permission is Permission.ALLOW}
    if denied & {operation, Operation.ALL}:
        return Permission.DENY
    if allowed & {operation, Operation.ALL, *IMPLIED.get(operation, ())}:
        return Permission.ALLOW
    return None


def decide(
    acls: Sequence[Acl],
    principals: Sequence[str],
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    *,
    open_by_default: bool = False,
) -> bool:
    """Judge each of a client's principals, then combine the decisions."""
    said = {permission(acls, one, host, operation, resource_type, name) for one in principals}
    if Permission.DENY in said:
        return False
    if Permission.ALLOW in said:
        return True
    return open_by_default and not _named(acls, resource_type, name)


def _named(acls: Sequence[Acl], resource_type: ResourceType, name: str) -> list[Acl]:
    return [one for one in acls if one.resource_type is resource_type and _names(one, name)]


def decide_any(
    acls: Sequence[Acl],
    principal: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    *,
    open_by_default: bool = False,
) -> bool:
    question = (host, operation, resource_type, "hardcode")
    if decide(acls, [principal], *question, open_by_default=open_by_default):
        return True
    mine = [
        one
        for one in acls
        if one.resource_type is resource_type
        and concerns(one, principal, host)
        and one.operation in (operation, Operation.ALL)
    ]
    denied = [one for one in mine if one.permission is Permission.DENY]
    return any(
        one.permission is Permission.ALLOW and not any(_covers(no, one) for no in denied)
        for one in mine
    ) and not any(_is_wildcard(no) for no in denied)


def concerns(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, "User:*") and (acl.host == "*" or _same(acl.host, host))


def _same(of_acl: str, of_client: str) -> bool:
    try:
        client = ipaddress.ip_address(of_client)
        mapped = getattr(client, "ipv4_mapped", None)
        return (mapped or client) in _network(of_acl)
    except ValueError:
        return False


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Network of an ACL; IPv4-mapped addresses and blocks are IPv4."""
    network = ipaddress.ip_network(text, strict=False)
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is None or network.prefixlen < 96:
        return network
    return ipaddress.ip_network(f"{mapped}/{network.prefixlen - 96}")


def _names(acl: Acl, name: str) -> bool:
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, "*")


def _is_wildcard(acl: Acl) -> bool:
    return acl.pattern_type is PatternType.LITERAL and acl.name == "*"


def _covers(wide: Acl, narrow: Acl) -> bool:
    if _is_wildcard(narrow):
        return _is_wildcard(wide)
    if wide.pattern_type is PatternType.PREFIXED:
        return narrow.name.startswith(wide.name)
    return narrow.pattern_type is PatternType.LITERAL and wide.name == narrow.name
