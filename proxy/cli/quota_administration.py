"""Choice of what `reauth-proxy quotas` acts on: a running proxy, Kafka, or the store."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from proxy.cli.administration import Administrator, opened
from proxy.cli.common import printable
from proxy.quota.model import Default, EntityType, QuotaEntity, QuotaKey, Quotas
from proxy.quota.store import Changes

if TYPE_CHECKING:
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
    with opened(config, store, bootstrap, command_config) as way:
        yield _ThroughKafka(way) if isinstance(way, Administrator) else _ThroughStore(way)


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


class _ThroughKafka:
    def __init__(self, administrator: Administrator) -> None:
        self._client = administrator.client
        self._run = administrator.run

    def quotas(self, wanted: Sequence[QuotaEntity] | None = None) -> Quotas:
        from proxy.admin import ClientQuotaFilter
        from proxy.admin.quota_messages import known_quotas

        filters = None
        if wanted is not None:
            filters = [
                ClientQuotaFilter(user=one.user, client_id=one.client_id, ip=one.ip)
                for one in wanted
            ]
        quotas: dict[QuotaEntity, Mapping[QuotaKey, float]] = {}
        for found in self._run(self._client.describe_client_quotas(filters)).all().values():
            known, unknown = known_quotas(found)
            quotas |= known
            for one in unknown:
                typer.echo(f"reauth-proxy: left out: {printable(one)}", err=True)
        return quotas

    def alter(self, changes: Changes) -> None:
        by_name = {
            entity: {key.value: value for key, value in ops.items()}
            for entity, ops in changes.items()
        }
        self._run(self._client.alter_client_quotas(by_name)).all()
