"""Untrusted text in a log."""

import pytest

from sasl.log_text import fit_for_log

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
