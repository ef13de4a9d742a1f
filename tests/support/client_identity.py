"""Clients that brokers see as themselves, and the listeners that present them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxy.brokers.access import Access
from proxy.config import from_mapping
from proxy.config.listener import Listener
from sasl.identity import Identity
from sasl.states import Authenticated, Enforcement

ACCESS = Access(timeout_s=10, username="proxy")
BROKER = "127.0.0.1", 9092


def client(principal: str) -> Authenticated:
    """The authentication of a client."""
    return Authenticated(
        identity=Identity(principal),
        mechanism="SCRAM-SHA-256",
        handshake_version=1,
        authenticate_version=2,
        enforcement=Enforcement.ENFORCE,
        authenticated_at=0.0,
        latency=0.0,
        session_lifetime_ms=0,
        credential_lifetime_ms=None,
        deadline=None,
        killed_after=None,
        reauthentications=0,
    )


def listener_with(directory: Path, way: str, given: Mapping[str, Any]) -> Listener:
    """A listener with this `upstream.identity`; `a_b` in `given` is `upstream.identity.a.b`."""
    listener = {
        "name": "clients",
        "address": "127.0.0.1:9094",
        "routing": "sidecar",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
        "upstream.identity": way,
        **{f"upstream.identity.{key.replace('_', '.')}": one for key, one in given.items()},
    }
    upstream = {
        "bootstrap.servers": "127.0.0.1:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "proxy",
        "sasl.password": "env:PASSWORD",
    }
    mapping = {"upstream": upstream, "listeners": [listener]}
    return from_mapping(mapping, base_dir=directory).listeners[0]
