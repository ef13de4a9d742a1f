import dataclasses
import json
import tracemalloc
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from metrics.event_lines import MAX_TEXTS_KEPT, bounded_text, to_json_line
from metrics.events import (
    EVENT_SCHEMA,
    MAX_INT64,
    MAX_TEXT_CHARS,
    AuthInterval,
    EventKind,
    IntervalEnd,
    SessionEvent,
    connection_ids,
    schema_ddl,
)
from tests.metrics.given import event

INTERVAL = AuthInterval(
    number=1,
    authenticated_ms=5,
    session_lifetime_ms=0,
    announced_lifetime_ms=0,
    requests=3,
    ended_by=IntervalEnd.CLOSED,
)


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


def test_null_fields_are_left_out() -> None:
    line = json.loads(to_json_line(event(principal=None, since_auth_ms=0, final=False)))
    assert "principal" not in line
    assert line["since_auth_ms"] == 0
    assert line["final"] is False


@given(st.text(max_size=20), st.integers(-MAX_INT64, MAX_INT64), st.booleans())
def test_a_line_is_what_json_would_write(text: str, number: int, final: bool) -> None:
    """It is put together by hand."""
    row = event(
        kind=EventKind.SUMMARY,
        client_id=text,
        credential_lifetime_ms=number,
        final=final,
        intervals=(INTERVAL, INTERVAL),
        reauth_latencies=(),
    )
    line = to_json_line(row)
    assert line == json.dumps(json.loads(line), separators=(",", ":"))
    assert json.loads(line) == {
        name: value
        for name, value in json.loads(json.dumps(dataclasses.asdict(row))).items()
        if value is not None and name != "intervals"
    } | {"intervals": json.loads(line)["intervals"]}


def test_rows_within_a_row() -> None:
    line = json.loads(to_json_line(event(kind=EventKind.SUMMARY, intervals=(INTERVAL,))))
    assert line["kind"] == "summary"
    assert line["intervals"] == [
        {
            "number": 1,
            "authenticated_ms": 5,
            "session_lifetime_ms": 0,
            "announced_lifetime_ms": 0,
            "requests": 3,
            "ended_by": "closed",
        }
    ]


@given(st.text(st.characters(), max_size=600))
def test_no_client_forges_a_line(text: str) -> None:
    """Newlines, escapes of terminals, lone surrogates: all end up inside one JSON string."""
    line = to_json_line(event(client_id=text))
    assert line.isascii()
    assert line.isprintable() or "\x7f" in text
    assert "\n" not in line
    assert json.loads(line)["client_id"] == bounded_text(text)
    assert len(bounded_text(text)) <= MAX_TEXT_CHARS
    bounded_text(text).encode("utf-8")


def test_cut_text_shows_that_it_was_cut() -> None:
    """Two long principals must not pass for one whole name."""
    assert bounded_text("x" * MAX_TEXT_CHARS) == "x" * MAX_TEXT_CHARS
    assert bounded_text("x" * (MAX_TEXT_CHARS + 1)).endswith("x…")


@given(st.integers())
def test_numbers_fit_a_signed_64_bit_integer(number: int) -> None:
    """A token may claim to live for 10**30 ms; Spark's long would become null or overflow."""
    written = json.loads(to_json_line(event(credential_lifetime_ms=number)))
    assert -MAX_INT64 - 1 <= written["credential_lifetime_ms"] <= MAX_INT64


def test_connection_ids_never_repeat_across_starts() -> None:
    first, second = (set(islice(connection_ids(), 100)) for _ in range(2))
    assert len(first | second) == 200


def test_texts_that_are_never_seen_again_take_no_memory() -> None:
    """Strangers choose client ids: what is kept of them has an end."""
    for number in range(2 * MAX_TEXTS_KEPT):
        assert f"stranger-{number}" in to_json_line(event(client_id=f"stranger-{number}"))
    long = to_json_line(event(principal="x" * 1_000_000))
    assert len(long) < 2_000
    tracemalloc.start()
    for number in range(4 * MAX_TEXTS_KEPT):
        to_json_line(
            event(client_id=f"{number}" + "é" * 250, principal=f"{number}" + "x" * 100_000)
        )
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 8 * 1024 * 1024
