import json
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from metrics.event_lines import MAX_CACHED_TEXTS, Line, bounded_text
from metrics.events import MAX_INT64, MAX_TEXT_CHARS


def written(text: str) -> str:
    """A text in a line, by either way into it: both write the same."""
    line, same = Line(), Line()
    line.text("said", text)
    same.unique_text("said", text)
    assert line.finish() == same.finish()
    return line.finish()


@given(st.text(max_size=20), st.integers(-MAX_INT64, MAX_INT64), st.booleans())
def test_a_line_is_what_json_would_write(text: str, number: int, flag: bool) -> None:
    """It is put together by hand."""
    row = Line()
    row.number("number", number)
    line = Line()
    line.text("text", text)
    line.number("number", number)
    line.flag("flag", flag)
    line.rows("rows", [row.finish()] * 2)
    line.rows("none", [])
    said = {
        "text": bounded_text(text),
        "number": number,
        "flag": flag,
        "rows": [{"number": number}] * 2,
        "none": [],
    }
    assert line.finish() == json.dumps(said, separators=(",", ":"))


def test_what_is_null_is_left_out() -> None:
    line = Line()
    line.optional_text("text", None)
    line.optional_number("number", None)
    assert line.finish() == "{}"
    line.optional_text("text", "")
    line.optional_number("number", 0)
    assert line.finish() == '{"text":"","number":0}'


@given(st.text(st.characters(), max_size=600))
def test_no_client_forges_a_line(text: str) -> None:
    """Newlines, escapes of terminals, lone surrogates: all end up inside one JSON string."""
    line = written(text)
    assert line.isascii()
    assert line.isprintable() or "\x7f" in text
    assert "\n" not in line
    assert json.loads(line) == {"said": bounded_text(text)}
    assert len(bounded_text(text)) <= MAX_TEXT_CHARS
    bounded_text(text).encode("utf-8")


def test_cut_text_shows_that_it_was_cut() -> None:
    """Two long principals must not pass for one whole name."""
    assert bounded_text("x" * MAX_TEXT_CHARS) == "x" * MAX_TEXT_CHARS
    assert bounded_text("x" * (MAX_TEXT_CHARS + 1)).endswith("x…")


@given(st.integers())
def test_numbers_fit_a_signed_64_bit_integer(number: int) -> None:
    """A token may claim to live for 10**30 ms; Spark's long would become null or overflow."""
    line = Line()
    line.number("lifetime", number)
    assert -MAX_INT64 - 1 <= json.loads(line.finish())["lifetime"] <= MAX_INT64


def test_texts_that_are_never_seen_again_take_no_memory() -> None:
    """Anybody can choose client ids: the cache of texts is bounded."""
    for number in range(2 * MAX_CACHED_TEXTS):
        assert f"client-{number}" in written(f"client-{number}")
    assert len(written("x" * 1_000_000)) < 2_000
    tracemalloc.start()
    for number in range(4 * MAX_CACHED_TEXTS):
        written(f"{number}" + "é" * 250)
        written(f"{number}" + "x" * 100_000)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 8 * 1024 * 1024
