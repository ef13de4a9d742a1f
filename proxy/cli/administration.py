"""Choice of what administration commands act on: a running proxy, Kafka, or the store."""

import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from proxy.acl.model import Acl, AclFilter
from proxy.cli.common import Exit, explained, fail, printable
from proxy.errors import ConfigError, ProxyError
from proxy.quota.model import Default, EntityType, QuotaEntity, QuotaKey, Quotas
from proxy.quota.store import Changes

if TYPE_CHECKING:
    from proxy.admin import AdminClient, ClientSettings
    from proxy.config.model import Upstream
    from proxy.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The options that say what to act on."""

    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT[,...]",
            help="A running proxy, or Kafka: as any admin client does it.",
        ),
    ] = None
    command_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --bootstrap-server: a Kafka client's properties file, with the login.",
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The configuration file, which names the store."),
    ] = None
    store: Annotated[Path | None, typer.Option(metavar="FILE", help="The store's file itself.")] = (
        None
    )


class Administration(Protocol):
    """Administration of ACLs and quotas, wherever they are. Raises ProxyError."""

    def acls(self, filters: Sequence[AclFilter]) -> Iterable[Acl]:
        """Return what the filters find, in any order, maybe more than once."""
        ...

    def create_acls(self, acls: Sequence[Acl]) -> dict[Acl, str | None]:
        """Create ACLs; return why each could not be. None: it is there."""
        ...

    def delete_acls(self, filters: Sequence[AclFilter]) -> Sequence[Acl]:
        """Delete what the filters find, and return it, each once."""
        ...

    def quotas(self, wanted: Sequence[QuotaEntity] | None = None) -> Quotas:
        """Return every quota, or those that any of `wanted` finds.

        An entity finds what is set for all that it is made of, alone or with others: a user's
        quotas, and those of the user with a client id.
        """
        ...

    def alter_quotas(self, changes: Changes) -> None:
        """Set quotas and, with None, remove them."""
        ...


@contextmanager
def administration(where: Where) -> Iterator[Administration]:
    """Yield the way that the options name; errors become one line and an exit status."""
    config, store, bootstrap = where.config, where.store, where.bootstrap_server
    if where.command_config is not None and (config or store):
        raise typer.BadParameter("--command-config goes with --bootstrap-server")
    through_proxy = bootstrap is not None or where.command_config is not None
    if (config is not None) + (store is not None) + through_proxy != 1:
        raise typer.BadParameter("give one of --bootstrap-server, --config and --store")
    if through_proxy:
        with refused_explained(), _connected(bootstrap, where.command_config) as way:
            yield way
    elif store is not None:
        with explained(store), _opened_file(store) as way:
            yield way
    elif config is not None:
        with explained(config), _configured(config) as way:
            yield way


@contextmanager
def _opened_file(file: Path) -> Iterator[Administration]:
    if not file.is_file():
        raise ConfigError("", "there is no such store")
    from proxy.config.model import socket_beside

    with _store(f"sqlite:{file}", socket_beside(file)) as way:
        yield way


@contextmanager
def _configured(file: Path) -> Iterator[Administration]:
    from proxy.config import load

    settings = load(file)
    if settings.store.is_mirror:
        with _connected_to_brokers(settings.upstream) as way:
            yield way
    else:
        with _store(settings.store.url, settings.admin_socket()) as way:
            yield way


@contextmanager
def _store(url: str, socket: Path) -> Iterator[Administration]:
    from proxy.cli.store import opened_store

    with opened_store(url, socket) as store:
        if store.mirror() is not None:
            raise ConfigError(
                "", "the store is a copy of what brokers have: use --config, with broker:"
            )
        yield _ThroughStore(store)


class _ThroughStore:
    def __init__(self, store: "Store") -> None:
        self._store = store

    def acls(self, filters: Sequence[AclFilter]) -> Iterable[Acl]:
        from proxy.acl.index import AclIndex

        snapshot = self._store.acl_snapshot()
        index = AclIndex(snapshot.acls, version=snapshot.version)
        return chain.from_iterable(map(index.matching, dict.fromkeys(filters)))

    def create_acls(self, acls: Sequence[Acl]) -> dict[Acl, str | None]:
        from proxy.acl.validation import acl_refusal

        wrong = {acl: acl_refusal(acl) for acl in acls}
        self._store.create_acls([acl for acl, refusal in wrong.items() if refusal is None])
        return {acl: refusal.message if refusal else None for acl, refusal in wrong.items()}

    def delete_acls(self, filters: Sequence[AclFilter]) -> Sequence[Acl]:
        found = self._store.delete_acls(filters)
        return tuple(dict.fromkeys(chain.from_iterable(found)))

    def quotas(self, wanted: Sequence[QuotaEntity] | None = None) -> Quotas:
        quotas = self._store.quota_snapshot().quotas
        if wanted is None:
            return quotas
        asked = {one.parts() for one in wanted}
        return {
            entity: limits for entity, limits in quotas.items() if not asked.isdisjoint(_in(entity))
        }

    def alter_quotas(self, changes: Changes) -> None:
        self._store.alter_quotas(changes)


def _in(entity: QuotaEntity) -> Iterator[tuple[tuple[EntityType, str | Default], ...]]:
    """Yield the parts of each filter that finds an entity."""
    parts = entity.parts()
    for count in range(1, len(parts) + 1):
        yield from combinations(parts, count)


@contextmanager
def _connected(bootstrap: str | None, command_config: Path | None) -> Iterator[Administration]:
    from proxy.admin import AdminClient, ClientSettings
    from proxy.admin.client import REQUEST_TIMEOUT_S

    settings = ClientSettings() if command_config is None else _settings(command_config)
    servers = bootstrap or settings.bootstrap_servers
    if servers is None:
        raise typer.BadParameter("give --bootstrap-server")
    client = AdminClient(
        servers,
        login=settings.login,
        ssl_context=settings.ssl_context,
        client_id=settings.client_id or "reauth-proxy-admin",
        request_timeout_s=settings.request_timeout_s or REQUEST_TIMEOUT_S,
    )
    with _running(client) as way:
        yield way


@contextmanager
def _connected_to_brokers(upstream: "Upstream") -> Iterator[Administration]:
    from proxy.store.brokers.administration import administrator
    from proxy.tls.contexts import open_upstream_tls
    from proxy.upstream.access import open_access

    access = open_access(upstream, open_upstream_tls(upstream, time.time()))
    with _running(administrator(upstream, access)) as way:
        yield way


@contextmanager
def _running(client: "AdminClient") -> Iterator[Administration]:
    import asyncio

    with asyncio.Runner() as runner:
        try:
            yield _ThroughKafka(client, runner.run)
        finally:
            runner.run(client.close())


def _settings(file: Path) -> "ClientSettings":
    from proxy.admin import read_client_properties

    try:
        return read_client_properties(file)
    except ConfigError as error:
        raise fail(f"{file}: {error}", Exit.USAGE) from None


class Run(Protocol):
    """Runs a coroutine to its end."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T:
        """Return what it returns."""
        ...


class _ThroughKafka:
    def __init__(self, client: "AdminClient", run: "Run") -> None:
        self._client = client
        self._run = run

    def acls(self, filters: Sequence[AclFilter]) -> Iterable[Acl]:
        return chain.from_iterable(self._run(self._client.describe_acls(filters)).all().values())

    def create_acls(self, acls: Sequence[Acl]) -> dict[Acl, str | None]:
        result = self._run(self._client.create_acls(acls))
        return {acl: str(error) if error else None for acl, error in result.values().items()}

    def delete_acls(self, filters: Sequence[AclFilter]) -> Sequence[Acl]:
        return self._run(self._client.delete_acls(filters)).all()

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

    def alter_quotas(self, changes: Changes) -> None:
        by_name = {
            entity: {key.value: value for key, value in ops.items()}
            for entity, ops in changes.items()
        }
        self._run(self._client.alter_client_quotas(by_name)).all()


@contextmanager
def refused_explained() -> Iterator[None]:
    """Say why something could not be done, in one line, and end with the right status."""
    try:
        yield
    except ConfigError as error:
        raise fail(str(error), Exit.USAGE) from None
    except ProxyError as error:
        raise fail(str(error), Exit.REFUSED) from None
