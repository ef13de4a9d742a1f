"""Settings of the delivery of events."""

from pathlib import Path
from typing import Any

import pytest

from metrics.delivery.selection import Kinds, parse_target
from proxy.config import Config
from proxy.errors import ConfigError
from tests.support import settings

SCRAM = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "proxy",
    "sasl.password": "env:PASSWORD",
}
TO = {"to": "kafka:a"}
SERVERS = {"bootstrap.servers": "b:1"}
CLEAR = {"security.protocol": "SASL_PLAINTEXT"}
RELAYED = {"sasl.termination": "broker"}


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


@pytest.mark.parametrize(
    ("deliver", "more", "problem"),
    [
        ({"to": "topic"}, {}, r"events\.deliver\.to: must be kafka:TOPIC"),
        ({"to": 7}, {}, r"events\.deliver\.to: must be kafka:TOPIC.*, got 7"),
        ({"to": "kafka:a/b"}, {}, "the topic must be"),
        (TO, {"directory": None}, r"events\.directory: is required with deliver\.to"),
        (TO | {"kinds": "most"}, {}, "must be 'all' or 'summary', got 'most'"),
        (TO | {"hide": ["kind"]}, {}, "must be one of client_host"),
        ({"kafka": SERVERS}, {}, r"kafka\.bootstrap\.servers: has no meaning without to: kafka:"),
        ({"to": "file:///a"}, {}, r"must be kafka:TOPIC; a log shipper .* docs/fleet\.md"),
        (TO | {"kafka": SCRAM}, {}, r"kafka\.bootstrap\.servers: is required with"),
        (TO | {"kafka": SERVERS | CLEAR}, {}, r"kafka\.sasl\.mechanism: is required with security"),
        (TO, {"listener": RELAYED, "upstream": CLEAR}, "is required: upstream configures no login"),
    ],
)
def test_mistakes(deliver: dict[str, Any], more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config(deliver, **more)


def test_no_password_in_an_address_is_shown() -> None:
    with pytest.raises(ConfigError) as raised:
        config({"to": "https://user:secret@example.test"})
    assert "secret" not in str(raised.value)
