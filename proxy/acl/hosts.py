"""Host addresses as ACLs name and compare them.

Kafka compares texts. Here all spellings of an address are equal (RFC 5952; like Java, an
IPv4-mapped IPv6 address is the IPv4 address), and an ACL may name a CIDR block (RFC 4632, RFC
4291). Other texts are stored unchanged, as in Kafka, and never apply.
"""

import socket
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from proxy.acl.model import WILDCARD

BlockShape = tuple[int, int]
"""Shape of a block: bytes of the address (4 or 16) and bits of the prefix."""
HostKey = str | bytes | tuple[int, int, int]
"""Key of an ACL's host: `*`, an address, or a block as its shape and number. Equivalent spellings
have equal keys."""

_MAPPED: Final = b"\0" * 10 + b"\xff\xff"
"""First bytes of an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2)."""
_BITS_BEFORE_MAPPED: Final = 96
_MAX_BITS: Final = {4: 32, 16: 128}
"""Bits of an address, by its number of bytes."""
_CACHED_CLIENTS: Final = 4096
"""Maximum number of client addresses whose keys are cached."""


def acl_host_key(host: str) -> HostKey | None:
    """Return the key of an ACL's host; None if it can never apply."""
    if host == WILDCARD:
        return WILDCARD
    address, slash, length = host.partition("/")
    if slash:
        return _block(address, length)
    return None if (found := _address(address)) is None else b"".join(found)


def block_shape(key: HostKey) -> BlockShape | None:
    """Return the shape of a block; None for other keys."""
    return key[:2] if isinstance(key, tuple) else None


@lru_cache(maxsize=_CACHED_CLIENTS)
def client_host_keys(host: str, shapes: frozenset[BlockShape]) -> tuple[HostKey, ...]:
    """Return the keys of all ACLs that apply to a client at this address.

    `shapes` are those of the existing blocks; others are not tried. An ACL for a link-local address
    without a zone applies in every zone.
    """
    found = _address(host)
    if found is None:
        return (WILDCARD,)
    address, zone = found
    zoned = (address + zone,) if zone else ()
    return (WILDCARD, address, *zoned, *_blocks_around(address, shapes))


def _blocks_around(address: bytes, shapes: Iterable[BlockShape]) -> Iterable[HostKey]:
    number = int.from_bytes(address, "big")
    size = len(address)
    for bytes_, bits in sorted(shapes):
        if bytes_ == size:
            yield size, bits, number >> (8 * size - bits)


def _address(text: str) -> tuple[bytes, bytes] | None:
    """Return the bytes of an address, and the zone of a link-local one (RFC 4007) with its `%`;
    None if it is not an address."""
    bare, percent, zone = text.partition("%")
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in bare else socket.AF_INET, bare)
    except (OSError, ValueError):  # ValueError: a NUL, or text that cannot be encoded
        return None
    if packed.startswith(_MAPPED):
        packed = packed[len(_MAPPED) :]
    return packed, percent.encode() + zone.encode(errors="surrogatepass")


def _block(text: str, length: str) -> HostKey | None:
    """Return the key of a block; bits after its prefix are ignored."""
    # Without this check, a megabyte of digits would be parsed as a number
    if not (length.isascii() and length.isdigit() and len(length) <= len("128")):
        return None
    found, bits = _address(text), int(length)
    if found is None or found[1]:
        return None
    address = found[0]
    if ":" in text and len(address) == _MAX_BITS[4] // 8:
        bits -= _BITS_BEFORE_MAPPED
    max_bits = _MAX_BITS[len(address)]
    if not 0 <= bits <= max_bits:
        return None
    return len(address), bits, int.from_bytes(address, "big") >> (max_bits - bits)
