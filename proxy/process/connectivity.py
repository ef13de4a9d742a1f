"""Trial connections of a configuration: ports, brokers, logins, signing keys, store.

It is part of `reauth-proxy config check --connect`, and changes nothing.
"""

import asyncio
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from shlex import quote as quote_for_shell
from typing import Final
from urllib.parse import quote

from metrics.report.formats import count
from proxy.admin.properties import Login
from proxy.brokers.access import Access, open_access, token_source
from proxy.brokers.client_identity import ClientLogins
from proxy.brokers.delegation_tokens import TokenDenied
from proxy.brokers.gateway import BrokerTable, Gateway
from proxy.brokers.service_connection import fetch_broker, fetch_metadata
from proxy.brokers.token_source import RenewedTokens, TokenUnavailable
from proxy.config import Config, Listener, PortRange, Routing, Upstream
from proxy.config.values import Address
from proxy.errors import BrokerFault, ConfigError, LoginRefused
from proxy.net.ports import named_ports
from proxy.net.sockets import Claim, connect_privately, numeric_host
from proxy.net.tls_contexts import open_listener_tls, open_upstream_tls
from proxy.process.cluster_probe import Spoken, logged_in, recognize
from proxy.process.start import without_users
from proxy.store.users_file import Users
from proxy.wire.metadata import ClusterView
from proxy.worker.directory import Directory
from proxy.worker.identity_services import KeyService, key_services
from sasl.identity import Identity
from sasl.login import LoginError
from sasl.session import Session
from sasl.untrusted import fit_for_log

_SOCKET_S: Final = 5.0
"""Limit in seconds of the connection to the admin socket of a proxy that may run."""
_OUTGOING_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MAX_PORTS_NAMED: Final = 10
"""Largest number of occupied ports that are listed for one setting."""


class Doubt(str):
    """A sentence about something that may fail later, or for some clients."""


Outcome = str | ConfigError
"""A sentence if it works, a `Doubt`, or the setting that does not work."""


async def outcomes(
    config: Config, login: Login | None = None, principal: str | None = None
) -> AsyncIterator[Outcome]:
    """Try each connection, and yield its outcome. `config` has no `problems_of_named`.

    `login` is a client's, to be tried at brokers that authenticate clients; None to try none.
    `principal` is the client's whose login the proxy tries where `upstream.identity` is set.
    """
    here = (_ports, _outgoing_ports, _certificates, _store)
    for outcome in (one for check in here for one in check(config)):
        yield outcome
    for index, listener in enumerate(config.listeners):
        if (host := listener.advertised_host) is not None:
            yield await _advertised(f"listeners[{index}].advertised.host", host)
    access = open_access(config.upstream, open_upstream_tls(config.upstream, time.time()))
    if config.upstream.sasl_login_provider is not None:
        yield await _provider(config.upstream)
    for index, address in enumerate(config.upstream.bootstrap_servers):
        key = f"upstream.bootstrap.servers[{index}]"
        async for outcome in _brokers(config, key, address, access, login):
            yield outcome
    async for outcome in _as_client(config, access, principal):
        yield outcome
    for index, listener in enumerate(config.listeners):
        async for outcome in _identity_services(f"listeners[{index}]", listener):
            yield outcome


def _ports(config: Config) -> Iterator[Outcome]:
    try:
        connect_privately(config.admin_socket(), _SOCKET_S).close()
    except OSError:
        pass  # it does not run
    else:
        yield "the proxy is running, and uses its ports"
        return
    for key, host, ports in named_ports(config):
        # a range from n to -1 is any free port
        taken = [*_taken(host, ports if ports.last > 0 else (ports.first,))]
        for problem in taken[:_MAX_PORTS_NAMED]:
            yield ConfigError(key, problem)
        if len(taken) > _MAX_PORTS_NAMED:
            yield ConfigError(key, f"{len(taken) - _MAX_PORTS_NAMED} more of its ports are taken")
        if not taken:
            yield f"{_shown(host, ports)} is free"


def _taken(host: str, ports: Iterable[int]) -> Iterator[str]:
    for port in ports:
        with closing(Claim(host, port)) as claim:
            try:
                claim.take()
            except ConfigError as error:
                yield error.problem


def _shown(host: str, ports: PortRange) -> str:
    more = f"-{ports.last}" if ports.last > ports.first else ""
    return f"{Address(host, ports.first)}{more}"


def _outgoing_ports(config: Config) -> Iterator[Outcome]:
    """Doubt ports that the kernel may give to a connection of any program before a start."""
    try:
        low, high = map(int, _OUTGOING_PORTS.read_text().split())
    except (OSError, ValueError):
        return
    for key, host, ports in named_ports(config):
        if ports.first <= high and ports.last >= low:
            yield Doubt(
                f"{key}: {_shown(host, ports)} is in the range of outgoing connections,"
                f" {low}-{high} (net.ipv4.ip_local_port_range): one of them may be in use at a"
                " start; use ports below"
            )


