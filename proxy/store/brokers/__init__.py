"""Store whose ACLs and quotas the brokers keep: read from a mirror, written to both.

The mirror is a file on this host, which `follower` keeps up to date. SCRAM verifiers and the
deployment's secrets are only in the file: brokers never reveal theirs (KIP-554).
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from proxy.acl.model import Acl, AclFilter, exactly
from proxy.quota.model import Changes
from proxy.store.brokers.administration import Brokers
from proxy.store.interface import StoreError, StoreStart
from proxy.store.sqlite.mirror import SqliteMirror

log = logging.getLogger(__name__)


class BrokerStore(SqliteMirror):
    """Store whose ACLs and quotas the brokers keep, a `proxy.store.Store`.

    If brokers refuse a part of a change, the other part is mirrored.
    """

    def __init__(self, path: Path, brokers: Brokers, start: StoreStart | None = None) -> None:
        """`path` is the file of the mirror; with `start`, it must be the store of that start."""
        super().__init__(path, start)
        self._brokers = brokers

    def create_acls(self, acls: Collection[Acl]) -> int:
        """Add ACLs at the brokers and in the mirror. Raises StoreRefused."""
        done = self._brokers.create_acls(acls)
        with _logged():
            self.note_acls(done.at, done.items, created=True)
            super().create_acls(done.items)
        done.raise_refusal()
        return self.acl_version()

    def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[tuple[Acl, ...], ...]:
        """Delete the ACLs that any filter matches, at the brokers and in the mirror.

        Raises StoreRefused.
        """
        done = self._brokers.delete_acls(filters)
        deleted = dict.fromkeys(acl for found in done.items for acl in found)
        with _logged():
            self.note_acls(done.at, deleted, created=False)
            super().delete_acls([exactly(acl) for acl in deleted])
        done.raise_refusal()
        return tuple(done.items)

    def alter_quotas(self, changes: Changes) -> None:
        """Set and remove quotas at the brokers and in the mirror. Raises StoreRefused."""
        done = self._brokers.alter_quotas(changes)
        altered = {entity: changes[entity] for entity in done.items}
        with _logged():
            self.note_quotas(done.at, altered)
            super().alter_quotas(altered)
        done.raise_refusal()


@contextmanager
def _logged() -> Iterator[None]:
    """Log an error of the mirror: the brokers made the change, and the follower will find it."""
    try:
        yield
    except StoreError as error:
        log.warning("a change that the brokers made is not in the mirror yet: %s", error)
