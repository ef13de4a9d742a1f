"""What tests/support/store.py says that Kafka answers, asked of Kafka."""

from typing import Any

import pytest

from proxy.wire.schema import Message, replace
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.wire_client import ask
from tests.support.store import SEEN, Change, request_of, upsert

_ALTER, _DESCRIBE = 51, 50


@pytest.mark.kafka
def test_the_expected_answers_are_kafkas(kafka: KafkaCluster) -> None:
    """Each case has users of its own, so that none sees another's."""
    for number, (changes, answer) in enumerate(SEEN):
        _alter(kafka, (_renamed(upsert("old"), number),))
        expected = {_name(user, number): outcome for user, outcome in answer.items()}
        assert _alter(kafka, [_renamed(one, number) for one in changes]) == expected, changes

    described = ask(kafka.address(), _DESCRIBE, 0, {"users": [{"name": "x"}, {"name": "x"}]})
    assert [(one.user, one.error_code.name, one.error_message) for one in described.results] == [
        (
            "x",
            "duplicate_resource",
            "Cannot describe SCRAM credentials for the same user twice in a single request: x",
        )
    ]


def _alter(kafka: KafkaCluster, changes: Any) -> dict[str, tuple[str, str | None]]:
    response = ask(kafka.address(), _ALTER, 0, _plain(request_of(changes)))
    return {one.user: (one.error_code.name, one.error_message) for one in response.results}


def _renamed(change: Change, number: int) -> Change:
    return replace(change, name=_name(change.name, number))


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return {one.name: _plain(getattr(value, one.name)) for one in value.FIELDS}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _name(name: str, number: int) -> str:
    return f"{number}-{name}" if name else ""
