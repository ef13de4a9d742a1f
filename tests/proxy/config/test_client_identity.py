"""Settings of the identity that clients have at brokers (`upstream.identity`)."""

from pathlib import Path
from typing import Any

import pytest

from proxy.config import Config
from proxy.config.exposure import exposures
from proxy.errors import ConfigError
from tests.support.settings import SCRAM, configured

MAPPED: dict[str, Any] = {
    "upstream.identity": "mapped",
    "upstream.identity.directory": "mapped",
    "upstream.identity.mechanism": "SCRAM-SHA-512",
    "upstream.identity.allow": ["User:alice"],
}
DELEGATED: dict[str, Any] = {
    "upstream.identity": "delegation-token",
    "upstream.identity.directory": None,
}
MINTED: dict[str, Any] = {
    "upstream.identity": "minted-token",
    "upstream.identity.directory": None,
    "upstream.identity.mechanism": None,
    "upstream.identity.signing.key.files": ["key.pem"],
    "upstream.identity.token.issuer": "https://proxy.test",
    "upstream.identity.token.audience": "cluster-id",
}


ANONYMOUS = {"security.protocol": "PLAINTEXT", "sasl.enabled.mechanisms": None}
PERHAPS_ANONYMOUS = {
    **ANONYMOUS,
    "security.protocol": "SSL",
    "ssl.keystore.location": "a.pem",
    "ssl.truststore.location": "ca.pem",
    "ssl.client.auth": "requested",
}


def loaded(
    directory: Path, *, upstream: dict[str, Any] | None = None, store: str = "", **changes: Any
) -> Config:
    """A listener with `MAPPED`, changed; a setting of None is left out."""
    given = {**SCRAM, **MAPPED} | {key.replace("_", "."): one for key, one in changes.items()}
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "proxy",
        "sasl.password": "env:PASSWORD",
    }
    listener = {key: one for key, one in given.items() if one is not None}
    brokers = {"bootstrap.servers": "broker.example:9092"}
    sections = {"store": {"url": store}} if store else {}
    found = brokers | (login if upstream is None else upstream)
    return configured(directory, listener, found, **sections)


def test_clients_do_not_have_the_proxys_rights(tmp_path: Path) -> None:
    """The warning that they have is not given."""
    config = loaded(tmp_path)
    assert config.listeners[0].presents_clients
    assert exposures(config) == ()


@pytest.mark.parametrize(("mechanism", "what"), [("PLAIN", "password"), ("OAUTHBEARER", "token")])
def test_credentials_in_the_clear_are_warned_of(tmp_path: Path, mechanism: str, what: str) -> None:
    (warning,) = exposures(loaded(tmp_path, upstream_identity_mechanism=mechanism))
    assert warning == (
        f"listener clients: each client's {what} goes to brokers in the clear, such as"
        " broker.example:9092 (upstream.security.protocol: SASL_PLAINTEXT)"
    )


@pytest.mark.parametrize(
    ("way", "problem", "changes"),
    [
        (MAPPED, "directory: is required with upstream.identity: mapped", {"directory": None}),
        (MAPPED, "mechanism: is required with upstream.identity: mapped", {"mechanism": None}),
        (MAPPED, "allow: is required with upstream.identity: mapped", {"allow": None}),
        (MAPPED, "deny[0]: must begin with User:", {"deny": ["Group:analysts"]}),
        (MAPPED, "super.users: is required with upstr", {"allow.prefixes": ["User:team-"]}),
        (DELEGATED, "mechanism: is required", {"mechanism": None}),
        (DELEGATED, "mechanism: must be SCRAM", {"mechanism": "PLAIN"}),
        (DELEGATED, "directory: has no meaning", {"directory": "mapped"}),
        (MINTED, "signing.key.files: is required", {"signing.key.files": []}),
        (MINTED, "token.issuer: is required", {"token.issuer": None}),
        (MINTED, "token.audience: is required", {"token.audience": None}),
        (MINTED, "directory: has no meaning with upstream.identity", {"directory": "mapped"}),
        (MINTED, "token.lifetime.ms: ", {"token.lifetime.ms": 3_600_001}),
    ],
)
def test_incomplete_or_contradictory_settings_are_refused(
    tmp_path: Path, way: dict[str, Any], problem: str, changes: dict[str, Any]
) -> None:
    assert loaded(tmp_path, **way).listeners[0].presents_clients
    given = {f"upstream.identity.{name}": one for name, one in changes.items()}
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, **way | given)
    assert f"listeners[0].upstream.identity.{problem}" in str(refused.value)


@pytest.mark.parametrize("setting", [key for key in MAPPED if key != "upstream.identity"])
def test_settings_without_effect_are_refused(tmp_path: Path, setting: str) -> None:
    given: dict[str, Any] = dict.fromkeys(MAPPED) | {setting: MAPPED[setting]}
    with pytest.raises(ConfigError, match=r"has no meaning with upstream\.identity: proxy"):
        loaded(tmp_path, **given)


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        ("cannot be mapped with sasl.termination: broker", {"sasl.termination": "broker"}),
        ("cannot be mapped with security.protocol: PLAINTEXT", ANONYMOUS),
        ("cannot be mapped with ssl.client.auth: requested", PERHAPS_ANONYMOUS),
        ("needs upstream.security.protocol: SASL_SSL", {"upstream": {}}),
        ("must be sqlite: with upstream.identity: mapped", {"store": "broker:state.db"}),
    ],
)
def test_clients_must_be_authenticated_and_changes_must_be_theirs(
    tmp_path: Path, problem: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, **changes)
    assert problem in str(refused.value)
