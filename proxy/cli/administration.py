"""Target of administration commands: a running proxy, Kafka, or the store."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol

import typer

from proxy.acl.model import Acl, AclFilter
from proxy.cli.common import (
    CONFIG_VARIABLE,
    DefaultConfigOption,
    config_by_default,
    config_in,
    explained,
    note,
    option,
)
from proxy.errors import ConfigError
from proxy.quota.model import Changes, Default, EntityType, QuotaEntity, QuotaKey, Quotas

if TYPE_CHECKING:
    import asyncio

    from proxy.admin import AdminClient
    from proxy.config.model import Config, Upstream
    from proxy.store import Store
    from proxy.store.interface import StoreInUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Options for the target of a command."""

    bootstrap_server: Annotated[
        str | None, option("HOST:PORT[,...]", "A running proxy, or Kafka.")
    ] = None
    command_config: Annotated[
        Path | None,
        option(
            "FILE", "With --bootstrap-server: a Kafka client's properties file, with the login."
        ),
    ] = None
    config: DefaultConfigOption = None
    store: Annotated[Path | None, option("FILE", "The store's file itself.")] = None

    @property
    def through_proxy(self) -> bool:
        """True if the target is a running proxy, or Kafka."""
        return self.bootstrap_server is not None or self.command_config is not None

    def configuration(self) -> Path | None:
        """Return the configuration file; None if another option is in its place."""
        if self.config is not None or self.store is not None or self.through_proxy:
            return self.config
        return config_by_default()

    def settings(self) -> "Config | None":
        """Return the configuration; None if it is not known. Raises Exit."""
        file = self.configuration()
        return None if file is None else config_in(file)


_LIMITED_EFFECT: Final = {
    ("authorizer", "off"): "ACLs are kept, but they have no effect",
    ("authorizer", "audit"): "denials are recorded, but not enforced",
    ("quotas", "off"): "quotas are kept, but they have no effect",
    ("quotas", "audit"): "throttling is recorded, but not enforced",
}


def mode_in_effect(where: Where, section: Literal["authorizer", "quotas"]) -> str | None:
    """Return the mode of ACLs or quotas, with a note if it is not `enforce`; None if not known."""
    settings = where.settings()
    if settings is None:
        return None
    mode = str((settings.authorizer if section == "authorizer" else settings.quotas).mode)
    if effect := _LIMITED_EFFECT.get((section, mode)):
        note(f"{section}.mode is {mode}: {effect}")
    return mode


class Administration(Protocol):
    """Administration of ACLs and quotas, wherever they are. Raises ProxyError."""

    def acls(self, filters: Sequence[AclFilter]) -> Iterable[Acl]:
        """Return the matching ACLs in any order, possibly more than once."""

    def create_acls(self, acls: Sequence[Acl]) -> dict[Acl, str | None]:
        """Create ACLs; return the reason for which each could not be created, None if it exists
        now."""

    def delete_acls(self, filters: Sequence[AclFilter]) -> Sequence[Acl]:
        """Delete the ACLs that the filters find; return them, each once."""

    def quotas(self, wanted: Sequence[QuotaEntity] | None = None) -> Quotas:
        """Return every quota, or those that any of `wanted` finds.

        An entity finds the quotas of all entities that contain its parts: a user finds those of
        the user, and those of the user with a client id.
        """

    def alter_quotas(self, changes: Changes) -> None:
        """Set quotas; None as a value removes a quota."""


@contextmanager
def administration(where: Where) -> Iterator[Administration]:
    """Yield the administration of the target; errors become one line and an exit status."""
    config, store, bootstrap = where.configuration(), where.store, where.bootstrap_server
    if where.command_config is not None and (config or store):
        raise typer.BadParameter("--command-config needs --bootstrap-server")
    if (config is not None) + (store is not None) + where.through_proxy != 1:
        raise typer.BadParameter(
            f"give one of --bootstrap-server, --config and --store, or set {CONFIG_VARIABLE}"
        )
    target = partial(_connected, bootstrap, where.command_config)
    if store is not None:
        target = partial(_opened_file, store)
    elif config is not None:
        target = partial(_configured, config)
    with explained(store or config), target() as found:
        yield found


def _opened_file(file: Path) -> AbstractContextManager[Administration]:
    if not file.is_file():
        raise ConfigError("", "there is no such store")
    from proxy.config.model import socket_beside

    return _store(f"sqlite:{file}", socket_beside(file))


