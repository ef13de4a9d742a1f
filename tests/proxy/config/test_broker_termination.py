"""Settings of listeners whose brokers authenticate the clients (`sasl.termination: broker`)."""

from typing import Any

import pytest

from proxy.config import Config
from proxy.config.exposure import exposures
from proxy.errors import ConfigError
from tests.support.settings import configured
from tests.support.tables import table

UPSTREAM = {"bootstrap.servers": "broker.example:9092", "security.protocol": "SASL_PLAINTEXT"}
LISTENER = {"sasl.termination": "broker"}
KEYS = "sasl.oauthbearer.jwks.endpoint.url"
AUDIENCE = "sasl.oauthbearer.expected.audience"
GROUPS = "sasl.oauthbearer.groups.claim.name"
VERIFIES = {
    KEYS: "file:jwks.json",
    AUDIENCE: "kafka",
    "sasl.oauthbearer.expected.issuer": "https://issuer.test",
    GROUPS: "groups",
}
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


@pytest.mark.parametrize(("listener", "more", "problem"), table(__file__, "termination_mistakes"))
def test_what_cannot_apply_is_refused(
    tmp_path: Any, listener: Any, more: Any, problem: str
) -> None:
    (tmp_path / "users.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, listener, **more)
    assert str(caught.value).removeprefix("listeners[0].").startswith(problem)
