"""Administration of the topic of the events: what needs no broker."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from typer.testing import CliRunner

from proxy.cli import app
from proxy.delivery.topic_admin import TopicAdmin, TopicError, newest_ms, offset


def answer(at: int, time_ms: int = -1) -> "Future[Any]":
    made: Future[Any] = Future()
    made.set_result(SimpleNamespace(offset=at, timestamp=time_ms))
    return made


@pytest.mark.parametrize("name", ["LEADER_NOT_AVAILABLE", "_UNSUPPORTED_FEATURE"])
def test_a_partition_that_gives_no_answer_costs_its_numbers_alone(name: str) -> None:
    """As one without a leader, or brokers that do not know the question."""
    failed: Future[Any] = Future()
    failed.set_exception(KafkaException(KafkaError(getattr(KafkaError, name))))
    assert offset(failed) is None
    assert newest_ms(failed) is None


def test_an_empty_partition_has_no_newest_message() -> None:
    assert offset(answer(0)) == 0
    assert newest_ms(answer(-1)) is None
    assert newest_ms(answer(0, 5)) == 5


@pytest.mark.parametrize(
    "options",
    [
        ["--partitions", "0"],
        ["--partitions", "200000"],
        ["--replication-factor", "-2"],
        ["--replication-factor", "0"],
        ["--replication-factor", "20000"],
    ],
    ids=" ".join,
)
def test_impossible_numbers_are_usage_errors(options: list[str]) -> None:
    arguments = ["events", "topic", "create", "t", "--bootstrap-server", "127.0.0.1:1"]
    result = CliRunner().invoke(app, [*arguments, *options])
    assert result.exit_code == 2
    assert options[0] in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("partitions", "replicas"), [(200_000, -1), (1, -2), (2**40, 1)])
def test_numbers_that_librdkafka_does_not_take_are_an_error(partitions: int, replicas: int) -> None:
    admin = TopicAdmin("t", {"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(TopicError):
        admin.create(partitions, replicas, -1)
