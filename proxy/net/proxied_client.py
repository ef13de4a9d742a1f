"""Connections through load balancers, which begin with a PROXY protocol header.

Rules:

- Only trusted peers may send a header. Others are refused before anything is read.
- A header must be complete within `HEADER_SECONDS`. Until then a connection counts against no limit
  in total or per address, because these need the client's address. Instead, the number of waiting
  connections is limited; one more closes the longest-waiting one of the peer that has most of them.
- A connection of the balancer itself (LOCAL) becomes a client with the balancer's address, but only
  with its next byte: a health check that sends nothing more is neither recorded nor logged.
"""

import asyncio
import ipaddress
from collections.abc import Callable, Collection
from typing import Final, cast

from proxy.net.proxy_header import ProxyHeaderError, parse
from proxy.net.sockets import BACKLOG, peer_address

HEADER_SECONDS: Final = 5.0
"""Time in which a header must be complete. The specification asks for at least 3 s, which leaves
time for a retransmission."""


def most_waiting(max_connections: int) -> int:
    """Return how many connections of a listener may wait for their header in each worker."""
    return min(BACKLOG, max_connections)


class AwaitedHeaders:
    """Connections of one listener that wait for their header, or for the first byte after it."""

    def __init__(
        self,
        trusted: Collection[ipaddress.IPv4Network | ipaddress.IPv6Network],
        most: int,
        refused: Callable[[str, str], None],
        ended: Callable[[], None],
    ) -> None:
        """Accept headers from peers in `trusted`; `most` connections may wait.

        `refused(host, problem)` records a refusal. `ended()` is called when a connection has ended,
        or was handed over to the client's protocol.
        """
        self._trusted = trusted
        self._most = most
        self.refused = refused
        self.ended = ended
        self._waiting: dict[str, dict[ProxiedClient, asyncio.TimerHandle]] = {}
        """The timers of waiting connections by peer, the longest-waiting one first."""
        self.count = 0
        """The number of waiting connections."""

    def begin(self, client: "ProxiedClient", host: str) -> None:
        """Wait for the header of a connection from `host`. Raises ProxyHeaderError."""
        address = ipaddress.ip_address(host)
        if not any(address in network for network in self._trusted):
            raise ProxyHeaderError("its address is not in proxy.protocol.trusted")
        if self.count >= self._most:
            waiting = self._waiting
            largest = max(waiting, key=lambda peer: (len(waiting[peer]), peer == host))
            next(iter(waiting[largest])).give_up("too many connections send no header")
        timer = asyncio.get_running_loop().call_later(
            HEADER_SECONDS, client.give_up, f"no PROXY protocol header within {HEADER_SECONDS:g} s"
        )
        self._waiting.setdefault(host, {})[client] = timer
        self.count += 1

    def end(self, client: "ProxiedClient", host: str) -> bool:
        """Stop waiting; return False if the connection does not wait any more."""
        waiting = self._waiting.get(host, {})
        timer = waiting.pop(client, None)
        if timer is None:
            return False
        timer.cancel()
        if not waiting:
            del self._waiting[host]
        self.count -= 1
        return True

    def close(self) -> None:
        """Close all waiting connections."""
        for client in [one for waiting in self._waiting.values() for one in waiting]:
            client.abort()


class ProxiedClient(asyncio.Protocol):
    """Protocol of a connection until its client's address is known."""

    def __init__(self, headers: AwaitedHeaders, client: Callable[[str], asyncio.Protocol]) -> None:
        """Hand the connection over to `client(address)`; with "" if it is the balancer's own."""
        self._headers = headers
        self._client = client
        self._transport: asyncio.Transport
        self._host = ""
        """The peer's address; empty if the connection was closed before it was looked at."""
        self._early = b""
        """The part of the header that was received."""
        self._is_local = False
        """True after the header of a balancer's own connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the header of a trusted peer."""
        self._transport = cast(asyncio.Transport, transport)
        host = peer_address(transport)
        if host is None:
            self._transport.abort()
            return
        self._host = host
        try:
            self._headers.begin(self, host)
        except ProxyHeaderError as error:
            self.give_up(str(error))

    def data_received(self, data: bytes) -> None:
        """Parse the header, and hand over the connection with the bytes that follow."""
        if self._transport.is_closing():
            return
        if self._is_local:
            self._hand_over("", data)
            return
        self._early += data
        try:
            header = parse(self._early)
        except ProxyHeaderError as error:
            self.give_up(str(error))
            return
        if header is None:
            return
        rest, self._early = self._early[header.size :], b""
        if header.address is None and not rest:
            self._is_local = True
        else:
            self._hand_over(header.address or "", rest)

    def _hand_over(self, address: str, data: bytes) -> None:
        transport, client = self._transport, self._client(address)
        self._headers.end(self, self._host)
        transport.set_protocol(client)
        client.connection_made(transport)
        self._headers.ended()
        if data and not transport.is_closing():
            client.data_received(data)

    def give_up(self, problem: str) -> None:
        """Refuse the connection because of its header; a balancer's own one is only closed."""
        if not self._is_local:
            self._headers.refused(self._host, problem)
        self.abort()

    def abort(self) -> None:
        """Close the connection."""
        self._early = b""
        if self._headers.end(self, self._host):
            self._headers.ended()
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Handle the end of the connection; one that sent nothing was a check of the port."""
        if self._early:
            self._headers.refused(self._host, "the PROXY protocol header is incomplete")
        self.abort()
