"""ACLs for tests, and where they lie."""

from collections.abc import Collection, Sequence

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.handlers.acl_changes import Acls
from proxy.store import AclChanges, AclSnapshot


class Shelf:
    """A store in memory that counts its transactions."""

    def __init__(self, *acls: Acl) -> None:
        self.acls = set(acls)
        self.transactions = 0

    def acl_version(self) -> int:
        return self.transactions

    def acl_snapshot(self) -> AclSnapshot:
        return AclSnapshot(version=self.transactions, acls=sorted(self.acls))

    def acl_changes(self, since: int) -> AclChanges | None:  # noqa: ARG002 - keeps no log
        return None

    def create_acls(self, acls: Collection[Acl]) -> int:
        self.transactions += 1
        self.acls |= set(acls)
        return self.transactions

    def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[tuple[Acl, ...], ...]:
        self.transactions += 1
        # looked up by their texts: ten thousand filters times ten thousand ACLs take minutes
        by_name: dict[str, list[Acl]] = {}
        for one in sorted(self.acls):
            by_name.setdefault(one.name, []).append(one)
        found = tuple(
            tuple(one for one in by_name.get(wanted.name or "", ()) if wanted.matches(one))
            for wanted in filters
        )
        self.acls.difference_update(*found)
        return found

    def administered(self) -> Acls:
        return Acls(store=self, current=lambda: AclIndex(self.acls, version=self.transactions))


def acl(
    name: str = "t",
    principal: str = "User:alice",
    *,
    host: str = "*",
    pattern_type: PatternType = PatternType.LITERAL,
    resource_type: ResourceType = ResourceType.TOPIC,
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(resource_type, pattern_type, name, principal, host, operation, permission)
