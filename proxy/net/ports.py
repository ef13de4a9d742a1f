"""Ports that the proxy listens on: each belongs to one setting and only to this proxy."""

import mmap
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

from proxy.config import Config
from proxy.config.values import Address, PortMap, PortRange
from proxy.errors import ConfigError
from proxy.net.sockets import (
    KEEPALIVE_IDLE_MS,
    Claim,
    Inherited,
    is_listening,
    keep_alive,
    numeric_host,
)

IpAddress = IPv4Address | IPv6Address


class BrokerPorts:
    """Ports of a listener's `broker.ports`: no other program can use them while the proxy runs.

    A port that another program used at the start becomes available when that program has ended.
    The parent creates this object before it forks: all processes share one socket per port, which
    listens as long as any worker uses it.
    """

    def __init__(
        self,
        key: str,
        host: str,
        ports: PortRange | PortMap,
        workers: int,
        inherited: Inherited,
        keepalive_idle_ms: int = KEEPALIVE_IDLE_MS,
    ) -> None:
        """Claim only inherited ports for now; errors name the setting `key`.

        Accepted connections are probed after `keepalive_idle_ms` without traffic.

        Raises ConfigError if the ports need more file descriptors than are available.
        """
        self._key = key
        self._worker = 0
        self._workers = workers
        self._idle_ms = keepalive_idle_ms
        self._index = {port: number for number, port in enumerate(ports)}
        self._open: set[int] = set()
        """The ports that this process listens on."""
        self._wanted = memoryview(mmap.mmap(-1, len(ports) * workers + 1))
        """A byte for each port and worker: 1 if the worker wants the port to listen. The last byte
        is 1 if another proxy may use the sockets as well."""
        try:
            self._claims = {port: Claim(host, port, inherited.take(host, port)) for port in ports}
        except OSError as error:
            problem = f"{ports} takes a file descriptor for each port: {error.strerror}"
            raise ConfigError(key, problem) from error
        for port, claim in self._claims.items():
            if claim.taken is not None and is_listening(claim.taken):
                self._of(port)[:] = bytes([1] * workers)  # until `settle`

    def take(self) -> list[int]:
        """Claim all ports; return those that other programs are using.

        Raises ConfigError if another proxy uses one: clients would reach either of the two.
        """
        in_use = []
        for port, claim in self._claims.items():
            try:
                claim.take()
            except ConfigError as error:
                if claim.would_be_shared():
                    raise ConfigError(self._key, f"{error}, by another proxy") from error
                in_use.append(port)
        return in_use

    def begin(self, worker: int) -> None:
        """Use the ports as this worker."""
        self._worker = worker

    def listen(self, port: int) -> socket.socket:
        """Listen on one of the ports. Raises ConfigError if another program uses it."""
        wanted = self._of(port)
        wanted[self._worker] = 1  # first, or another worker could stop it again
        try:
            listening = self._claims[port].listen()
        except ConfigError:
            wanted[self._worker] = 0
            raise
        keep_alive(listening, self._idle_ms)
        self._open.add(port)
        return listening

    def leave(self, port: int) -> None:
        """Stop listening on a port, unless another worker listens; the caller has closed its
        socket."""
        self._open.discard(port)
        wanted = self._of(port)
        wanted[self._worker] = 0
        if self._is_wanted(port):
            return
        self._claims[port].stop_listening()
        if self._is_wanted(port):  # since the check above
            self._claims[port].listen().close()

    def settle(self) -> None:
        """Leave the ports that this process does not listen on: those of an earlier process of this
        worker, those of the previous proxy, and those that no worker used while they were shared.
        """
        for port, claim in self._claims.items():
            if port not in self._open and (self._of(port)[self._worker] or claim.listens):
                self.leave(port)

    def sockets(self) -> list[socket.socket]:
        """Return the sockets of all ports that are claimed."""
        return [sock for claim in self._claims.values() if (sock := claim.taken) is not None]

    def socket_of(self, port: int) -> socket.socket:
        """Return this process's socket of a port, which listens when a worker wants it to."""
        return self._claims[port].sock

    def share(self, shared: bool) -> None:
        """Keep listening ports open: another proxy may use their sockets as well. The next `settle`
        leaves those that no worker wants."""
        self._wanted[-1] = shared

    def close(self) -> None:
        """Release this process's claims."""
        for claim in self._claims.values():
            claim.close()

    def _of(self, port: int) -> memoryview:
        at = self._index[port] * self._workers
        return self._wanted[at : at + self._workers]

    def _is_wanted(self, port: int) -> bool:
        return bool(self._wanted[-1]) or any(self._of(port))


def refuse_overlaps(config: Config) -> None:
    """Raise ConfigError if two settings share a port, or a host is not an address of this machine.

    Two names of one address count as one. Workers share their ports (SO_REUSEPORT), so the kernel
    would let one listener serve the other's clients.
    """
    taken: list[tuple[str, Address, IpAddress, PortRange]] = []
    for key, host, ports in named_ports(config):
        first = Address(host, ports.first)
        try:
            ip = ip_address(numeric_host(host))
        except OSError as error:
            raise ConfigError(key, f"cannot listen on {first}: {error.strerror}") from error
        for other_key, other, other_ip, other_ports in taken:
            port = max(ports.first, other_ports.first)
            if _overlap(ip, other_ip) and port <= min(ports.last, other_ports.last):
                other_address = Address(other.host, port)
                problem = f"{Address(host, port)} is taken by {other_key}, {other_address}"
                raise ConfigError(key, problem)
        taken.append((key, first, ip, ports))


def named_ports(config: Config) -> Iterator[tuple[str, str, PortRange]]:
    """Yield each setting that names ports, with host and ports; port 0, any free port, is the range
    from 0 to -1."""
    http = config.http.address
    addresses = [(f"listeners[{n}].address", one.address) for n, one in enumerate(config.listeners)]
    for key, address in addresses + ([("http.address", http)] if http is not None else []):
        yield key, address.host, PortRange(address.port, address.port or -1)
    for number, one in enumerate(config.listeners):
        key = f"listeners[{number}].broker.ports"
        if isinstance(one.broker_ports, PortRange):
            yield key, one.address.host, one.broker_ports
        else:
            for port in one.broker_ports or ():
                yield key, one.address.host, PortRange(port, port)


def _overlap(one: IpAddress, other: IpAddress) -> bool:
    """Return whether the two overlap: `::` also includes every IPv4 address (ipv6(7))."""
    one, other = _plain(one), _plain(other)
    if one.is_unspecified or other.is_unspecified:
        return one.version == other.version or IPv6Address("::") in (one, other)
    return one == other


def _plain(address: IpAddress) -> IpAddress:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
