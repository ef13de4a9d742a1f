"""`security.protocol` PLAINTEXT and SSL: what makes no sense there is refused, not passed over."""

from pathlib import Path
from typing import Any

import pytest

from proxy.config import Config
from proxy.config.exposure import exposures
from proxy.errors import ConfigError
from sasl.states import Enforcement
from tests.support.settings import PLAINTEXT, configured
from tests.support.tables import table

SCRAM = {"sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}
KEYSTORE = {"security.protocol": "SSL", "ssl.keystore.location": "server.pem"}
MUTUAL = KEYSTORE | {"ssl.client.auth": "required", "ssl.truststore.location": "ca.pem"}
SASL_SSL = {"security.protocol": "SASL_SSL"}
AUTH, RULES = "ssl.client.auth", "ssl.principal.mapping.rules"
DEFAULT = {RULES: "DEFAULT"}
NO_MEANING = "has no meaning with security.protocol:"


def read(settings: dict[str, Any], **top: Any) -> Config:
    return configured(Path("/etc/reauth-proxy"), settings, **top)


@pytest.mark.parametrize("settings", [PLAINTEXT, KEYSTORE, MUTUAL])
def test_without_sasl_nothing_of_it_is_needed(settings: dict[str, Any]) -> None:
    """Nor is an authorizer; without both, the start warns (`exposures`)."""
    (listener,) = read(settings).listeners
    assert not listener.sasl
    assert listener.sasl_enabled_mechanisms == ()
    assert listener.tls is (settings is not PLAINTEXT)
    assert listener.ssl_principal_mapping_rules == "DEFAULT"


def test_nothing_is_enforced_without_sasl() -> None:
    """The status page and the event log must not show `enforce`."""
    assert read(PLAINTEXT).listeners[0].enforcement_in_effect() is Enforcement.OBSERVE
    assert read(SCRAM).listeners[0].enforcement_in_effect() is Enforcement.ENFORCE


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
@pytest.mark.parametrize(("key", "value"), table(__file__, "without_sasl_unused"))
def test_what_makes_no_sense_without_sasl_is_refused(protocol: str, key: str, value: Any) -> None:
    """A security setting must not silently do nothing."""
    settings = PLAINTEXT if protocol == "PLAINTEXT" else MUTUAL
    with pytest.raises(ConfigError) as refused:
        read(settings | {key: value})
    assert str(refused.value) == f"listeners[0].{key}: {NO_MEANING} {protocol}"


def test_null_is_not_a_value() -> None:
    """Templates write it for omitted values."""
    assert read(PLAINTEXT | {"sasl.oauthbearer.jwks.endpoint.url": None}).listeners


def test_the_time_for_a_tls_handshake_is_bounded_by_what_bounds_authentication() -> None:
    key = "sasl.authentication.timeout.ms"
    assert read(KEYSTORE | {key: 5_000}).listeners[0].sasl_authentication_timeout_ms == 5_000
    with pytest.raises(ConfigError, match=f"{key}: {NO_MEANING} PLAINTEXT"):
        read(PLAINTEXT | {key: 5_000})


@pytest.mark.parametrize(("settings", "problem"), table(__file__, "without_sasl_mistakes"))
def test_what_does_not_fit_is_one_line(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(settings)
    assert str(refused.value).startswith(f"listeners[0].{problem}")
    assert "\n" not in str(refused.value)


ENFORCE = {"mode": "enforce"}


@pytest.mark.parametrize(("settings", "authorizer", "reported"), table(__file__, "unauthenticated"))
def test_what_needs_no_authentication_is_reported(
    settings: dict[str, Any], authorizer: dict[str, Any], reported: str
) -> None:
    """Access without authentication or authorization may be a mistake."""
    (line,) = exposures(read(settings, authorizer=authorizer))
    assert line.startswith(
        "listener clients serves every client that reaches 127.0.0.1:9094 (security.prot"
    )
    assert reported in line


@pytest.mark.parametrize(
    ("settings", "authorizer"),
    [
        (SCRAM, {}),
        (MUTUAL, {}),
        (PLAINTEXT, ENFORCE),
        (KEYSTORE, ENFORCE | {"super.users": ["User:admin"]}),
        (SCRAM, ENFORCE | {"super.users": ["User:ANONYMOUS"]}),
    ],
)
def test_nothing_is_told_where_somebody_is_asked_or_acls_apply(
    settings: dict[str, Any], authorizer: dict[str, Any]
) -> None:
    """A warning that is always there is read by nobody."""
    assert exposures(read(settings, authorizer=authorizer)) == ()