def _certificates(config: Config) -> Iterator[Outcome]:
    for index, listener in enumerate(config.listeners):
        if listener.tls:
            expiry = open_listener_tls(index, listener, time.time()).expires_at
            yield f"listener {listener.name}: its certificate is valid until {_day(expiry or 0)}"


def _day(unix_time: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(unix_time))


async def _advertised(key: str, host: str) -> Outcome:
    try:
        found = await asyncio.to_thread(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        return ConfigError(key, f"{host} cannot be looked up here: {problem}")
    addresses = sorted({str(one[4][0]) for one in found})
    if any(map(_is_local, addresses)):
        return f"{key}: {host} is this machine"
    return Doubt(
        f"{key}: {host} is {', '.join(addresses)}, not an address of this machine: clients reach"
        " the proxy there only through a load balancer or NAT"
    )


def _is_local(address: str) -> bool:
    try:
        numeric_host(address.partition("%")[0])
    except OSError:
        return False
    return True


async def _brokers(
    config: Config, key: str, address: Address, access: Access, login: Login | None
) -> AsyncIterator[Outcome]:
    try:
        spoken = await recognize(address, access)
        if (problem := _wrong_protocol(config, address, spoken)) is not None:
            yield problem
            return
        cluster, answered = await _answered(address, access, login)
    except BrokerFault as fault:
        yield ConfigError(key, fault.reason)
        return
    except ConfigError as error:
        yield error
        return
    offered = spoken.mechanisms or ()
    if spoken.certificate is not None:
        yield f"broker {address}: its certificate is valid until {_end(spoken.certificate)}"
    yield f"{answered}; it offers {', '.join(offered)}" if offered else answered
    for outcome in _mechanisms(config, offered):
        yield outcome
    if cluster is not None:
        async for outcome in _reached(config, key, cluster, access):
            yield outcome


async def _answered(
    address: Address, access: Access, login: Login | None
) -> tuple[ClusterView | None, str]:
    """Return the cluster, None if it is not known without a login, and a sentence about the
    broker. Raises BrokerFault, and ConfigError if the broker refuses the client's login."""
    if login is None and access.clients_log_in:
        await fetch_broker(address.host, address.port, access)
        return None, f"broker {address} answers; clients log in to it themselves"
    taken = ""
    if login is not None:
        try:
            cluster = await logged_in(address, access, login)
        except LoginRefused as refused:
            raise ConfigError("--command-config", refused.reason) from None
        taken += ", and takes the client's login"
    if not access.clients_log_in:
        cluster = await fetch_metadata(address.host, address.port, access)
        taken += "" if access.identity is None else ", and takes the proxy's login"
    has = count(len(cluster.brokers), "broker")
    return cluster, f"broker {address} answers{taken}; the cluster has {has}"


async def _reached(
    config: Config, key: str, cluster: ClusterView, access: Access
) -> AsyncIterator[Outcome]:
    """Yield the problems of a gateway with the brokers of its cluster."""
    for index, listener in enumerate(config.listeners):
        if (misfit := _misfit(listener, cluster)) is not None:
            yield ConfigError(f"listeners[{index}].broker.ports", misfit)
    if any(one.routing is Routing.GATEWAY for one in config.listeners):
        for broker in cluster.brokers.values():
            try:
                await fetch_broker(broker.host, broker.port, access)
            except BrokerFault as fault:
                yield ConfigError(key, f"its cluster: {fault.reason}")


def _wrong_protocol(config: Config, address: Address, spoken: Spoken) -> ConfigError | None:
    """Return the problem of a listener that speaks something else; None if it matches.

    A broker that does not offer SaslHandshake may be right with and without SASL.
    """
    meant = config.upstream.security_protocol
    matches = meant is spoken.protocol
    if spoken.mechanisms is None:
        matches = config.upstream.tls == (spoken.certificate is not None)
    if matches:
        return None
    remedy = f"set {spoken.protocol}"
    if not spoken.mechanisms and any(one.relays_logins for one in config.listeners):
        remedy = "name a port with SASL, or set sasl.termination: proxy"
    return ConfigError("upstream.security.protocol", f"{address} speaks {spoken}: {remedy}")


def _end(certificate: bytes) -> str:
    from cryptography.x509 import load_der_x509_certificate

    try:
        return _day(load_der_x509_certificate(certificate).not_valid_after_utc.timestamp())
    except ValueError:
        return "a time that cannot be read"


def _mechanisms(config: Config, offered: tuple[str, ...]) -> Iterator[Outcome]:
    """Compare the brokers' mechanisms with those of the listeners that relay logins."""
    for index, listener in enumerate(config.listeners):
        enabled = listener.sasl_enabled_mechanisms
        if not (offered and enabled and listener.relays_logins):
            continue
        key = f"listeners[{index}].sasl.enabled.mechanisms"
        for name in enabled:
            if name not in offered:
                yield ConfigError(key, f"brokers do not offer {name}")
        if refused := [name for name in offered if name not in enabled]:
            yield Doubt(f"{key}: clients that use {' or '.join(refused)} are refused; remove it")


def _misfit(listener: Listener, cluster: ClusterView) -> str | None:
    """Return the problem of `broker.ports` that lack a port for a broker; None if all have one."""
    host, ports = listener.advertised_host, listener.broker_ports
    if host is None or ports is None:
        return None
    gateway = Gateway(BrokerTable(), host, ports, lambda *_: None)
    hidden = [gateway.hide(broker_id) for broker_id in cluster.brokers]
    return gateway.misfit if any(hidden) else None


async def _provider(upstream: Upstream) -> Outcome:
    """Ask the provider for a token, and for the principal's name; the token is not shown."""
    key, name = "upstream.sasl.login.provider", upstream.sasl_login_provider
    tokens = token_source(upstream, ",".join(map(str, upstream.bootstrap_servers)))
    assert isinstance(tokens, RenewedTokens)
    try:
        who = await tokens.who()
    except TokenUnavailable as error:
        return ConfigError(key, error.reason)
    return f"{key} {name} has a token for '{fit_for_log(who, ())}'"


async def _as_client(
    config: Config, access: Access, principal: str | None
) -> AsyncIterator[Outcome]:
    """Log in to a broker as a client, for each listener with `upstream.identity`."""
    address = config.upstream.bootstrap_servers[0]
    for index, listener in enumerate(config.listeners):
        if principal is None or not listener.presents_clients:
            continue
        key = f"listeners[{index}].upstream.identity"
        session = Session({}, listener.enforcement_policy().terms_for)
        client, logins = session.admit(Identity(principal), 0.0), ClientLogins(listener, access)
        at_brokers = logins.presents(client) or principal
        try:
            await logins.try_out(client, (address.host, address.port))
        except TokenDenied as denied:
            own = quote_for_shell(f"User:{access.username}")
            command = (
                f"kafka-acls.sh --bootstrap-server {address} --add --allow-principal {own}"
                f" --operation CreateTokens --user-principal {quote_for_shell(at_brokers)}"
            )
            yield ConfigError(key, f"{denied.reason}; run {command}")
        except (BrokerFault, LoginError) as error:
            yield ConfigError(key, error.reason)
        else:
            yield f"broker {address} accepts the login of {principal} as {at_brokers}"


async def _identity_services(place: str, listener: Listener) -> AsyncIterator[Outcome]:
    services = key_services(listener).values()
    for (key, _), keys in zip(listener.jwks_sources(), services, strict=True):
        yield await _keys(f"{place}.{key}", keys)
    if (url := listener.sasl_plain_ldap_url) is not None:
        yield await _directory(f"{place}.sasl.plain.ldap.url", url, listener)


async def _keys(key: str, keys: KeyService) -> Outcome:
    await keys.refresh()
    if keys.cache.last_error is not None:
        return ConfigError(key, keys.cache.last_error)
    return f"{key} has {keys.cache.key_count} keys"


async def _directory(key: str, url: str, listener: Listener) -> Outcome:
    try:
        await Directory(listener, lambda _: None).reach()
    except LoginError as error:
        return ConfigError(key, f"{url} {error.reason}")
    account = listener.sasl_plain_ldap_bind_dn
    return f"{url} answers" if account is None else f"{url} answers, and takes {account}"


def _store(config: Config) -> Iterator[Outcome]:
    """Read all of the database without a lock: it may be in use, and nothing is left beside it."""
    path, users_file = config.store.path(), config.store.users_file
    mechanisms: set[str] = set()
    if path.exists():
        try:
            uri = f"file:{quote(str(path))}?mode=ro&immutable=1"
            with closing(sqlite3.connect(uri, uri=True)) as database:
                ((found,),) = database.execute("PRAGMA quick_check(1)")
                with suppress(sqlite3.OperationalError):  # the file is empty
                    rows = database.execute("SELECT DISTINCT mechanism FROM scram_credentials")
                    mechanisms = {mechanism for (mechanism,) in rows}
        except sqlite3.Error as error:
            found = str(error)
        if found != "ok":
            yield ConfigError("store.url", f"{path}: {found}")
            return
        yield f"{path} can be read"
    else:
        yield f"{path} does not exist and will be created"
    if users_file is not None:
        mechanisms = {mechanism.value for _, mechanism in Users.checked(users_file).credentials}
    yield from map(Doubt, without_users(config, mechanisms))
