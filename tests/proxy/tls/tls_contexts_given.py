"""Certificates in a directory, the contexts made of them, and both ends of a handshake."""

import ssl
from pathlib import Path
from typing import Any

from proxy.config import from_mapping
from proxy.tls.contexts import Tls, TlsOfAll, open_tls
from tests.certificates import NOW, Authority

WALL = NOW.timestamp()
AUTHORITY = Authority()
OTHER = Authority("other")
FIRST, SECOND = AUTHORITY.issue(), AUTHORITY.issue()
RSA = AUTHORITY.issue(algorithm="rsa")
LISTENER = "listeners[0]"


def opened(directory: Path, *, upstream: dict[str, Any] | None = None, **more: Any) -> TlsOfAll:
    listener = {
        "name": "clients",
        "address": "127.0.0.1:9094",
        "routing": "sidecar",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
        "security.protocol": "SASL_SSL",
        "ssl.keystore.location": "server.pem",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    mapping = {
        "upstream": {"bootstrap.servers": "127.0.0.1:9092", **(upstream or {})},
        "listeners": [listener],
    }
    return open_tls(from_mapping(mapping, base_dir=directory), WALL)


def connected(
    server: ssl.SSLContext,
    client: ssl.SSLContext,
    host: str = "localhost",
    session: ssl.SSLSession | None = None,
) -> ssl.SSLObject:
    """Both ends in memory; the client's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=host, session=session)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (near, far):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    far.write(b"x")
    assert near.read(1) == b"x"  # with TLS 1.3 its ticket comes before
    return near


def trusting(authority: Authority = AUTHORITY) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.certificate.decode())
    return context


def serial(tls: Tls) -> int:
    shown = connected(tls.context, trusting()).getpeercert()
    assert shown is not None
    return int(str(shown["serialNumber"]), 16)


def looked(tls: Tls, wall: float = WALL) -> bool:
    """Twice: what changed between two looks may still be being written."""
    tls.look(wall)
    replacement = tls.look(wall)
    if replacement is not None:
        tls.take(replacement)
    return replacement is not None
