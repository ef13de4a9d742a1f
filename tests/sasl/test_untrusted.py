"""How deeply untrusted JSON may be nested."""

import subprocess
import sys

import pytest

from sasl.untrusted import MAX_NESTING, fit_for_log, read_object


def nested(depth: int, opening: str = "[", closing: str = "]", *, within: str = "") -> bytes:
    return f'{{"a": {opening * (depth - 1)}{within}{closing * (depth - 1)}}}'.encode()


@pytest.mark.parametrize("within", ["", r'"[[{{\"[[" , "\\", [], {}', "1, " * 10_000 + "2"])
def test_nesting_is_limited(within: str) -> None:
    innermost = 1 if "[]" in within else 0
    assert read_object(nested(MAX_NESTING - innermost, within=within)) is not None
    assert read_object(nested(MAX_NESTING - innermost + 1, within=within)) is None
    assert read_object(nested(10_000, within=within)) is None


def test_objects_are_counted_as_arrays_are() -> None:
    assert read_object(nested(MAX_NESTING, '{"a": ', "}", within="1")) is not None
    assert read_object(nested(MAX_NESTING + 1, '{"a": ', "}", within="1")) is None


def test_brackets_in_strings_nest_nothing() -> None:
    assert read_object(rb'{"a": "\"' + b"[{" * 10_000 + b'"}') is not None


def test_width_is_not_limited() -> None:
    assert read_object(b'{"a": [' + b'{"b": [1]}, ' * 10_000 + b"{}]}") is not None


DEEP = """
import threading
from proxy.config.document import parse
from proxy.errors import ConfigError
from sasl.untrusted import read_object

def read():
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        assert read_object(b'{"a":' + opening * 10_000 + closing * 10_000 + b"}") is None
        assert read_object(opening * 10_000) is None
    try:
        parse(b"[" * 10_000)
    except ConfigError as error:
        assert str(error) == "line 1: is nested too deeply", error
        print("lives")

threading.stack_size(128 * 1024)
thread = threading.Thread(target=read)
thread.start()
thread.join()
"""


def test_the_process_lives_in_a_thread_with_a_small_stack() -> None:
    """128 KiB is what threads have with musl; Python's decoder alone overran them before 3.14."""
    done = subprocess.run(
        [sys.executable, "-c", DEEP], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "lives\n", "")


SECRET = "s3cret/with+signs"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("invalid_client: it's wrong", "invalid_client: it's wrong"),
        ("one\r\ntwo\x1b[31m", "one\\r\\ntwo\\x1b[31m"),
        ("left\u202eright", "left\\u202eright"),
        ("\ud800", "\\ud800"),
        ("y" * 10_000, "y" * 200 + "..."),
    ],
)
def test_what_others_wrote_becomes_one_short_line(text: str, shown: str) -> None:
    """Or a provider could write lines of our log, or paint the terminal that shows it."""
    assert fit_for_log(text, [SECRET]) == shown


@pytest.mark.parametrize(
    "text",
    [
        f"wrong secret {SECRET}",
        f"wrong secret {SECRET.upper()}",
        f"wrong secret {SECRET[:8]}...",
        f"wrong secret ...{SECRET[-8:]}",
    ],
)
def test_what_repeats_a_secret_is_withheld(text: str) -> None:
    assert "not shown" in fit_for_log(text, ["another", SECRET])
    assert SECRET[:8].lower() not in fit_for_log(text, [SECRET]).lower()


def test_a_short_secret_is_withheld_as_a_whole() -> None:
    assert "not shown" in fit_for_log("password pw is wrong", ["pw"])
    assert fit_for_log("p w", ["pw"]) == "p w"
