"""Creation of the topic of the events: errors that need no broker."""

import pytest

from proxy.delivery.topic_admin import TopicError, create_topic
from tests.support.proxy_process import refusal


@pytest.mark.parametrize(
    "option",
    [
        *("--partitions 0", "--partitions 200000", "--replication-factor -2"),
        *("--replication-factor 0", "--replication-factor 20000"),
    ],
)
def test_impossible_numbers_are_usage_errors(option: str) -> None:
    words = ("events", "topic", "create", "t", "--bootstrap-server", "127.0.0.1:1")
    assert option.split()[0] in refusal(*words, *option.split())


@pytest.mark.parametrize(("partitions", "replicas"), [(200_000, -1), (1, -2), (2**40, 1)])
def test_numbers_that_librdkafka_does_not_take_are_an_error(partitions: int, replicas: int) -> None:
    numbers = {"partitions": partitions, "replication_factor": replicas, "retention_ms": -1}
    with pytest.raises(TopicError):
        create_topic("t", {"bootstrap.servers": "127.0.0.1:1"}, **numbers)
