"""Original destinations of redirected connections, and whether they are allowed.

Rules:

- Only a destination that `upstream.allowed` has is connected to, and none of our own addresses.
- A broker's versions are requested when the first client needs them; clients wait for that, each in
  its `RedirectedClient`, counted as the connections that they are. A broker that never answered is
  not remembered, so nobody fills the memory by dialling addresses.
- What the proxy itself dials must not come back to it. If the rules of the machine redirect it
  nevertheless, the proxy receives its own request, knows it by its correlation id, and refuses: a
  loop costs one connection, not all of them.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from proxy.config.values import Address, Destinations
from proxy.connection.commands import CloseReason
from proxy.routing.discovery import VERSIONS_MAX_AGE, DiscoveredBroker, Discovery
from proxy.upstream.access import Access
from proxy.upstream.service_connection import is_question_of_ours

log = logging.getLogger(__name__)

SO_ORIGINAL_DST: Final = 80
"""Socket option of linux/netfilter_ipv4.h; IP6T_SO_ORIGINAL_DST has the same number at its own
level."""
_SOCKADDR_IN: Final = struct.Struct("!2xH4s8x")
_SOCKADDR_IN6: Final = struct.Struct("!2xH4x16s4x")

MAX_BROKERS: Final = 1_024
MAX_EARLY_BYTES: Final = 65_536


class DestinationRefused(Exception):
    """A connection may not be forwarded; the text says why."""

    def __init__(self, text: str, reason: CloseReason = CloseReason.DESTINATION_REFUSED) -> None:
        super().__init__(text)
        self.reason = reason


def original_destination(sock: socket.socket) -> Address:
    """Return where a redirected connection was meant for. Raises Refused."""
    mapped = sock.family == socket.AF_INET6 and sock.getpeername()[0].startswith("::ffff:")
    try:
        if sock.family == socket.AF_INET6 and not mapped:
            found = sock.getsockopt(socket.IPPROTO_IPV6, SO_ORIGINAL_DST, _SOCKADDR_IN6.size)
            port, packed = _SOCKADDR_IN6.unpack(found)
            return Address(socket.inet_ntop(socket.AF_INET6, packed), port)
        found = sock.getsockopt(socket.IPPROTO_IP, SO_ORIGINAL_DST, _SOCKADDR_IN.size)
    except OSError:
        raise DestinationRefused("it was not redirected; it dialled the proxy itself") from None
    port, packed = _SOCKADDR_IN.unpack(found)
    return Address(socket.inet_ntop(socket.AF_INET, packed), port)


def judge(
    destination: Address, local: Address, allowed: tuple[Destinations, ...], own: frozenset[int]
) -> None:
    """Refuse a destination that is ourselves or not allowed; `own`: our ports. Raises Refused."""
    is_here = destination.host == local.host or destination.host.startswith("127.")
    if destination == local or (destination.port in own and (is_here or destination.host == "::1")):
        raise DestinationRefused(f"{destination} is the proxy itself: not redirected, or in a loop")
    if not any(destination in one for one in allowed):
        raise DestinationRefused(f"{destination} is not in upstream.allowed")


class TransparentDiscovery(Discovery):
    """Discovery of brokers that clients dialled, each queried when the first client needs it."""

    def __init__(self, *, access: Access, on_versions: Callable[[DiscoveredBroker], None]) -> None:
        """`on_versions` is called with what a broker offers."""
        super().__init__(VERSIONS_MAX_AGE, access, on_versions)
        self.targets: dict[Address, DiscoveredBroker] = {}
        self._asked: dict[Address, asyncio.Task[DiscoveredBroker]] = {}

    @property
    def unreachable(self) -> str | None:
        """Reason why the last query failed of every broker that clients were redirected from."""
        reasons = [target.unreachable for target in self.targets.values()]
        return reasons[0] if reasons and None not in reasons else None

    async def round(self, now: float) -> bool:
        """Ask the known brokers what they offer, where that is due."""
        return await self._refresh(list(self.targets.values()), now)

    def knows(self, target: DiscoveredBroker) -> bool:
        """Return whether clients were redirected from a host."""
        return self.targets.get(Address(target.host, target.port)) is target

    async def broker(self, address: Address) -> DiscoveredBroker:
        """Return a broker once it is known; those who ask meanwhile share the question.

        Raises Refused.
        """
        if (known := self.targets.get(address)) is not None:
            return known
        task = self._asked.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(address))
            self._asked[address] = task
            task.add_done_callback(lambda _: self._asked.pop(address))
        return await asyncio.shield(task)

    async def _ask(self, address: Address) -> DiscoveredBroker:
        if len(self.targets) >= MAX_BROKERS:
            raise DestinationRefused(f"{address}: {MAX_BROKERS} brokers are known already")
        target = DiscoveredBroker(None, address.host, address.port)
        if not await self._refresh((target,), asyncio.get_running_loop().time()):
            raise DestinationRefused(f"{address} cannot be reached")
        self.targets[address] = target
        return target


class RedirectedClient(asyncio.Protocol):
    """Redirected client that waits until its destination is known and checked."""

    def __init__(
        self,
        admit: Callable[[Address, Address], "asyncio.Future[asyncio.BaseProtocol]"],
        refuse: Callable[[str, DestinationRefused], None],
        enter: Callable[["RedirectedClient", str], CloseReason | None],
        leave: Callable[["RedirectedClient"], None],
    ) -> None:
        """Begin to wait for the connection.

        `admit(destination, local)` returns the protocol that takes over; `refuse` is called with
        the client's host and the reason. `enter`, with its host, counts it, or returns why it is
        refused; `leave` is called when it is over.
        """
        self._admit = admit
        self._refuse = refuse
        self._enter = enter
        self._leave = leave
        self._transport: asyncio.Transport
        self._early = b""
        self._ended = False
        self._admission: asyncio.Future[asyncio.BaseProtocol] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to look up the destination of a redirected client."""
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        try:
            if (reason := self._enter(self, self._host())) is not None:
                raise DestinationRefused(f"refused: {reason}", reason)
            destination = original_destination(sock)
            local = Address(*_plain(sock.getsockname()))
            self._admission = self._admit(destination, local)
        except DestinationRefused as refused:
            self._turn_away(refused)
            return
        self._admission.add_done_callback(self._judged)

    def data_received(self, data: bytes) -> None:
        """Keep the client's first bytes."""
        self._early += data
        if is_question_of_ours(self._early):
            self._turn_away(
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
        self._leave(self)

    def _judged(self, admission: "asyncio.Future[asyncio.BaseProtocol]") -> None:
        if admission.cancelled() or self._transport.is_closing():
            with suppress(BaseException):
                admission.exception()
            return
        error = admission.exception()
        if isinstance(error, DestinationRefused):
            self._turn_away(error)
        elif error is not None:
            log.error("a redirected connection failed", exc_info=error)
            self._transport.abort()
        else:
            self._hand_over(admission.result())

    def _turn_away(self, refused: DestinationRefused) -> None:
        self._refuse(self._host(), refused)
        self._transport.abort()

    def evict(self) -> None:
        """Another client takes its place."""
        self._turn_away(DestinationRefused("another client takes its place", CloseReason.EVICTED))

    def _host(self) -> str:
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else "unknown"

    def _hand_over(self, protocol: asyncio.BaseProtocol) -> None:
        transport = self._transport
        transport.pause_reading()
        transport.set_protocol(protocol)
        self._leave(self)
        protocol.connection_made(transport)
        if transport.is_closing():
            return
        # Before what it says early, which may pause it: the way of reading is chosen here.
        transport.resume_reading()
        streaming = cast(asyncio.Protocol, protocol)
        if self._early:
            streaming.data_received(self._early)
        if self._ended and not transport.is_closing():
            streaming.eof_received()


def _plain(name: tuple[object, ...]) -> tuple[str, int]:
    """Return host and port of a socket's name, an IPv4 address as itself."""
    return str(name[0]).removeprefix("::ffff:"), int(str(name[1]))
