"""`security.protocol` PLAINTEXT and SSL: what makes no sense there is refused, not passed over."""

from pathlib import Path
from typing import Any

import pytest

from proxy.config import Config
from proxy.config.exposure import exposures
from proxy.errors import ConfigError
from sasl.states import Enforcement
from tests.support.settings import PLAINTEXT, configured

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
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sasl.enabled.mechanisms", ["SCRAM-SHA-256"]),
        ("connections.max.reauth.ms", 0),  # the default, written down
        ("oauthbearer.connections.max.reauth.ms", 60_000),
        ("scram-sha-256.connections.max.reauth.ms", 60_000),
        ("reauth.enforcement", "enforce"),  # likewise
        ("reauth.overrides", [{"principal": "User:a", "reauth.enforcement": "probe"}]),
        ("sasl.oauthbearer.jwks.endpoint.url", "file:jwks.json"),
        ("sasl.oauthbearer.expected.audience", "kafka"),
        ("sasl.oauthbearer.allow.unverified.issuer", True),
        ("sasl.server.max.receive.size", 1_000),
        ("connection.failed.authentication.delay.ms", 100),
    ],
)
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


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "sasl.enabled.mechanisms: is required"),
        ({"security.protocol": "SSL"}, "ssl.keystore.location: is required with SSL"),
        (KEYSTORE | {AUTH: "requested"}, f"ssl.truststore.location: is required with {AUTH}: req"),
        (PLAINTEXT | {AUTH: "required"}, f"{AUTH}: {NO_MEANING} PLAINTEXT"),
        (PLAINTEXT | DEFAULT, f"{RULES}: {NO_MEANING} PLAINTEXT"),
        # the principal would still be SASL's
        (SCRAM | MUTUAL | SASL_SSL | DEFAULT, f"{RULES}: {NO_MEANING} SASL_SSL"),
        (KEYSTORE | DEFAULT, f"{RULES}: has no meaning with {AUTH}: none"),
        (MUTUAL | {RULES: "RULE:^CN=(.*)$/$2/"}, f"{RULES}: has a replacement that refers to a"),
        (MUTUAL | {RULES: ["DEFAULT"]}, f"{RULES}: must be text, got a list"),
        ({"security.protocol": "plaintext"}, "security.protocol: must be 'PLAINTEXT', 'SSL', "),
    ],
)
def test_what_does_not_fit_is_one_line(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(settings)
    assert str(refused.value).startswith(f"listeners[0].{problem}")
    assert "\n" not in str(refused.value)


ASKED = MUTUAL | {"ssl.client.auth": "requested"}
ENFORCE = {"mode": "enforce"}


@pytest.mark.parametrize(
    ("settings", "authorizer", "reported"),
    [
        (PLAINTEXT, {}, "nothing is denied (authorizer.mode: off)"),
        (PLAINTEXT, {"mode": "audit"}, "nothing is denied (authorizer.mode: audit)"),
        (KEYSTORE, {}, "ssl.client.auth: none), and nothing is denied"),
        (ASKED, {}, "ssl.client.auth: requested), and nothing is denied"),
        (
            PLAINTEXT,
            ENFORCE | {"super.users": ["User:admin", "User:ANONYMOUS"]},
            "nothing is denied (User:ANONYMOUS is one of authorizer.super.users)",
        ),
        (
            ASKED,
            ENFORCE | {"allow.everyone.if.no.acl.found": True},
            "resources without ACLs are open to all (authorizer.allow.everyone.if.no.acl.found)",
        ),
    ],
)
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
