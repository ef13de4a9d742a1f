"""PROXY protocol headers, versions 1 and 2, in which a load balancer names the client's address.

Source: HAProxy's `doc/proxy-protocol.txt` (2020/03/05). The parser is pure, and strict: anything
unknown is an error, because a guessed address could match another client's ACLs.
"""

import ipaddress
from typing import Final, NamedTuple

from proxy.quota.model import canonical_ip

_V1: Final = b"PROXY "
_V2: Final = b"\r\n\r\n\0\r\nQUIT\n"
_MAX_V1: Final = 107
"""Largest size in bytes of a v1 header with its CRLF (section 2.1)."""
_MAX_PORT: Final = 65_535
_FIXED: Final = 16
"""Size in bytes of the fixed part of a v2 header (section 2.2)."""
MAX_BODY: Final = 4_096
"""Largest size in bytes of the rest of a v2 header: addresses and TLVs. The protocol allows 64 KiB;
HAProxy's TLVs, with the names of a client's certificate, take a few hundred bytes."""
_LOCAL, _PROXY = 0x20, 0x21
_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
"""Size in bytes of an address, for TCP over IPv4 and over IPv6."""
_TLV_BYTES: Final = 3
"""Size in bytes of a TLV's type and length."""


class ProxyHeaderError(ValueError):
    """A header is invalid, or its sender is not trusted; the message contains no received bytes."""


class ProxyHeader(NamedTuple):
    """A complete header."""

    size: int
    """Its size in bytes; the client's own bytes follow."""
    address: str | None
    """The client's canonical address; None if the balancer connects by itself, such as for a health
    check (LOCAL, or UNKNOWN in v1)."""


def parse(data: bytes) -> ProxyHeader | None:
    """Return the header at the start of a connection's bytes, or None if more bytes are needed.

    Raises ProxyHeaderError. Incomplete headers are shorter than 16 bytes + `MAX_BODY`.
    """
    if data.startswith(_V2[: len(data)]):
        return _parse_v2(data)
    if data.startswith(_V1[: len(data)]):
        return _parse_v1(data)
    raise ProxyHeaderError("no PROXY protocol header")


def announce(source: tuple[str, int] | None, destination: tuple[str, int]) -> bytes:
    """Return a v2 header for a client at `source`; None: LOCAL, a connection of the proxy itself.

    Addresses of two families are both sent as IPv6. Raises OSError if one is not an IP address,
    as that of a client that has left.
    """
    if source is None:
        return _V2 + bytes((_LOCAL, 0, 0, 0))
    try:
        ends = [ipaddress.ip_address(host) for host, _ in (source, destination)]
    except ValueError as error:
        raise OSError(str(error)) from None
    family = 0x11
    if any(one.version == 6 for one in ends):
        family = 0x21
        ends = [ipaddress.IPv6Address(f"::ffff:{a}") if a.version == 4 else a for a in ends]
    body = b"".join(one.packed for one in ends)
    body += b"".join(port.to_bytes(2) for _, port in (source, destination))
    return _V2 + bytes((_PROXY, family)) + len(body).to_bytes(2) + body


def _parse_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _MAX_V1)
    if end < 0:
        if len(data) >= _MAX_V1:
            raise ProxyHeaderError(f"a v1 header of more than {_MAX_V1} bytes")
        return None
    match data[:end].split(b" "):
        case [_, b"UNKNOWN", *_]:
            return ProxyHeader(end + 2, None)
        case [_, b"TCP4" | b"TCP6" as family, source, destination, first, second]:
            version = 4 if family == b"TCP4" else 6
            address = _address(source, version)
            _address(destination, version)
            if _is_port(first) and _is_port(second):
                return ProxyHeader(end + 2, address)
    raise ProxyHeaderError("an invalid v1 header")


def _address(text: bytes, version: int) -> str:
    """Return an address of a v1 header in canonical form."""
    try:
        found = ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        raise ProxyHeaderError("an invalid address in a v1 header") from None
    if found.version != version or b"%" in text:
        raise ProxyHeaderError("an invalid address in a v1 header")
    return _canonical(found)


def _is_port(text: bytes) -> bool:
    plain = text.isdigit() and len(text) <= 5 and (text == b"0" or not text.startswith(b"0"))
    return plain and int(text) <= _MAX_PORT


def _parse_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < _FIXED:
        return None
    command, family, length = data[12], data[13], int.from_bytes(data[14:_FIXED])
    if command not in (_LOCAL, _PROXY):
        raise ProxyHeaderError("an unknown version or command in a v2 header")
    if length > MAX_BODY:
        raise ProxyHeaderError(f"a v2 header of more than {_FIXED + MAX_BODY} bytes")
    size = _FIXED + length
    if command == _PROXY and family not in _ADDRESS_BYTES:
        raise ProxyHeaderError("a v2 header without TCP addresses")
    if len(data) < size:
        return None
    if command == _LOCAL:  # section 2.2: the addresses are to be skipped, whatever they are
        return ProxyHeader(size, None)
    wide = _ADDRESS_BYTES[family]
    _check_tlvs(data[_FIXED:size], 2 * wide + 4)
    return ProxyHeader(size, _canonical(ipaddress.ip_address(data[_FIXED : _FIXED + wide])))


def _check_tlvs(body: bytes, at: int) -> None:
    """Refuse TLVs that do not end exactly with the header; their contents are ignored."""
    while at + _TLV_BYTES <= len(body):
        at += _TLV_BYTES + int.from_bytes(body[at + 1 : at + _TLV_BYTES])
    if at != len(body):
        raise ProxyHeaderError("a v2 header with broken lengths")


def _canonical(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return an address as ACLs and quotas name it; an IPv4-mapped one as IPv4."""
    return canonical_ip(str(address)) or str(address)
