"""Ports that the proxy listens on: each claimed by one setting, and by this proxy alone."""

import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

from proxy.config import Config
from proxy.config.values import Address, PortRange
from proxy.errors import ConfigError
from proxy.net.sockets import Claim, numeric_host

IpAddress = IPv4Address | IPv6Address


class BrokerPorts:
    """Ports of a listener's `broker.ports`: no other program gets one while the proxy runs.

    One that another program has already can be listened on when that has ended.
    """

    def __init__(self, key: str, host: str, ports: PortRange) -> None:
        """`key` is the setting that errors name. Raises ConfigError: there are too many ports."""
        self._key = key
        try:
            self._claims = {port: Claim(host, port) for port in ports}
        except OSError as error:
            problem = f"{ports} takes a file descriptor for each port: {error.strerror}"
            raise ConfigError(key, problem) from error

    def take(self) -> list[int]:
        """Take them all, and return those that cannot be had now.

        Raises ConfigError where clients would be shared with another proxy.
        """
        not_had = []
        for port, claim in self._claims.items():
            try:
                claim.take()
            except ConfigError as error:
                if claim.would_be_shared():
                    raise ConfigError(self._key, f"{error}, by another proxy") from error
                not_had.append(port)
        return not_had

    def listen(self, port: int) -> socket.socket:
        """Listen on one of them. Raises ConfigError: another program has it."""
        return self._claims[port].listen()

    def leave_to_parent(self) -> None:
        """Spare a child the file descriptors of those that its parent has, for as long as it is."""
        for claim in self._claims.values():
            if claim.is_taken:
                claim.close()

    def close(self) -> None:
        """Let this process's part of them go."""
        for claim in self._claims.values():
            claim.close()


def refuse_overlaps(config: Config) -> None:
    """Raise ConfigError where two keys mean one port, be it by two names, or a host is not here.

    Workers share their ports, so the kernel would have one listener serve the other's clients.
    """
    taken: list[tuple[str, Address, IpAddress, PortRange]] = []
    for key, host, ports in _named(config):
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


def _named(config: Config) -> Iterator[tuple[str, str, PortRange]]:
    """Give each key that names ports, the host and the ports; port 0 is any free one."""
    http = config.http.address
    addresses = [(f"listeners[{n}].address", one.address) for n, one in enumerate(config.listeners)]
    for key, address in addresses + ([("http.address", http)] if http is not None else []):
        yield key, address.host, PortRange(address.port, address.port or -1)
    for number, one in enumerate(config.listeners):
        if one.broker_ports is not None:
            yield f"listeners[{number}].broker.ports", one.address.host, one.broker_ports


def _overlap(one: IpAddress, other: IpAddress) -> bool:
    """Return whether a client can mean both: `::` is every address of IPv4, too (ipv6(7))."""
    one, other = _plain(one), _plain(other)
    if one.is_unspecified or other.is_unspecified:
        return one.version == other.version or IPv6Address("::") in (one, other)
    return one == other


def _plain(address: IpAddress) -> IpAddress:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
