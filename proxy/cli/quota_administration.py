"""Where `reauth-proxy quotas` goes: through a running proxy or Kafka, or to the store's file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from proxy.cli.administration import Run, connected, opened_store, refused_explained
from proxy.cli.common import explained
from proxy.quota.model import DEFAULT, EntityType, QuotaEntity, QuotaKey, Quotas, key_of
from proxy.quota.store import Changes

if TYPE_CHECKING:
    from proxy.admin import AdminClient
    from proxy.store import Store


class QuotaAdministration(Protocol):
    """What can be done to quotas, wherever they are. Raises ProxyError."""

    def quotas(self) -> Quotas:
        """Return every quota."""
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

    def quotas(self) -> Quotas:
        return self._store.quota_snapshot().quotas

    def alter(self, changes: Changes) -> None:
        self._store.alter_quotas(changes)


class _ThroughProxy:
    def __init__(self, client: "AdminClient", run: Run) -> None:
        self._client = client
        self._run = run

    def quotas(self) -> Quotas:
        found = self._run(self._client.describe_client_quotas()).entities()
        quotas: dict[QuotaEntity, dict[QuotaKey, float]] = {}
        for told, values in found.items():
            parts = {EntityType(kind): name for kind, name in told.entries}
            entity = QuotaEntity.of(
                {kind: DEFAULT if name is None else name for kind, name in parts.items()}
            )
            known = ((key_of(entity, name), value) for name, value in values.items())
            quotas[entity] = {key: value for key, value in known if key is not None}
        return quotas

    def alter(self, changes: Changes) -> None:
        by_name = {
            entity: {key.value: value for key, value in ops.items()}
            for entity, ops in changes.items()
        }
        self._run(self._client.alter_client_quotas(by_name)).all()
