"""Import of a KRaft cluster's users, ACLs and quotas (`reauth-proxy users import`)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.acl.model import AclFilter, exactly
from proxy.cli.administration import Administration, Where, administration
from proxy.cli.common import Exit, fail, note
from proxy.cli.listing import Listing, Output, print_list
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.store.kraft import Metadata, read_metadata

if TYPE_CHECKING:
    from proxy.store import CredentialStore

__all__ = ("import_rest", "import_users", "print_summary", "read_metadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference between the cluster and the store before the import, in numbers of one kind."""

    kind: str
    new: int
    changed: int
    same: int
    gone: int
    """Number of those that are in the store and not in the cluster."""

    @classmethod
    def of(cls, kind: str, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> "Difference":
        """Compare values by key."""
        same = sum(key in before and before[key] == value for key, value in after.items())
        common = len(before.keys() & after.keys())
        return cls(
            kind=kind,
            new=len(after) - common,
            changed=common - same,
            same=same,
            gone=len(before) - common,
        )


def import_users(metadata: Metadata, users: "CredentialStore", *, remove: bool) -> Difference:
    """Import the SCRAM verifiers. Raises StoreError."""
    before, after = users.credential_snapshot().credentials, metadata.credentials
    changed = {key: one for key, one in after.items() if before.get(key) != one}
    gone = before.keys() - after.keys() if remove else frozenset()
    if changed or gone:
        users.alter_credentials(delete=gone, upsert=changed)
    return Difference.of("verifiers", before, after)


def import_rest(
    metadata: Metadata, config: Path | None, *, acls: bool, quotas: bool, remove: bool
) -> Iterator[Difference]:
    """Import ACLs and quotas into what the configuration names, by default the environment's."""
    with administration(Where(config=config)) as store:
        if acls:
            yield _import_acls(metadata, store, remove=remove)
        if quotas:
            yield _import_quotas(metadata, store, remove=remove)


def _import_acls(metadata: Metadata, store: Administration, *, remove: bool) -> Difference:
    before, after = frozenset(store.acls([AclFilter()])), metadata.acls()
    refusals = store.create_acls(sorted(after - before)) if after - before else {}
    if refused := [f"{acl}: {why}" for acl, why in refusals.items() if why is not None]:
        raise fail(f"{len(refused)} ACLs are refused, such as {refused[0]}", Exit.REFUSED)
    if remove and before - after:
        store.delete_acls([exactly(acl) for acl in sorted(before - after)])
    return Difference.of("ACLs", dict.fromkeys(before), dict.fromkeys(after))


def _import_quotas(metadata: Metadata, store: Administration, *, remove: bool) -> Difference:
    before, after = _by_key(store.quotas()), _by_key(metadata.quotas())
    changes: dict[QuotaEntity, dict[QuotaKey, float | None]] = {}
    for (entity, key), value in after.items():
        if before.get((entity, key)) != value:
            changes.setdefault(entity, {})[key] = value
    for entity, key in before.keys() - after.keys() if remove else ():
        changes.setdefault(entity, {})[key] = None
    if changes:
        store.alter_quotas(changes)
    return Difference.of("quotas", before, after)


def _by_key(
    quotas: Mapping[QuotaEntity, Mapping[QuotaKey, float]],
) -> dict[tuple[QuotaEntity, QuotaKey], float]:
    return {
        (entity, key): value for entity, limits in quotas.items() for key, value in limits.items()
    }


def print_summary(
    metadata: Metadata, rows: Sequence[Difference], output: Output, *, is_removed: bool
) -> None:
    """Print what was imported, and what was not."""
    gone = "Removed" if is_removed else "Only here, kept"
    listing: Listing[Difference] = Listing(
        items="differences",
        headings=("", "New", "Changed", "Same", gone),
        lines=lambda one: [
            (one.kind, *map(str, (one.new, one.changed, one.same, one.gone))),
        ],
        document=asdict,
        name=lambda one: one.kind,
    )
    print_list(listing, rows, output)
    if metadata.left_out:
        note(
            f"{metadata.left_out} users, ACLs and quotas of the cluster are invalid or unknown to"
            " this version, and left out"
        )
