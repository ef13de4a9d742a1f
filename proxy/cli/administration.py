"""Choice of what administration commands act on: a running proxy, Kafka, or the store."""

import sys
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from proxy.acl.model import Acl, AclFilter
from proxy.cli.common import Exit, explained, fail
from proxy.errors import ConfigError, ProxyError

if TYPE_CHECKING:
    from proxy.admin import AdminClient, ClientSettings
    from proxy.config.model import Upstream
    from proxy.store import Store

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The configuration file, which names the store."),
]
StoreOption = Annotated[
    Path | None, typer.Option("--store", metavar="FILE", help="The store's file itself.")
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        help="A running proxy, or Kafka: as any admin client does it.",
    ),
]
CommandConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="With --bootstrap-server: a Kafka client's properties file, with the login.",
    ),
]

T = TypeVar("T")


class AclAdministration(Protocol):
    """What can be done to ACLs, wherever they are. Raises ProxyError."""

    def matching(self, filters: Sequence[AclFilter]) -> Iterable[Acl]:
        """Return what the filters find, in any order, maybe more than once."""
        ...

    def create(self, acls: Sequence[Acl]) -> dict[Acl, str | None]:
        """Create ACLs; return why each could not be. None: it is there."""
        ...

    def delete(self, filters: Sequence[AclFilter]) -> Sequence[Acl]:
        """Delete what the filters find, and return it, each once."""
        ...


@dataclass(frozen=True, slots=True)
class Administrator:
    """A client of a running proxy, or of Kafka, and what runs its coroutines."""

    client: "AdminClient"
    run: "Run"


@contextmanager
def administration(
    config: Path | None, store: Path | None, bootstrap: str | None, command_config: Path | None
) -> Iterator[AclAdministration]:
    """Yield the way that the options name; errors become one line and an exit status."""
    with opened(config, store, bootstrap, command_config) as way:
        yield _ThroughKafka(way) if isinstance(way, Administrator) else _ThroughStore(way)


@contextmanager
def opened(
    config: Path | None, store: Path | None, bootstrap: str | None, command_config: Path | None
) -> "Iterator[Administrator | Store]":
    """Yield what the options name; errors become one line and an exit status."""
    if command_config is not None and (config or store):
        raise typer.BadParameter("--command-config goes with --bootstrap-server")
    through_proxy = bootstrap is not None or command_config is not None
    if (config is not None) + (store is not None) + through_proxy != 1:
        raise typer.BadParameter("give one of --bootstrap-server, --config and --store")
    if through_proxy:
        with refused_explained(), _connected(bootstrap, command_config) as administrator:
            yield administrator
    elif store is not None:
        with explained(store), _opened_file(store) as opened_file:
            yield opened_file
    elif config is not None:
        with explained(config), _configured(config) as way:
            yield way


@contextmanager
def _opened_file(file: Path) -> "Iterator[Store]":
    if not file.is_file():
        raise ConfigError("", "there is no such store")
    from proxy.config.model import socket_beside

    with _store(f"sqlite:{file}", socket_beside(file)) as store:
        yield store


@contextmanager
def _configured(file: Path) -> "Iterator[Administrator | Store]":
    from proxy.config import load

    settings = load(file)
    if settings.store.is_mirror:
        with _connected_to_brokers(settings.upstream) as administrator:
            yield administrator
    else:
        with _store(settings.store.url, settings.admin_socket()) as store:
            yield store


@contextmanager
def _store(url: str, socket: Path) -> "Iterator[Store]":
    from proxy.cli.store import opened_store

    with opened_store(url, socket) as store:
        if store.mirror() is not None:
            raise ConfigError(
                "", "the store is a copy of what brokers have: use --config, with broker:"
            )
        yield store


class _ThroughStore:
    def __init__(self, store: "Store") -> None:
        self._store = store

    def matching(self, filters: Sequence[AclFilter]) -> Iterable[Acl]:
        from proxy.acl.index import AclIndex
        from proxy.acl.search import find_each

        snapshot = self._store.acl_snapshot()
        index = AclIndex(snapshot.acls, version=snapshot.version)
        return chain.from_iterable(find_each(index, [*dict.fromkeys(filters)], most=sys.maxsize))

    def create(self, acls: Sequence[Acl]) -> dict[Acl, str | None]:
        from proxy.acl.validation import acl_refusal

        wrong = {acl: acl_refusal(acl) for acl in acls}
        self._store.create_acls([acl for acl, refusal in wrong.items() if refusal is None])
        return {acl: refusal.message if refusal else None for acl, refusal in wrong.items()}

    def delete(self, filters: Sequence[AclFilter]) -> Sequence[Acl]:
        found = self._store.delete_acls(filters)
        return tuple(dict.fromkeys(chain.from_iterable(found)))


@contextmanager
def _connected(bootstrap: str | None, command_config: Path | None) -> Iterator[Administrator]:
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
    with _running(client) as administrator:
        yield administrator


@contextmanager
def _connected_to_brokers(upstream: "Upstream") -> Iterator[Administrator]:
    from proxy.store.brokers.administration import administrator
    from proxy.tls.contexts import open_upstream_tls
    from proxy.upstream.access import open_access

    access = open_access(upstream, open_upstream_tls(upstream, time.time()))
    with _running(administrator(upstream, access)) as running:
        yield running


@contextmanager
def _running(client: "AdminClient") -> Iterator[Administrator]:
    import asyncio

    with asyncio.Runner() as runner:
        try:
            yield Administrator(client, runner.run)
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
    def __init__(self, administrator: Administrator) -> None:
        self._client = administrator.client
        self._run = administrator.run

    def matching(self, filters: Sequence[AclFilter]) -> Iterable[Acl]:
        return chain.from_iterable(self._run(self._client.describe_acls(filters)).all().values())

    def create(self, acls: Sequence[Acl]) -> dict[Acl, str | None]:
        result = self._run(self._client.create_acls(acls))
        return {acl: str(error) if error else None for acl, error in result.values().items()}

    def delete(self, filters: Sequence[AclFilter]) -> Sequence[Acl]:
        return self._run(self._client.delete_acls(filters)).all()


@contextmanager
def refused_explained() -> Iterator[None]:
    """Say why something could not be done, in one line, and end with the right status."""
    try:
        yield
    except ConfigError as error:
        raise fail(str(error), Exit.USAGE) from None
    except ProxyError as error:
        raise fail(str(error), Exit.REFUSED) from None
