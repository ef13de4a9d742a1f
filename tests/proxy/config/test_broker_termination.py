"""Settings of listeners whose brokers authenticate the clients (`sasl.termination: broker`)."""

from typing import Any

import pytest

from proxy.config import Config
from proxy.config.exposure import exposures
from proxy.errors import ConfigError
from tests.support.settings import configured

UPSTREAM = {"bootstrap.servers": "broker.example:9092", "security.protocol": "SASL_PLAINTEXT"}
LISTENER = {"sasl.termination": "broker"}
VERIFIES = {
    "sasl.oauthbearer.jwks.endpoint.url": "file:jwks.json",
    "sasl.oauthbearer.expected.audience": "kafka",
    "sasl.oauthbearer.expected.issuer": "https://issuer.test",
    "sasl.oauthbearer.groups.claim.name": "groups",
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


def test_without_keys_the_proxy_verifies_nothing(tmp_path: Any) -> None:
    (listener,) = loaded(tmp_path, {"sasl.enabled.mechanisms": ["OAUTHBEARER"]}).listeners
    assert (listener.mechanisms_of_proxy(), listener.token_issuers()) == ((), {})


def test_any_mechanism_may_be_named(tmp_path: Any) -> None:
    names = ["GSSAPI", "PLAIN", "AWS_MSK_IAM"]
    assert loaded(tmp_path, {"sasl.enabled.mechanisms": names}).listeners[
        0
    ].sasl_enabled_mechanisms == tuple(names)


def test_the_proxy_may_log_in_for_its_own_requests(tmp_path: Any) -> None:
    """Which lends its rights to nobody."""
    config = loaded(tmp_path, upstream={"security.protocol": "SASL_SSL"} | LOGIN)
    assert exposures(config) == ()


@pytest.mark.parametrize(
    ("listener", "upstream", "more", "problem"),
    [
        (
            {},
            {"security.protocol": "PLAINTEXT"},
            {},
            "upstream.security.protocol: must be SASL_PLAINTEXT or SASL_SSL with sasl.termination:"
            " broker",
        ),
        (
            OWN_SASL,
            {},
            {},
            "upstream.sasl.mechanism: is required with security.protocol: SASL_PLAINTEXT",
        ),
        (
            {"sasl.oauthbearer.expected.audience": "kafka"},
            {},
            {},
            "listeners[0].sasl.oauthbearer.expected.audience: has no meaning with"
            " sasl.termination: broker, which verifies logins itself, without"
            " sasl.oauthbearer.jwks.endpoint.url",
        ),
        (
            {"sasl.oauthbearer.groups.claim.name": "groups"},
            {},
            {},
            "listeners[0].sasl.oauthbearer.groups.claim.name: has no meaning with"
            " sasl.termination: broker, which verifies logins itself, without"
            " sasl.oauthbearer.jwks.endpoint.url",
        ),
        (
            {"sasl.oauthbearer.jwks.endpoint.url": "file:jwks.json"},
            {},
            {},
            "listeners[0].sasl.oauthbearer.expected.audience: ",
        ),
        (
            VERIFIES | {"sasl.enabled.mechanisms": ["PLAIN"]},
            {},
            {},
            "listeners[0].sasl.enabled.mechanisms: must include OAUTHBEARER, because signing keys"
            " are configured",
        ),
        (
            VERIFIES | {"groups.file": "groups.json"},
            {},
            {},
            "listeners[0].groups.file: has no meaning with sasl.termination: broker, which"
            " verifies logins itself",
        ),
        (
            {"sasl.scram.principal.mapping.rules": "DEFAULT"},
            {},
            {},
            "listeners[0].sasl.scram.principal.mapping.rules: has no meaning with"
            " sasl.termination: broker, which verifies logins itself",
        ),
        (
            {"groups.file": "groups.json"},
            {},
            {},
            "listeners[0].groups.file: has no meaning with sasl.termination: broker, which"
            " verifies logins itself",
        ),
        (
            OWN_SASL | {"sasl.broker.max.logins": 5},
            LOGIN,
            {},
            "listeners[0].sasl.broker.max.logins: has no meaning with sasl.termination: proxy",
        ),
        (
            {"security.protocol": "PLAINTEXT"},
            {},
            {},
            "listeners[0].sasl.termination: has no meaning with security.protocol: PLAINTEXT",
        ),
        (
            {},
            {},
            {"store": {"url": "broker:state.db"}},
            "store.url: broker: needs the proxy's own login: set upstream.sasl.mechanism",
        ),
        (
            {},
            {},
            {"store": {"users.file": "users.json"}},
            "store.users.file: has no meaning with sasl.termination: broker: brokers have the"
            " users",
        ),
        (
            {"sasl.enabled.mechanisms": ["PLAIN", "PLAIN"]},
            {},
            {},
            "listeners[0].sasl.enabled.mechanisms: names a mechanism twice",
        ),
        (
            {"sasl.broker.opaque.principal.mapping.rules": "RULE:x"},
            {},
            {},
            "listeners[0].sasl.broker.opaque.principal.mapping.rules: ",
        ),
        (
            {},
            {"sasl.username": "proxy"},
            {},
            "upstream.sasl.username: has no meaning with security.protocol without sasl.mechanism",
        ),
    ],
)
def test_what_cannot_apply_is_refused(
    tmp_path: Any, listener: Any, upstream: Any, more: Any, problem: str
) -> None:
    (tmp_path / "users.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, listener, upstream, **more)
    assert str(caught.value).startswith(problem)
