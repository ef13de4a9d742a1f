"""Connections to hosts by name: shared lookups, several addresses, TCP keepalive.

- Each name is looked up in its own thread, so a silent DNS server for one name delays neither other
  lookups nor threads that read files; uvloop has only two threads for all lookups. Names come from
  the configuration and from brokers, never from clients, so there are few.
- Connections to the same name share one lookup, and its result for a few seconds.
- If an address of a name does not answer, the next one is tried at the same time (RFC 8305).
- The kernel probes idle connections, and ends a connection whose peer has disappeared.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from threading import Thread
from time import monotonic
from typing import Any, Final, TypeAlias

from aiohappyeyeballs import AddrInfoType, start_connection

from proxy.net.proxy_header import announce
from proxy.net.sockets import KEEPALIVE_IDLE_MS, PROBE_SECONDS, PROBES, keep_alive

LOOKUP_SECONDS: Final = 6.0
"""Longest wait for a lookup. The resolver tries a second DNS server after 5 s (resolv.conf(5))."""
ANSWER_SECONDS: Final = 5.0
"""Time for which the addresses of a name are used."""
FAILURE_SECONDS: Final = 1.0
"""Time for which a name that was not found is not looked up again."""
NEXT_ADDRESS_SECONDS: Final = 0.25
"""Time after which the next address is tried as well (RFC 8305 section 5)."""
_NO_LIMIT_SECONDS: Final = 86_400.0
"""Time limit of a TLS handshake, longer than those that callers set; uvloop's default is 60 s."""

Answer: TypeAlias = Sequence[AddrInfoType] | OSError


class Dialler:
    """Opens TCP connections, and shares lookups among them."""

    def __init__(
        self, keepalive_idle_ms: int = KEEPALIVE_IDLE_MS, *, sends_header: bool = False
    ) -> None:
        """Probe connections without traffic for `keepalive_idle_ms`, at least one second.

        With `sends_header`, each connection begins with a PROXY protocol header, version 2.
        """
        self._idle_ms = keepalive_idle_ms
        self.sends_header = sends_header
        self._lookups: dict[str, _Lookup] = {}

    async def open(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        source: tuple[str, int] | None = None,
    ) -> asyncio.Transport:
        """Connect to the first address of `host` that accepts. Raises OSError.

        With `tls`, the server's certificate must be for `host` if the context checks host names.
        `source` is the client that the connection is for; None: it is the proxy's own. The caller
        sets the time limit.
        """
        addresses = await self._addresses(host, port)
        where: dict[str, Any] = {"host": addresses[0][4][0], "port": port}
        # For one address, a socket object would double the CPU time of connecting
        if len(addresses) > 1 or self.sends_header:
            delay = NEXT_ADDRESS_SECONDS
            connected = await start_connection(addresses, happy_eyeballs_delay=delay)
            if self.sends_header:
                await _send_header(connected, source)
            where = {"sock": connected}
        transport, _ = await asyncio.get_running_loop().create_connection(
            protocol,
            **where,
            ssl=tls,
            server_hostname=None if tls is None else host,
            ssl_handshake_timeout=None if tls is None else _NO_LIMIT_SECONDS,
        )
        sock = transport.get_extra_info("socket")
        if sock is not None:  # the protocol has not closed it
            keep_alive(sock, self._idle_ms)
            # With a shorter limit, the kernel would end the connection at its first failed probe
            limit_ms = self._idle_ms + PROBES * PROBE_SECONDS * 1_000
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
        return transport

    async def open_streams(
        self, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect as `open` does, and return the streams of `asyncio.open_connection`."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport = await self.open(lambda: protocol, host, port, tls)
        except (ConnectionResetError, ssl.SSLEOFError):
            if tls is None:
                raise
            from proxy.net.handshake_errors import ClosedInHandshake  # loads much for TLS

            raise ClosedInHandshake from None
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _addresses(self, host: str, port: int) -> Sequence[AddrInfoType]:
        now = monotonic()
        lookup = self._lookups.get(host)
        if lookup is None or lookup.expires_at <= now:
            with suppress(OSError, ValueError):  # a name
                return socket.getaddrinfo(
                    _encoded(host), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
                )
            self._lookups = {
                name: one for name, one in self._lookups.items() if one.expires_at > now
            }
            lookup = self._lookups[host] = _Lookup(host)
        answer = await lookup.answered()
        if isinstance(answer, OSError):
            raise type(answer)(*answer.args)
        return [(*one[:4], (one[4][0], port, *one[4][2:])) for one in answer]


def _encoded(host: str) -> str | bytes:
    """Return the name without need of IDNA if it is ASCII: its tables take 0.5 MiB."""
    return host.encode() if host.isascii() else host


async def _send_header(sock: socket.socket, source: tuple[str, int] | None) -> None:
    """Send the PROXY protocol header, which precedes TLS; closes the socket if that fails."""
    try:
        header = announce(source, sock.getpeername()[:2])
        await asyncio.get_running_loop().sock_sendall(sock, header)
    except BaseException:
        sock.close()
        raise


class _Lookup:
    """Lookup of a name, which begins at once."""

    def __init__(self, host: str) -> None:
        """Raises OSError if no thread can be started."""
        self.expires_at = inf
        """Time in monotonic seconds until which the answer is used; infinite until it arrives."""
        self._host = host
        self._answer: Future[Answer] = Future()
        self._answer.set_running_or_notify_cancel()  # so that no waiter cancels it
        try:
            # A daemon thread, so that the process can end while it waits
            Thread(target=self._run, name="lookup", daemon=True).start()
        except RuntimeError as error:
            raise OSError(str(error)) from error

    async def answered(self) -> Answer:
        """Return the answer. Raises OSError after `LOOKUP_SECONDS`."""
        if self._answer.done():
            return self._answer.result()
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                return await asyncio.wrap_future(self._answer)
        except TimeoutError:
            problem = f"no answer from DNS within {LOOKUP_SECONDS:g} s"
            raise socket.gaierror(socket.EAI_AGAIN, problem) from None

    def _run(self) -> None:
        answer: Answer
        try:
            answer = socket.getaddrinfo(_encoded(self._host), None, type=socket.SOCK_STREAM)
        except OSError as error:
            answer = error
        except ValueError:  # IDNA
            answer = socket.gaierror(socket.EAI_NONAME, "a host name that cannot be looked up")
        kept = FAILURE_SECONDS if isinstance(answer, OSError) else ANSWER_SECONDS
        self.expires_at = monotonic() + kept
        self._answer.set_result(answer)
