"""Store of ACLs and quotas at the brokers: read from a mirror, written to both.

The mirror is a file of this host; `follower` keeps it up to date. SCRAM verifiers and the
deployment's secrets are the file's own: brokers reveal theirs to nobody (KIP-554).
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from proxy.acl.model import Acl, AclFilter, exactly
from proxy.quota.store import Changes
from proxy.store.brokers.administration import Brokers
from proxy.store.interface import Begun, StoreError
from proxy.store.sqlite.mirror import SqliteMirror

log = logging.getLogger(__name__)


class BrokerStore(SqliteMirror):
    """Store whose ACLs and quotas brokers keep, a `proxy.store.Store`.

    The part of a refused request that the brokers carried out is mirrored.
    """

    def __init__(self, path: Path, brokers: Brokers, begun: Begun | None = None) -> None:
        """`path`: the mirror; `begun`: the start whose mirror it must be."""
        super().__init__(path, begun)
        self._brokers = brokers

    def create_acls(self, acls: Collection[Acl]) -> int:
        """Have the brokers add ACLs. Raises StoreRefused."""
        done = self._brokers.create_acls(acls)
        with _done_despite_failure():
            self.note_acls(done.at, done.items, created=True)
            super().create_acls(done.items)
        done.raise_refusal()
        return self.acl_version()

    def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[tuple[Acl, ...], ...]:
        """Have the brokers delete what any filter matches. Raises StoreRefused."""
        done = self._brokers.delete_acls(filters)
        gone = dict.fromkeys(acl for found in done.items for acl in found)
        with _done_despite_failure():
            self.note_acls(done.at, gone, created=False)
            super().delete_acls([exactly(acl) for acl in gone])
        done.raise_refusal()
        return tuple(done.items)

    def alter_quotas(self, changes: Changes) -> None:
        """Have the brokers set and remove. Raises StoreRefused."""
        done = self._brokers.alter_quotas(changes)
        altered = {entity: changes[entity] for entity in done.items}
        with _done_despite_failure():
            self.note_quotas(done.at, altered)
            super().alter_quotas(altered)
        done.raise_refusal()


@contextmanager
def _done_despite_failure() -> Iterator[None]:
    """Hide an error: what the brokers did is done, and the follower will find it."""
    try:
        yield
    except StoreError as error:
        log.warning("a change that the brokers have made is not in the mirror yet: %s", error)
