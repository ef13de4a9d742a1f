"""Trial connections of a configuration: ports, brokers, signing keys, store.

It is part of `reauth-proxy config check --connect`, and changes nothing.
"""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from proxy.brokers.access import Access, open_access
from proxy.brokers.service_connection import fetch_broker, fetch_metadata
from proxy.config import Config, Routing
from proxy.config.values import Address
from proxy.errors import BrokerFault, ConfigError
from proxy.net.sockets import Claim, connect_privately
from proxy.net.tls_contexts import open_upstream_tls
from proxy.ops.status.text import plural
from proxy.worker.identity_services import KeyService, key_services

_SOCKET_S: Final = 5.0
"""Limit in seconds of the connection to the admin socket of a proxy that may run."""

Outcome = str | ConfigError
"""A sentence if it works, or the setting that does not."""


async def outcomes(config: Config) -> AsyncIterator[Outcome]:
    """Try each connection, and yield its outcome. `config` has no `problems_of_named`."""
    for outcome in _ports(config):
        yield outcome
    access = open_access(config.upstream, open_upstream_tls(config.upstream, time.time()))
    for index, address in enumerate(config.upstream.bootstrap_servers):
        key = f"upstream.bootstrap.servers[{index}]"
        async for outcome in _brokers(config, key, address, access):
            yield outcome
    for index, listener in enumerate(config.listeners):
        services = key_services(listener).values()
        for (key, _), keys in zip(listener.jwks_sources(), services, strict=True):
            yield await _keys(f"listeners[{index}].{key}", keys)
    yield await asyncio.to_thread(_store, config.store.path())


def _ports(config: Config) -> list[Outcome]:
    if _runs(config.admin_socket()):
        return ["the proxy is running, and uses its ports"]
    found: list[Outcome] = []
    addresses = [
        (f"listeners[{index}].address", one.address) for index, one in enumerate(config.listeners)
    ]
    if config.http.address is not None:
        addresses.append(("http.address", config.http.address))
    for key, address in addresses:
        with closing(Claim(address.host, address.port)) as claim:
            try:
                claim.take()
            except ConfigError as error:
                found.append(ConfigError(key, error.problem))
            else:
                found.append(f"{address} is free")
    return found


def _runs(socket: Path) -> bool:
    try:
        connect_privately(socket, _SOCKET_S).close()
    except OSError:
        return False
    return True


async def _brokers(
    config: Config, key: str, address: Address, access: Access
) -> AsyncIterator[Outcome]:
    try:
        if access.clients_log_in:
            await fetch_broker(address.host, address.port, access)
            yield f"broker {address} answers; clients log in to it themselves"
            return
        cluster = await fetch_metadata(address.host, address.port, access)
    except BrokerFault as fault:
        yield ConfigError(key, fault.reason)
        return
    login = "" if access.identity is None else ", and takes the proxy's login"
    has = plural(len(cluster.brokers), "broker")
    yield f"broker {address} answers{login}; the cluster has {has}"
    if any(one.routing is Routing.GATEWAY for one in config.listeners):
        for broker in cluster.brokers.values():
            try:
                await fetch_broker(broker.host, broker.port, access)
            except BrokerFault as fault:
                yield ConfigError(key, f"its cluster: {fault.reason}")


async def _keys(key: str, keys: KeyService) -> Outcome:
    await keys.refresh()
    if keys.cache.last_error is not None:
        return ConfigError(key, keys.cache.last_error)
    return f"{key} has {keys.cache.key_count} keys"


def _store(path: Path) -> Outcome:
    """Read all of the database without a lock: it may be in use, and nothing is left beside it."""
    if not path.exists():
        return f"{path} does not exist and will be created"
    try:
        uri = f"file:{quote(str(path))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            ((found,),) = database.execute("PRAGMA quick_check(1)")
    except sqlite3.Error as error:
        return ConfigError("store.url", f"{path}: {error}")
    if found != "ok":
        return ConfigError("store.url", f"{path}: {found}")
    return f"{path} can be read"
