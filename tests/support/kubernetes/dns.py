"""The cluster's DNS: names of Services and of pods of headless Services."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

Objects = Callable[[str], list[dict[str, Any]]]
"""Lists objects of a kind (`services`, `endpoints`) in all namespaces."""

_A: Final = 1
_INTERNET: Final = 1
_NO_SUCH_NAME: Final = 3
_TTL_SECONDS: Final = 1
_LARGEST: Final = 512
_ANSWER: Final = 0x8400
"""Flags of an authoritative answer (RFC 1035 section 4.1.1)."""


@contextmanager
def serving(address: str, domain: str, objects: Objects) -> Iterator[None]:
    """Answer queries at port 53 from the current state of the API server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        thread = threading.Thread(target=_serve, args=(server, domain, objects), daemon=True)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", (address, 53))  # an empty one ends it
            thread.join()


def _serve(server: socket.socket, domain: str, objects: Objects) -> None:
    while True:
        message, client = server.recvfrom(_LARGEST)
        if not message:
            return
        server.sendto(_answer(message, names(domain, objects)), client)


def names(domain: str, objects: Objects) -> Mapping[str, list[str]]:
    """Return addresses by name (Kubernetes' DNS specification, section 2.3)."""
    found: dict[str, list[str]] = {}
    headless = set()
    for service in objects("services"):
        name = _name(service, domain)
        address = service["spec"].get("clusterIP", "None")
        if address == "None":
            headless.add(name)
            found[name] = []
        else:
            found[name] = [address]
    for endpoints in objects("endpoints"):
        name = _name(endpoints, domain)
        if name not in headless:
            continue
        for subset in endpoints.get("subsets") or []:
            for one in subset.get("addresses") or []:
                found[name].append(one["ip"])
                if "hostname" in one:
                    found[f"{one['hostname']}.{name}"] = [one["ip"]]
    return found


def _name(document: dict[str, Any], domain: str) -> str:
    metadata = document["metadata"]
    return f"{metadata['name']}.{metadata['namespace']}.svc.{domain}"


def _answer(message: bytes, known: Mapping[str, list[str]]) -> bytes:
    identifier = message[:2]
    labels, end = _labels(message)
    (kind,) = struct.unpack_from(">H", message, end)
    name = ".".join(labels).lower()
    addresses = known.get(name, []) if kind == _A else []
    flags = _ANSWER | (0 if name in known else _NO_SUCH_NAME)
    head = identifier + struct.pack(">HHHHH", flags, 1, len(addresses), 0, 0)
    # Every record points to the question's name at byte 12.
    records = [
        struct.pack(">HHHIH", 0xC00C, _A, _INTERNET, _TTL_SECONDS, 4) + socket.inet_aton(address)
        for address in addresses
    ]
    return head + message[12 : end + 4] + b"".join(records)


def _labels(message: bytes) -> tuple[list[str], int]:
    labels, position = [], 12
    while size := message[position]:
        labels.append(message[position + 1 : position + 1 + size].decode("ascii", "replace"))
        position += 1 + size
    return labels, position + 1
