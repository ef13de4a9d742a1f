"""Creation of the topic of the events, through librdkafka's AdminClient."""

from contextlib import suppress
from typing import Any, Final

import confluent_kafka.admin
from confluent_kafka import KafkaException

from metrics.delivery.kafka_errors import Problems
from proxy.delivery.topic import Settings
from proxy.errors import ProxyError, printable

TIMEOUT_SECONDS: Final = 30.0
"""Seconds in which brokers must answer."""

_admin: Any = confluent_kafka.admin
"""librdkafka's administration, whose types are incomplete."""


class TopicError(ProxyError):
    """The topic cannot be created; the text has the reason."""


def create_topic(
    topic: str, settings: Settings, *, partitions: int, replication_factor: int, retention_ms: int
) -> None:
    """Create it; a replication factor of -1 is the brokers' default. Raises TopicError."""
    problems, client = Problems(), None
    fixed: dict[str, Any] = {"error_cb": problems.note, "log_level": 0}
    try:
        client = _admin.AdminClient({**settings, **fixed})
        new = _admin.NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=replication_factor,
            config={"cleanup.policy": "delete", "retention.ms": str(retention_ms)},
        )
        client.create_topics([new], request_timeout=TIMEOUT_SECONDS)[topic].result()
    except (ValueError, OverflowError) as error:  # about numbers that librdkafka rejects
        raise TopicError(str(error)) from None
    except SystemError:  # if a callback fails meanwhile
        raise TopicError(printable(problems.explained(None))) from None
    except KafkaException as error:
        if client is None:
            raise TopicError(error.args[0].str()) from None
        with suppress(KafkaException):
            client.poll(0)  # records why a connection failed
        raise TopicError(printable(problems.explained(error.args[0]))) from None
