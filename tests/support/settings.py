"""Configurations with one listener."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from proxy.config import Config, from_mapping

SCRAM: Final[dict[str, Any]] = {"sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}
TOKENS: Final[dict[str, Any]] = {
    "sasl.enabled.mechanisms": ["OAUTHBEARER"],
    "sasl.oauthbearer.jwks.endpoint.url": "file:jwks.json",
    "sasl.oauthbearer.expected.audience": "kafka",
    "sasl.oauthbearer.expected.issuer": "https://issuer.test",
}
PLAINTEXT: Final[dict[str, Any]] = {"security.protocol": "PLAINTEXT"}


def mapping(
    listener: Mapping[str, Any] = SCRAM, upstream: Mapping[str, Any] | None = None, **sections: Any
) -> dict[str, Any]:
    """A sidecar with these settings over the required ones."""
    required = {"name": "clients", "address": "127.0.0.1:9094", "routing": "sidecar"}
    return {
        "upstream": {"bootstrap.servers": "127.0.0.1:9092", **(upstream or {})},
        "listeners": [{**required, **listener}],
        **sections,
    }


def configured(
    directory: Path,
    listener: Mapping[str, Any] = SCRAM,
    upstream: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Config:
    """Load such a configuration; its paths are relative to the directory."""
    return from_mapping(mapping(listener, upstream, **sections), base_dir=directory)
