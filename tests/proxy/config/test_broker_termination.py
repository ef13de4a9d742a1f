"""Settings of listeners whose brokers authenticate the clients (`sasl.termination: broker`)."""

from typing import Any

import pytest

from proxy.config import Config
from proxy.config.exposure import exposures
from proxy.errors import ConfigError
from tests.support.settings import configured

UPSTREAM = {"bootstrap.servers": "broker.example:9092", "security.protocol": "SASL_PLAINTEXT"}
LISTENER = {"sasl.termination": "broker"}
CLEAR = {"security.protocol": "PLAINTEXT"}
KEYS = "sasl.oauthbearer.jwks.endpoint.url"
AUDIENCE = "sasl.oauthbearer.expected.audience"
GROUPS = "sasl.oauthbearer.groups.claim.name"
MECHANISMS = "sasl.enabled.mechanisms"
SCRAM_RULES = "sasl.scram.principal.mapping.rules"
OPAQUE_RULES = "sasl.broker.opaque.principal.mapping.rules"
LOGINS = "sasl.broker.max.logins"
NO_MEANING = "has no meaning with sasl.termination: broker, which verifies logins itself"
VERIFIES = {
    KEYS: "file:jwks.json",
    AUDIENCE: "kafka",
    "sasl.oauthbearer.expected.issuer": "https://issuer.test",
    GROUPS: "groups",
}
OWN_SASL = {"sasl.termination": "proxy", "sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}
LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "proxy", "sasl.password": "env:PASSWORD"}


def loaded(tmp_path: Any, listener: Any = None, upstream: Any = None, **more: Any) -> Config:
    return configured(tmp_path, LISTENER | (listener or {}), UPSTREAM | (upstream or {}), **more)


def test_neither_users_nor_keys_nor_a_login_are_needed(tmp_path: Any) -> None:
    config = loaded(tmp_path)
    assert config.listeners[0].relays_logins
    assert config.listeners[0].sasl_enabled_mechanisms == ()
    assert exposures(config) == ()


@pytest.mark.parametrize("mechanisms", [[], ["PLAIN", "OAUTHBEARER"]])
def test_tokens_may_be_verified_by_the_proxy_too(tmp_path: Any, mechanisms: list[str]) -> None:
    given = VERIFIES | ({"sasl.enabled.mechanisms": mechanisms} if mechanisms else {})
    (listener,) = loaded(tmp_path, given).listeners
    assert listener.mechanisms_of_proxy() == ("OAUTHBEARER",)
    assert [*listener.token_issuers()] == [""]


@pytest.mark.parametrize("names", [["OAUTHBEARER"], ["GSSAPI", "PLAIN", "AWS_MSK_IAM"]])
def test_without_keys_the_proxy_verifies_nothing(tmp_path: Any, names: list[str]) -> None:
    """Any mechanism may be named."""
    (listener,) = loaded(tmp_path, {"sasl.enabled.mechanisms": names}).listeners
    assert listener.sasl_enabled_mechanisms == tuple(names)
    assert (listener.mechanisms_of_proxy(), listener.token_issuers()) == ((), {})


def test_the_proxy_may_log_in_for_its_own_requests(tmp_path: Any) -> None:
    """Which lends its rights to nobody."""
    config = loaded(tmp_path, upstream={"security.protocol": "SASL_SSL"} | LOGIN)
    assert exposures(config) == ()


@pytest.mark.parametrize(
    ("listener", "more", "problem"),
    [
        ({}, {"upstream": CLEAR}, "upstream.security.protocol: must be SASL_PLAINTEXT or SASL_SSL"),
        (OWN_SASL, {}, "upstream.sasl.mechanism: is required with security.protocol"),
        ({AUDIENCE: "kafka"}, {}, f"{AUDIENCE}: {NO_MEANING}, without sasl.oauthbearer.jwks."),
        ({GROUPS: "groups"}, {}, f"{GROUPS}: {NO_MEANING}, without sasl.oauthbearer.jwks."),
        ({KEYS: "file:jwks.json"}, {}, f"{AUDIENCE}: "),
        (VERIFIES | {MECHANISMS: ["PLAIN"]}, {}, f"{MECHANISMS}: must include OAUTHBEARER"),
        (VERIFIES | {"groups.file": "groups.json"}, {}, f"groups.file: {NO_MEANING}"),
        ({SCRAM_RULES: "DEFAULT"}, {}, f"{SCRAM_RULES}: {NO_MEANING}"),
        ({"groups.file": "groups.json"}, {}, f"groups.file: {NO_MEANING}"),
        (OWN_SASL | {LOGINS: 5}, {"upstream": LOGIN}, f"{LOGINS}: has no meaning with sasl.term"),
        (CLEAR, {}, "sasl.termination: has no meaning with security.protocol: PLAINTEXT"),
        ({}, {"store": {"url": "broker:state.db"}}, "store.url: broker: needs the proxy's own"),
        ({}, {"store": {"users.file": "users.json"}}, "store.users.file: has no meaning with sasl"),
        ({MECHANISMS: ["PLAIN", "PLAIN"]}, {}, f"{MECHANISMS}: names a mechanism twice"),
        ({OPAQUE_RULES: "RULE:x"}, {}, f"{OPAQUE_RULES}: "),
        ({}, {"upstream": {"sasl.username": "proxy"}}, "upstream.sasl.username: has no meaning"),
    ],
)
def test_what_cannot_apply_is_refused(
    tmp_path: Any, listener: Any, more: Any, problem: str
) -> None:
    (tmp_path / "users.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, listener, **more)
    assert str(caught.value).removeprefix("listeners[0].").startswith(problem)
