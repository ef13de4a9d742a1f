"""Recognition of a cluster: what its listener speaks, its brokers, and free ports for a gateway.

Nothing secret is sent to a broker before its listener is known to match.
"""

import re
import ssl
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from proxy.admin.client import exchange_of
from proxy.admin.properties import ClientSettings, Login
from proxy.brokers.access import Access
from proxy.brokers.service_connection import ServiceConnection, ask, cluster_view
from proxy.config.first_file import Surroundings
from proxy.config.security import SecurityProtocol
from proxy.config.values import Address, PortRange
from proxy.errors import BrokerFault, ConfigError
from proxy.net.handshake_errors import CLOSED_IN_HANDSHAKE, NO_TLS
from proxy.net.sockets import Claim
from proxy.wire.metadata import ClusterView

_TIMEOUT_S: Final = 10.0
_MECHANISM: Final = re.compile(r"[A-Z0-9_-]{1,20}")
_LOCAL: Final = "127.0.0.1"
_LARGEST_RANGE: Final = 1_000
"""Largest number of ports that a first file reserves; for larger broker ids it has a map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """What a broker's listener speaks."""

    protocol: SecurityProtocol
    mechanisms: tuple[str, ...] | None
    """Its SASL mechanisms; empty without SASL, None if the broker does not offer the question."""
    certificate: bytes | None
    """Its certificate in DER; None without TLS."""
    cluster: ClusterView | None
    """The cluster's brokers; None if the listener reveals them only after a login."""

    def __str__(self) -> str:
        return (
            f"{self.protocol} ({', '.join(self.mechanisms)})" if self.mechanisms else self.protocol
        )


class _Context:
    """TLS context that does not change."""

    expires_at: Final = None

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context: Final = context


def _unverified() -> ssl.SSLContext:
    """Return a context that accepts every certificate: for questions without secrets alone."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def recognize(address: Address, access: Access) -> Spoken:
    """Find out what the listener at an address speaks: TLS first, with the context of `access` if
    it has one, then without TLS. Raises BrokerFault."""
    silent = replace(access, identity=None, clients_log_in=True)
    with_tls = replace(silent, tls=access.tls or _Context(_unverified()))
    try:
        return await ask(address.host, address.port, with_tls, _spoken)
    except BrokerFault as fault:
        if not fault.reason.endswith((CLOSED_IN_HANDSHAKE, NO_TLS)):
            raise
    return await ask(address.host, address.port, replace(silent, tls=None), _spoken)


async def _spoken(connection: ServiceConnection) -> Spoken:
    certificate = connection.certificate
    offered = await connection.mechanisms()
    protocol = "PLAINTEXT" if certificate is None else "SSL"
    return Spoken(
        protocol=SecurityProtocol(f"SASL_{protocol}" if offered else protocol),
        mechanisms=None if offered is None else tuple(filter(_MECHANISM.fullmatch, offered)),
        certificate=certificate,
        cluster=None if offered else await cluster_view(connection),
    )


async def logged_in(address: Address, access: Access, login: Login) -> ClusterView:
    """Log in with a client's credentials, and return the cluster's brokers. Raises BrokerFault."""

    async def question(connection: ServiceConnection) -> ClusterView:
        await connection.log_in(exchange_of(login))
        return await cluster_view(connection)

    return await ask(address.host, address.port, replace(access, identity=None), question)


async def surroundings(
    servers: Sequence[tuple[str, int]], client: ClientSettings | None
) -> tuple[Surroundings, ClusterView | None]:
    """Ask the first server that answers; `client` has a login for listeners that reveal their
    cluster only after one.

    None as the second result means an unknown cluster. Raises BrokerFault, of the first server
    if none answers.
    """
    faults = []
    for host, port in servers:
        address, access = Address(host, port), Access(timeout_s=_TIMEOUT_S)
        try:
            spoken, is_trusted = await _with_trust(address, access)
            cluster = spoken.cluster
            if client is not None and client.login is not None and spoken.mechanisms:
                tls = None if client.ssl_context is None else _Context(client.ssl_context)
                cluster = await logged_in(address, replace(access, tls=tls), client.login)
        except BrokerFault as fault:
            faults.append(fault)
            continue
        found = Surroundings(
            servers=", ".join(str(Address(*one)) for one in servers),
            protocol=spoken.protocol,
            mechanisms=spoken.mechanisms or (),
            private_authority=not is_trusted,
        )
        return _with_ports(found, () if cluster is None else cluster.brokers), cluster
    raise faults[0]


async def _with_trust(address: Address, access: Access) -> tuple[Spoken, bool]:
    """Return what a listener speaks, and whether the system trusts its certificate."""
    try:
        return await recognize(
            address, replace(access, tls=_Context(ssl.create_default_context()))
        ), True
    except BrokerFault as refused:
        try:
            return await recognize(address, access), False
        except BrokerFault:
            raise refused from None


def _with_ports(found: Surroundings, broker_ids: Collection[int]) -> Surroundings:
    """Choose free ports: one for clients, one for HTTP, and those for brokers with these ids."""
    clients, http = (next(filter(is_free, count(first))) for first in (9094, 9404))
    ids = sorted(one for one in broker_ids if one >= 0)
    is_range = not ids or ids[-1] < _LARGEST_RANGE
    size = max(100, ids[-1] + 1 if ids else 0) if is_range else len(ids)
    first = next(
        first
        for first in range(9100, 32_000, 100)
        if not {clients, http} & {*range(first, first + size)}
        and all(map(is_free, range(first, first + size)))
    )
    ports = str(PortRange(first, first + size - 1))
    if not is_range:
        ports = f"{{{', '.join(f'{id_}: {first + n}' for n, id_ in enumerate(ids))}}}"
    return replace(found, address=f"{_LOCAL}:{clients}", http=f"{_LOCAL}:{http}", ports=ports)


def is_free(port: int) -> bool:
    """Return whether this machine can listen on a port of its loopback address."""
    with closing(Claim(_LOCAL, port)) as claim:
        try:
            claim.take()
        except ConfigError:
            return False
    return True
