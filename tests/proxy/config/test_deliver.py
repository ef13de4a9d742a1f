"""Settings of the delivery of events."""

from pathlib import Path
from typing import Any

import pytest

from metrics.delivery.selection import Kinds, parse_target
from proxy.config import Config
from proxy.errors import ConfigError
from tests.support import settings
from tests.support.tables import table

SCRAM = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "proxy",
    "sasl.password": "env:PASSWORD",
}


def config(
    deliver: dict[str, Any],
    *,
    directory: str | None = "events",
    upstream: dict[str, Any] | None = None,
    listener: dict[str, Any] | None = None,
) -> Config:
    brokers = {"bootstrap.servers": "kafka:9092", **(upstream or {})}
    events = {"directory": directory, "deliver": deliver}
    return settings.configured(Path("/"), listener or settings.SCRAM, brokers, events=events)


def test_nothing_is_delivered_by_default() -> None:
    assert config({}).events.deliver.to is None


def test_settings() -> None:
    kafka = {"bootstrap.servers": "events:9092", **SCRAM}
    found = config(
        {
            "to": "kafka:sessions",
            "kinds": "summary",
            "hide": "client_host, client_id",
            "kafka": kafka,
        }
    ).events.deliver
    assert found.to == parse_target("kafka:sessions")
    assert found.kinds is Kinds.SUMMARY
    assert found.hide == ("client_host", "client_id")
    assert str(found.kafka.bootstrap_servers[0]) == "events:9092"
    assert found.drain_ms == 10_000


@pytest.mark.parametrize(("deliver", "more", "problem"), table(__file__, "deliver_mistakes"))
def test_mistakes(deliver: dict[str, Any], more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config(deliver, **more)


def test_no_password_in_an_address_is_shown() -> None:
    with pytest.raises(ConfigError) as raised:
        config({"to": "https://user:secret@example.test"})
    assert "secret" not in str(raised.value)
