"""Quotas with real clients: setting, describing and exceeding them."""

import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import confluent_kafka as confluent

from proxy.quota.model import QuotaKey
from proxy.wire.apis import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tests.support.kafka.acl_differential.side import Client
from tests.support.kafka.clients import User
from tests.support.kafka.cluster import DEADLINE_SECONDS, KafkaCluster, wait_until
from tests.support.kafka.wire_client import Address, Outcome
from tests.support.proxy_process import ProxyProcess

SCRAM = "SCRAM-SHA-256"
WINDOW_SECONDS = 10
"""Usage within them passes without throttling: quota.window.num less the current sample."""
DESCRIBE, ALTER = 48, 49
PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
CONNECTIONS = "connection_creation_rate"

_OPTIONS = {"user": "--user", "client_id": "--client-id", "ip": "--ip"}
_MATCH_EXACT, _MATCH_DEFAULT = 0, 1


# --- setting quotas


def set_quota(proxy: ProxyProcess, key: str, limit: float, **names: str | None) -> None:
    """`reauth-proxy quotas set`; a name of None is the default."""
    options = [
        part
        for kind, name in names.items()
        for part in ([f"{_OPTIONS[kind]}-defaults"] if name is None else [_OPTIONS[kind], name])
    ]
    proxy.command("quotas", "set", f"{key}={limit:g}", *options)


def remove_quotas(proxy: ProxyProcess) -> None:
    for row in json.loads(proxy.command("quotas", "list", "--output", "json")):
        options = [
            part
            for kind, name in row["entity"].items()
            for part in ([f"--{kind}-defaults"] if name is None else [f"--{kind}", name])
        ]
        proxy.command("quotas", "remove", *options)


def set_kafkas(kafka: KafkaCluster, key: str, limit: float | None, kind: str, name: str) -> None:
    """The same on Kafka itself; None removes. Return when the broker knows of it."""
    kafka.ask(ALTER, 1, **alteration(entities((kind, name)), ops((key, limit)))[1])
    asked = description((kind, _MATCH_EXACT, name), strict=True)[1]

    def known() -> bool:
        entries = kafka.ask(DESCRIBE, 1, **asked).entries
        found = [one.value for entry in entries for one in entry.values if one.key == key]
        return found == ([] if limit is None else [limit])

    wait_until(known, what=f"Kafka does not know {key} of {name}")


def remove_kafkas(kafka: KafkaCluster) -> None:
    """Remove all quotas of Kafka itself; return when the broker knows of it."""
    asked = description()[1]

    def none_left() -> bool:
        entries = kafka.ask(DESCRIBE, 1, **asked).entries
        for entry in entries:
            parts = entities(*((one.entity_type, one.entity_name) for one in entry.entity))
            removal = alteration(parts, ops(*((one.key, None) for one in entry.values)))
            kafka.ask(ALTER, 1, **removal[1])
        return not entries

    wait_until(none_left, what="Kafka keeps quotas")


# --- the APIs


def entities(*parts: tuple[str, str | None]) -> list[dict[str, str | None]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in parts]


def ops(*changes: tuple[str, float | None]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in changes]


def alteration(parts: list[Any], changes: list[Any]) -> Any:
    entries = [{"entity": parts, "ops": changes}]
    return ALTER, {"entries": entries, "validate_only": False}


def description(*components: tuple[str, int, str | None], strict: bool = False) -> Any:
    listed = [
        {"entity_type": kind, "match_type": match, "match": name}
        for kind, match, name in components
    ]
    return DESCRIBE, {"components": listed, "strict": strict}


# --- exceeding quotas


def told_by_librdkafka(who: User, bootstrap: str, topic: str, size: int) -> float:
    """Produce a message; return librdkafka's longest throttle time in seconds."""
    reported: list[float] = []
    settings = who.confluent(bootstrap, client_id="any", acks=1)
    settings["throttle_cb"] = lambda event: reported.append(event.throttle_time)
    producer = confluent.Producer(settings)
    producer.produce(topic, b"x" * size)
    assert producer.flush(DEADLINE_SECONDS) == 0
    producer.poll(0)
    return max(reported, default=0.0)


MUTATIONS = QuotaKey.CONTROLLER_MUTATION_RATE.value


METADATA = 3


TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An answer without names that belong to one side."""

    errors: Mapping[str, int]
    throttle_time: float
    sent: float
    answered: float

    def debt_since(self, first: "Told") -> tuple[float, float]:
        """Bounds of the seconds from the first charge to the end of the debt.

        Time pays the debt off while requests are on their way, so this is what two servers have
        in common. When a request was charged is known as well as it took.
        """
        return (
            self.sent + self.throttle_time - first.answered,
            self.answered + self.throttle_time - first.sent,
        )


class Side:
    """A server under test, with its own user and topics.

    Each request has a connection of its own, as the one that was throttled is held.
    """

    def __init__(self, address: Address, name: str) -> None:
        self._address = address
        self._user = name
        self._prefix = f"{name}-"

    def name(self, short: str) -> str:
        return self._prefix + short

    def ask(self, api_key: int, version: int, fields: Mapping[str, Any]) -> Told:
        with closing(Client(self._address, self._user)) as client:
            client.log_in()
            sent = time.monotonic()
            answer = client.ask(api_key, version, dict(fields))
            answered = time.monotonic()
        assert not isinstance(answer, Outcome), answer
        results = next(
            getattr(answer, name)
            for name in ("topics", "responses", "results")
            if hasattr(answer, name)
        )
        return Told(
            errors={one.name.removeprefix(self._prefix): int(one.error_code) for one in results},
            throttle_time=answer.throttle_time.total_seconds(),
            sent=sent,
            answered=answered,
        )

    def create(self, version: int, *, validate: bool = False, **topics: int) -> Told:
        listed = [
            {
                "name": self.name(name),
                "num_partitions": partitions,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            for name, partitions in topics.items()
        ]
        fields = {"topics": listed, "timeout": TIMEOUT_MS, "validate_only": validate}
        return self.ask(CREATE_TOPICS, version, fields)

    def grow(self, version: int, **topics: int) -> Told:
        listed = [
            {"name": self.name(name), "count": count, "assignments": None}
            for name, count in topics.items()
        ]
        fields = {"topics": listed, "timeout": TIMEOUT_MS, "validate_only": False}
        return self.ask(CREATE_PARTITIONS, version, fields)

    def delete(self, version: int, *topics: str) -> Told:
        names = [self.name(name) for name in topics]
        fields: dict[str, Any] = {"timeout": TIMEOUT_MS, "topic_names": names}
        if version >= 6:
            listed = [{"name": name, "topic_id": None} for name in names]
            fields = {"timeout": TIMEOUT_MS, "topics": listed}
        return self.ask(DELETE_TOPICS, version, fields)

    def until_known(self, **partitions: int) -> None:
        """Wait until the broker knows of the controller's changes."""
        names = [{"name": self.name(name), "topic_id": None} for name in partitions]
        fields = {
            "topics": names,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }

        def known() -> bool:
            with closing(Client(self._address, self._user)) as client:
                topics = client.ask(METADATA, 12, fields).topics
            return [len(one.partitions) for one in topics] == list(partitions.values())

        wait_until(known, what=f"not known: {partitions}")
