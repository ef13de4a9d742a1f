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
        (
            {"to": "kafka:a"},
            {"directory": None},
            r"events\.directory: is required with deliver\.to",
        ),
        ({"to": "kafka:a", "kinds": "most"}, {}, "must be 'all' or 'summary', got 'most'"),
        ({"to": "kafka:a", "hide": ["kind"]}, {}, "must be one of client_host"),
        (
            {"kafka": {"bootstrap.servers": "b:1"}},
            {},
            r"kafka\.bootstrap\.servers: has no meaning without to: kafka:",
        ),
        ({"to": "file:///a"}, {}, r"must be kafka:TOPIC; a log shipper .* docs/fleet\.md"),
        ({"to": "kafka:a", "kafka": SCRAM}, {}, r"kafka\.bootstrap\.servers: is required with"),
        (
            {
                "to": "kafka:a",
                "kafka": {"bootstrap.servers": "b:1", "security.protocol": "SASL_PLAINTEXT"},
            },
            {},
            r"kafka\.sasl\.mechanism: is required with security\.protocol: SASL_PLAINTEXT",
        ),
        (
            {"to": "kafka:a"},
            {"listener": RELAYED, "upstream": {"security.protocol": "SASL_PLAINTEXT"}},
            "is required: upstream configures no login of the proxy",
        ),
    ],
)
def test_mistakes(deliver: dict[str, Any], more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config(deliver, **more)


def test_no_password_in_an_address_is_shown() -> None:
    with pytest.raises(ConfigError) as raised:
        config({"to": "https://user:secret@example.test"})
    assert "secret" not in str(raised.value)