def _configured(file: Path) -> AbstractContextManager[Administration]:
    from proxy.config import load

    settings = load(file)
    if settings.store.at_brokers:
        return _connected_to_brokers(settings.upstream)
    return _store(settings.store.url, settings.admin_socket())


@contextmanager
def _store(url: str, socket: Path) -> Iterator[Administration]:
    with opened_store(url, socket) as store:
        if store.mirror() is not None:
            raise ConfigError(
                "", "the store is a copy of the brokers' data: use --config, with broker:"
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
        from proxy.acl.validation import creation_refusal

        refusals = {acl: creation_refusal(acl) for acl in acls}
        self._store.create_acls([acl for acl, refusal in refusals.items() if refusal is None])
        return {acl: refusal.message if refusal else None for acl, refusal in refusals.items()}

    def delete_acls(self, filters: Sequence[AclFilter]) -> Sequence[Acl]:
        found = self._store.delete_acls(filters)
        return tuple(dict.fromkeys(chain.from_iterable(found)))

    def quotas(self, wanted: Sequence[QuotaEntity] | None = None) -> Quotas:
        quotas = self._store.quota_snapshot().quotas
        if wanted is None:
            return quotas
        filters = {one.parts() for one in wanted}
        return {
            entity: limits
            for entity, limits in quotas.items()
            if not filters.isdisjoint(_filters_that_find(entity))
        }

    def alter_quotas(self, changes: Changes) -> None:
        self._store.alter_quotas(changes)


def _filters_that_find(
    entity: QuotaEntity,
) -> Iterator[tuple[tuple[EntityType, str | Default], ...]]:
    """Yield the parts of each filter that finds an entity: all combinations of its own."""
    parts = entity.parts()
    for count in range(1, len(parts) + 1):
        yield from combinations(parts, count)


def _connected(
    bootstrap: str | None, command_config: Path | None
) -> AbstractContextManager[Administration]:
    from proxy.admin import AdminClient, ClientSettings, read_client_properties
    from proxy.admin.client import REQUEST_TIMEOUT_S

    settings = ClientSettings()
    if command_config is not None:
        with explained(command_config):
            settings = read_client_properties(command_config)
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
    return _running(client)


def _connected_to_brokers(upstream: "Upstream") -> AbstractContextManager[Administration]:
    from proxy.brokers.access import open_access
    from proxy.net.tls_contexts import open_upstream_tls
    from proxy.store.brokers import administrator

    access = open_access(upstream, open_upstream_tls(upstream, time.time()))
    return _running(administrator(upstream, access))


@contextmanager
def _running(client: "AdminClient") -> Iterator[Administration]:
    import asyncio

    with asyncio.Runner() as runner:
        try:
            yield _ThroughKafka(client, runner)
        finally:
            runner.run(client.close())


class _ThroughKafka:
    def __init__(self, client: "AdminClient", runner: "asyncio.Runner") -> None:
        self._client = client
        self._run = runner.run

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
                note(f"unknown, not listed: {one}")
        return quotas

    def alter_quotas(self, changes: Changes) -> None:
        self._run(self._client.alter_client_quotas(changes)).all()


QUERY_TIMEOUT_S: Final = 5.0
"""Limit in seconds of the query to a proxy for the store that it reads."""


@contextmanager
def opened_store(url: str, socket: Path) -> Iterator["Store"]:
    """Yield the store, creating it if it is missing.

    `socket` is the admin socket of the proxy that may use it. Raises StoreError if that proxy reads
    another store: changes of this one would have no effect.
    """
    from proxy.store import open_store

    if (in_use := _in_use(socket)) is not None:
        in_use.refuse_others(Path(url.partition(":")[2]))
    with closing(open_store(url)) as store:
        yield store


def _in_use(socket: Path) -> "StoreInUse | None":
    """Return the store that the running proxy reads; None if none runs, or it does not answer."""
    from proxy.net.sockets import ask_privately
    from proxy.store.interface import StoreInUse

    try:
        answer = ask_privately(socket, {"kind": "store"}, QUERY_TIMEOUT_S)
        return StoreInUse.read(answer.get("store"))
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except (OSError, ValueError):
        note(f"{socket}: the proxy does not answer which store it reads")
        return None
