import dataclasses
from itertools import islice

from metrics.events import EVENT_SCHEMA, SessionEvent, connection_ids, schema_ddl


def test_every_field_has_a_meaning_and_a_type() -> None:
    assert [column.name for column in EVENT_SCHEMA] == [
        column.name for column in dataclasses.fields(SessionEvent)
    ]
    assert all(column.meaning and column.kinds for column in EVENT_SCHEMA)
    assert {column.type for column in EVENT_SCHEMA if "<" not in column.type} == {
        "long",
        "string",
        "boolean",
    }


def test_ddl_names_structs_as_spark_does() -> None:
    ddl = schema_ddl()
    assert ddl.startswith("schema_version BIGINT, kind STRING, timestamp_ms BIGINT")
    assert "final BOOLEAN" in ddl
    assert "reauth_latencies array<struct<bucket:bigint,count:bigint>>" in ddl
    assert "ended_since_auth_ms:bigint,ended_by:string>>" in ddl


def test_connection_ids_never_repeat_across_starts() -> None:
    first, second = (set(islice(connection_ids(), 100)) for _ in range(2))
    assert len(first | second) == 200
