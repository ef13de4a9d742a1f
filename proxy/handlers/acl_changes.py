"""Administration of a store's ACLs: read, write, and put in force."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.acl.model import Acl, exactly
from proxy.acl.validation import Refusal
from proxy.store.interface import AclStore, StoreError, refusal_of

if TYPE_CHECKING:
    from proxy.acl.index import AclIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Acls:
    """Access to the ACLs of the store."""

    store: AclStore
    current: "Callable[[], AclIndex]"
    """Reads the ACLs from the store, puts them in force in this process, and returns them. Raises
    StoreError."""

    def create(self, acls: Sequence[Acl]) -> Refusal | None:
        """Add the ACLs that are missing. Return the reason if not all exist now, else None."""
        return self._change(lambda: self.store.create_acls(acls))

    def delete(self, acls: Iterable[Acl]) -> Refusal | None:
        """Remove the ACLs that exist. Return the reason if some remain, else None."""
        return self._change(lambda: self.store.delete_acls([exactly(acl) for acl in acls]))

    def _change(self, change: Callable[[], object]) -> Refusal | None:
        refusal = None
        try:
            change()
        except StoreError as problem:
            refusal = Refusal(*refusal_of(problem))
        # The change is stored: it takes effect when the store can be read again
        with suppress(StoreError):
            self.current()
        return refusal
