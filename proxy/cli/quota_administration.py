"""Where `reauth-proxy quotas` goes: through a running proxy or Kafka, or to the store's file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from proxy.cli.administration import Run, connected, opened_store, refused_explained
from proxy.cli.common import explained
from proxy.quota.model import DEFAULT, Default, EntityType, QuotaEntity, QuotaKey, Quotas, key_of
from proxy.quota.store import Changes

if TYPE_CHECKING:
    from proxy.admin import AdminClient, ClientQuotaEntity
    from proxy.store import Store


class QuotaAdministration(Protocol):
    """What can be done to quotas, wherever they are. Raises ProxyError."""

    def quotas(self, wanted: Sequence[QuotaEntity] | None = None) -> Quotas:
        """Return every quota, or those that any of `wanted` finds.

        An entity finds what is set for all that it is made of, alone or with others: a user's
        quotas, and those of the user with a client id.
        """
        ...

    def alter(self, changes: Changes) -> None:
        """Set quotas and, with None, remove them."""
        ...


@contextmanager
def quota_administration(
    config: Path | None, store: Path | None, bootstrap: str | None, command_config: Path | None
) -> Iterator[QuotaAdministration]:
    """Yield the way that the options name; errors become one line and an exit status."""
    if command_config is not None and (config or store):
        raise typer.BadParameter("--command-config goes with --bootstrap-server")
    through_proxy = bootstrap is not None or command_config is not None
    if (config is not None) + (store is not None) + through_proxy != 1:
        raise typer.BadParameter("give one of --bootstrap-server, --config and --store")
    if through_proxy:
        with refused_explained(), connected(bootstrap, command_config) as (client, run):
            yield _ThroughProxy(client, run)
    else:
        with explained(config or Path(str(store))), opened_store(config, store) as opened:
            yield _ThroughStore(opened)


class _ThroughStore:
    def __init__(self, store: "Store") -> None:
        self._store = store

    def quotas(self, wanted: Sequence[QuotaEntity] | None = None) -> Quotas:
        quotas = self._store.quota_snapshot().quotas
        if wanted is None:
            return quotas
        asked = {one.parts() for one in wanted}
        return {
            entity: limits for entity, limits in quotas.items() if not asked.isdisjoint(_in(entity))
        }

    def alter(self, changes: Changes) -> None:
        self._store.alter_quotas(changes)


def _in(entity: QuotaEntity) -> Iterator[tuple[tuple[EntityType, str | Default], ...]]:
    """Yield the parts of each filter that finds an entity."""
    parts = entity.parts()
    for count in range(1, len(parts) + 1):
        yield from combinations(parts, count)


class _ThroughProxy:
    def __init__(self, client: "AdminClient", run: Run) -> None:
        self._client = client
        self._run = run

    def quotas(self, wanted: Sequence[QuotaEntity] | None = None) -> Quotas:
        from proxy.admin import ClientQuotaFilter

        filters = None
        if wanted is not None:
            filters = [
                ClientQuotaFilter(user=one.user, client_id=one.client_id, ip=one.ip)
                for one in wanted
            ]
        quotas: dict[QuotaEntity, dict[QuotaKey, float]] = {}
        for found in self._run(self._client.describe_client_quotas(filters)).all().values():
            for told, values in found.items():
                entity = _entity(told)
                known = ((key_of(entity, name), value) for name, value in values.items())
                quotas[entity] = {key: value for key, value in known if key is not None}
        return quotas

    def alter(self, changes: Changes) -> None:
        by_name = {
            entity: {key.value: value for key, value in ops.items()}
            for entity, ops in changes.items()
        }
        self._run(self._client.alter_client_quotas(by_name)).all()


def _entity(told: "ClientQuotaEntity") -> QuotaEntity:
    parts = {EntityType(kind): name for kind, name in told.entries}
    return QuotaEntity.of({kind: DEFAULT if name is None else name for kind, name in parts.items()})
