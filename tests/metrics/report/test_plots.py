"""A plot has to stand where its axis says, and to be read by those who do not see it."""

import re
from itertools import pairwise
from typing import Any

import pytest

from metrics.report import plots
from metrics.report.page import STYLE
from metrics.report.svg import nice_ceiling, short_number

MINUTE_MS = 60_000
WIDTHS = ("wide", "narrow")


def drawn(plot: str, width: str) -> str:
    """The wide or the narrow one of the two."""
    return plot.split('<div class="narrow">')[WIDTHS.index(width)]


def places(text: str, pattern: str) -> list[float]:
    return [float(each) for each in re.findall(pattern, text)]


def bars(text: str) -> list[float]:
    """The middle of each bar of a plot over time."""
    found = re.findall(r'class="storm" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', text)
    return [float(x) + float(width) / 2 for x, width in found]


def labels(text: str) -> dict[str, float]:
    """The labels below the axis, and where their middle is."""
    found = re.findall(r'class="tick" x="([\d.]+)" y="[\d.]+" text-anchor="middle">([^<]*)', text)
    return {label: float(x) for x, label in found}


def storm(minute: int, authentications: int) -> dict[str, Any]:
    return {"minute_ms": minute * MINUTE_MS, "authentications": authentications}


@pytest.mark.parametrize("width", WIDTHS)
def test_two_minutes_stand_each_above_its_own_label(width: str) -> None:
    text = drawn(plots.storms([storm(0, 38), storm(1, 68)]), width)
    assert list(labels(text)) == ["1970-01-01 00:00", "1970-01-01 00:01"]
    assert list(labels(text).values()) == pytest.approx(bars(text), abs=0.2)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("minutes", [1, 2, 3, 480])
def test_the_labels_of_many_minutes_stay_within_the_plot(minutes: int, width: str) -> None:
    """A digit is 7.3 wide, at most."""
    text = drawn(plots.storms([storm(each, 1) for each in range(minutes)]), width)
    (whole,) = places(text, r'viewBox="0 0 (\d+)')
    assert len(labels(text)) == min(minutes, 2)
    for label, middle in labels(text).items():
        assert 7.3 * len(label) / 2 <= middle <= whole - 7.3 * len(label) / 2


def length(up_to_minutes: int, standing: str, connections: int) -> dict[str, Any]:
    return {"up_to_ms": up_to_minutes * MINUTE_MS, "standing": standing, "connections": connections}


LENGTHS = [length(1, "ready", 15), length(1, "not_capable", 25), length(4, "ready", 1)]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_candidate_has_its_line_however_short(width: str) -> None:
    """10 s are a sixth of the class that ends at a minute; 3 minutes half of that up to 4."""
    candidates = [{"lifetime_ms": ms} for ms in (10_000, MINUTE_MS, 3 * MINUTE_MS, 4 * MINUTE_MS)]
    text = drawn(plots.session_lengths(LENGTHS, candidates), width)
    lines = places(text, r'class="mark" x1="([\d.]+)"')
    first, last = places(text, r'class="grid" x1="(\d+)"')[0], places(text, r'x2="(\d+)"')[0]
    column = (last - first) / 3
    assert lines == pytest.approx([first + column * at for at in (1 / 6, 1, 2.5, 3)], abs=0.1)
    assert re.findall(r'class="marked"[^>]*>([^<]*)', text) == ["10 s", "1 min", "3 min", "4 min"]


def test_labels_of_lines_stand_above_the_columns() -> None:
    candidates = [{"lifetime_ms": minutes * MINUTE_MS} for minutes in (1, 2, 3, 4)]
    text = plots.session_lengths([length(1, "ready", 4)], candidates)
    marked = places(text, r'class="marked" x="[\d.]+" y="([\d.]+)"')
    columns = places(text, r'class="ready" x="[\d.]+" y="([\d.]+)"')
    assert max(marked) < min(columns)


def test_a_plot_tells_its_numbers_to_those_who_do_not_see_it() -> None:
    text = plots.session_lengths(LENGTHS, [{"lifetime_ms": MINUTE_MS}])
    assert "up to 1 min: 40 connections (25 not capable · 15 ready)" in text
    assert re.findall('aria-label="([^"]*)"', text)[0].count(";") == 2
    assert "at most 68, at 1970-01-01 00:01" in plots.storms([storm(0, 38), storm(1, 68)])
    row = {"principal": "User:alice", "clients": 3, "ready": 1, "failing": 2}
    row |= dict.fromkeys(("unproven", "not_capable", "unknown"), 0)
    assert "2 failing · 1 ready" in plots.principal_bars([row], 1)


def test_a_legend_names_what_occurs() -> None:
    assert re.findall(r'class="(\w+)"></i>', plots.legend(["failing", "ready", "ready"])) == [
        "ready",
        "failing",
    ]


@pytest.mark.parametrize(
    ("value", "top"), [(0, 4), (4, 4), (5, 8), (9, 12), (11, 12), (13, 20), (950, 1000)]
)
def test_an_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert nice_ceiling(value) == top


def test_an_axis_counts_in_whole_numbers() -> None:
    """There is no half of a connection."""
    tops = [nice_ceiling(value) for value in range(1, 20_000)]
    assert all(top % 4 == 0 for top in tops)
    assert all(value <= top for value, top in enumerate(tops, start=1))
    assert all(lower <= higher for lower, higher in pairwise(tops))


def test_ticks_are_short() -> None:
    assert (short_number(950), short_number(1234), short_number(3e6)) == ("950", "1.23 k", "3 M")


def luminance(colour: str) -> float:
    """WCAG 2.2, "relative luminance"."""
    wide = colour if len(colour) == 7 else "#" + "".join(each * 2 for each in colour[1:])
    parts = [int(wide[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


TEXT = ("ink", "soft", "accent")
COLOURS = ("ready", "unproven", "not_capable", "failing", "unknown")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_read_and_what_is_looked_at_has_contrast(scheme: str) -> None:
    """WCAG 2.2 AA: 4.5 for text (1.4.3), 3 for what a plot is made of (1.4.11)."""
    light, dark = (
        dict(re.findall(r"--(\w+):(#\w+)", block)) for block in re.findall(r":root{([^}]*)}", STYLE)
    )
    named = light if scheme == "light" else light | dark
    for ground in ("paper", "card", "code"):
        for name in TEXT:
            assert contrast(named[name], named[ground]) >= 4.5, (name, ground)
    for name in COLOURS:
        assert contrast(named[name], named["card"]) >= 3, name
