import dataclasses
from itertools import islice

from docs.generate import meanings
from metrics.event_schema import EVENT_SCHEMA, SessionEvent
from metrics.events import connection_ids


def test_every_field_has_a_meaning_and_a_type() -> None:
    assert [column.name for column in EVENT_SCHEMA] == [
        column.name for column in dataclasses.fields(SessionEvent)
    ]
    assert all(column.kinds for column in EVENT_SCHEMA)
    assert [*meanings(SessionEvent)] == [column.name for column in EVENT_SCHEMA]
    assert {column.type for column in EVENT_SCHEMA if "<" not in column.type} == {
        "long",
        "string",
        "boolean",
    }


def test_connection_ids_never_repeat_across_starts() -> None:
    first, second = (set(islice(connection_ids(), 100)) for _ in range(2))
    assert len(first | second) == 200
