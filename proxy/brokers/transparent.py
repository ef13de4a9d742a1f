"""Original destinations of redirected connections, and the check that they are allowed.

Rules:

- The proxy connects only to destinations in `upstream.allowed`, and never to its own addresses.
- A broker's versions are requested when the first client needs them; clients wait for that, each in
  its `RedirectedClient`, and count as connections. A broker that never answered is not remembered,
  so clients cannot fill the memory by connecting to many addresses.
- The proxy's own connections must not be redirected to it. If the machine's rules do so
  nevertheless, the proxy recognizes its own request by the correlation id, and refuses it: a loop
  costs one connection only.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, cast

from proxy.brokers.access import Access
from proxy.brokers.discovery import VERSIONS_MAX_AGE, DiscoveredBroker, Discovery
from proxy.brokers.service_connection import is_own_request
from proxy.config.values import Address, Destinations
from proxy.connection.commands import CloseReason
from proxy.net.sockets import peer_address

log = logging.getLogger(__name__)

SO_ORIGINAL_DST: Final = 80
"""Socket option of linux/netfilter_ipv4.h; IP6T_SO_ORIGINAL_DST has the same number at its own
level."""
_SOCKADDR_IN: Final = struct.Struct("!2xH4s8x")
_SOCKADDR_IN6: Final = struct.Struct("!2xH4x16s4x")

MAX_BROKERS: Final = 1_024
"""Largest number of brokers that clients are connected to."""
MAX_EARLY_BYTES: Final = 65_536
"""Number of bytes after which a waiting client is not read."""


class DestinationRefused(Exception):
    """A redirected connection is refused; the text is the reason."""

    def __init__(self, text: str, reason: CloseReason = CloseReason.DESTINATION_REFUSED) -> None:
        super().__init__(text)
        self.reason = reason


def original_destination(sock: socket.socket) -> Address:
    """Return the address that a redirected client connected to. Raises DestinationRefused."""
    mapped = sock.family == socket.AF_INET6 and sock.getpeername()[0].startswith("::ffff:")
    try:
        if sock.family == socket.AF_INET6 and not mapped:
            found = sock.getsockopt(socket.IPPROTO_IPV6, SO_ORIGINAL_DST, _SOCKADDR_IN6.size)
            port, packed = _SOCKADDR_IN6.unpack(found)
            return Address(socket.inet_ntop(socket.AF_INET6, packed), port)
        found = sock.getsockopt(socket.IPPROTO_IP, SO_ORIGINAL_DST, _SOCKADDR_IN.size)
    except OSError:
        raise DestinationRefused(
            "it connected to the proxy itself and was not redirected"
        ) from None
    port, packed = _SOCKADDR_IN.unpack(found)
    return Address(socket.inet_ntop(socket.AF_INET, packed), port)


def check_destination(
    destination: Address, local: Address, allowed: tuple[Destinations, ...], own: frozenset[int]
) -> None:
    """Raise DestinationRefused for the proxy itself, or a destination that is not allowed.

    `local` is the address that accepted the connection, `own` are the proxy's ports.
    """
    is_here = destination.host == local.host or destination.host.startswith("127.")
    if destination == local or (destination.port in own and (is_here or destination.host == "::1")):
        raise DestinationRefused(f"{destination} is the proxy itself: not redirected, or in a loop")
    if not any(destination in one for one in allowed):
        raise DestinationRefused(f"{destination} is not in upstream.allowed")


class TransparentDiscovery(Discovery):
    """Discovery of brokers that clients connect to, each when the first client needs it."""

    def __init__(self, *, access: Access, on_versions: Callable[[DiscoveredBroker], None]) -> None:
        """Query brokers with `access`; `on_versions` is called with changed versions."""
        super().__init__(VERSIONS_MAX_AGE, access, on_versions)
        self.brokers: dict[Address, DiscoveredBroker] = {}
        self._asked: dict[Address, asyncio.Task[DiscoveredBroker]] = {}

    def _known(self) -> Collection[DiscoveredBroker]:
        return self.brokers.values()

    async def broker(self, address: Address) -> DiscoveredBroker:
        """Return a broker once its versions are known; concurrent calls share one query.

        Raises DestinationRefused.
        """
        if (known := self.brokers.get(address)) is not None:
            return known
        task = self._asked.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(address))
            self._asked[address] = task
            task.add_done_callback(lambda _: self._asked.pop(address))
        return await asyncio.shield(task)

    async def _ask(self, address: Address) -> DiscoveredBroker:
        if len(self.brokers) >= MAX_BROKERS:
            raise DestinationRefused(f"{address}: {MAX_BROKERS} brokers are known already")
        broker = DiscoveredBroker(None, address.host, address.port)
        if not await self._refresh((broker,), asyncio.get_running_loop().time()):
            raise DestinationRefused(f"{address} cannot be reached")
        self.brokers[address] = broker
        return broker


class RedirectedClient(asyncio.Protocol):
    """Redirected client that waits until its destination is known and checked."""

    def __init__(
        self,
        admit: Callable[[Address, Address], "asyncio.Future[asyncio.BaseProtocol]"],
        refuse: Callable[[str, DestinationRefused], None],
        count: Callable[["RedirectedClient", str], CloseReason | None],
        uncount: Callable[["RedirectedClient"], None],
    ) -> None:
        """Wait for the client's connection.

        `admit(destination, local)` returns the protocol that takes over; `refuse(host, reason)`
        reports a refusal. `count(self, host)` counts the connection, or returns why it is refused;
        `uncount(self)` is called when it has ended or was taken over.
        """
        self._admit = admit
        self._refuse = refuse
        self._count = count
        self._uncount = uncount
        self._transport: asyncio.Transport
        self._early = b""
        self._ended = False
        self._admission: asyncio.Future[asyncio.BaseProtocol] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to look up the destination of a redirected client."""
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        try:
            if (reason := self._count(self, self._host())) is not None:
                raise DestinationRefused(f"refused: {reason}", reason)
            destination = original_destination(sock)
            local = Address(*_plain(sock.getsockname()))
            self._admission = self._admit(destination, local)
        except DestinationRefused as refused:
            self._refuse_client(refused)
            return
        self._admission.add_done_callback(self._admitted)

    def data_received(self, data: bytes) -> None:
        """Keep the client's first bytes."""
        self._early += data
        if is_own_request(self._early):
            self._refuse_client(
                DestinationRefused("a redirect loop: the proxy's own connections are redirected")
            )
        elif len(self._early) >= MAX_EARLY_BYTES:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Handle the end of the client's bytes."""
        self._ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Handle the end of the client's connection."""
        if self._admission is not None:
            self._admission.cancel()
        self._uncount(self)

    def _admitted(self, admission: "asyncio.Future[asyncio.BaseProtocol]") -> None:
        if admission.cancelled() or self._transport.is_closing():
            with suppress(BaseException):
                admission.exception()
            return
        error = admission.exception()
        if isinstance(error, DestinationRefused):
            self._refuse_client(error)
        elif error is not None:
            log.error("a redirected connection failed", exc_info=error)
            self._transport.abort()
        else:
            self._hand_over(admission.result())

    def _refuse_client(self, refused: DestinationRefused) -> None:
        self._refuse(self._host(), refused)
        self._transport.abort()

    def evict(self) -> None:
        """Close now, so that another client can connect."""
        self._refuse_client(DestinationRefused("evicted for another client", CloseReason.EVICTED))

    def _host(self) -> str:
        return peer_address(self._transport) or "unknown"

    def _hand_over(self, protocol: asyncio.BaseProtocol) -> None:
        transport = self._transport
        transport.pause_reading()
        transport.set_protocol(protocol)
        self._uncount(self)
        protocol.connection_made(transport)
        if transport.is_closing():
            return
        # Before its first bytes are handed over, which may pause it again.
        transport.resume_reading()
        streaming = cast(asyncio.Protocol, protocol)
        if self._early:
            streaming.data_received(self._early)
        if self._ended and not transport.is_closing():
            streaming.eof_received()


def _plain(name: tuple[object, ...]) -> tuple[str, int]:
    """Return host and port of a socket's name; an IPv4-mapped address becomes IPv4."""
    return str(name[0]).removeprefix("::ffff:"), int(str(name[1]))
