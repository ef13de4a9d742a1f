"""The ACLs of a store, as what administers them sees them: read, written, and then in force."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, exactly
from proxy.store.interface import AclStore, StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class Acls:
    """What the APIs are about."""

    store: AclStore
    current: Callable[[], AclIndex]
    """Returns the ACLs as the store has them now, and has this process decide by them. Raises
    StoreError."""

    def create(self, acls: Sequence[Acl]) -> None:
        """Add those that are not there."""
        self.store.create_acls(acls)
        self._take_over()

    def delete(self, acls: Iterable[Acl]) -> None:
        """Remove those that are there."""
        self.store.delete_acls([exactly(acl) for acl in acls])
        self._take_over()

    def _take_over(self) -> None:
        # what is written is written: it will be in force when the store can be read again
        with suppress(StoreError):
            self.current()
