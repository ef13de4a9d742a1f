"""Administration of a store's ACLs: read, write, and put in force."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, exactly
from proxy.acl.validation import Refusal
from proxy.store.interface import AclStore, StoreError, refusal_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Acls:
    """What the APIs are about."""

    store: AclStore
    current: Callable[[], AclIndex]
    """Returns the ACLs as the store has them now, and has this process decide by them. Raises
    StoreError."""

    def create(self, acls: Sequence[Acl]) -> Refusal | None:
        """Add those that are not there. Return why not all are there now; None: they are."""
        return self._change(lambda: self.store.create_acls(acls))

    def delete(self, acls: Iterable[Acl]) -> Refusal | None:
        """Remove those that are there. Return why not all are gone; None: they are."""
        return self._change(lambda: self.store.delete_acls([exactly(acl) for acl in acls]))

    def _change(self, change: Callable[[], object]) -> Refusal | None:
        refusal = None
        try:
            change()
        except StoreError as problem:
            refusal = Refusal(*refusal_of(problem))
        # what is written is written: it will be in force when the store can be read again
        with suppress(StoreError):
            self.current()
        return refusal
