"""Creation of the topic of the events: errors that need no broker."""

import pytest
from typer.testing import CliRunner

from proxy.cli import app
from proxy.delivery.topic_admin import TopicError, create_topic


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
    numbers = {"partitions": partitions, "replication_factor": replicas, "retention_ms": -1}
    with pytest.raises(TopicError):
        create_topic("t", {"bootstrap.servers": "127.0.0.1:1"}, **numbers)
