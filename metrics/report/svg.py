"""The plots of the report: SVG text, drawn in units of CSS pixels, coloured by the page's classes.

A plot is drawn for a width; the page holds a wide and a narrow one and shows what fits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 12, 34
_TICKS = 4
_BROADEST = 90
"""Columns of a few values need not fill the plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a column plot: a label, and parts from the bottom up, by CSS class."""

    label: str
    parts: Mapping[str, float]
    hint: str
    """What a pointer that rests on it is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line across the columns, at a place counted in columns from the left edge."""

    at: float
    label: str


def columns(
    name: str, given: Sequence[Column], *, width: int, height: int = 220, marks: Sequence[Mark] = ()
) -> str:
    """Draw stacked columns, with marks over them."""
    top = nice_ceiling(max((sum(column.parts.values()) for column in given), default=0))
    frame = _Frame(width=width, height=height, top=top)
    step = frame.inner_width / max(len(given), 1)
    every = math.ceil(len(given) * 62 / frame.inner_width)
    parts = [frame.axis()]
    for index, column in enumerate(given):
        x = _LEFT + index * step
        broad = min(step * 0.72, _BROADEST)
        parts.append(_stack(column, frame, x=x + (step - broad) / 2, width=broad))
        if index % every == 0:
            parts.append(_text(x + step / 2, height - 14, column.label, "middle"))
    labels = []  # over all lines
    for row, mark in enumerate(marks):
        x = _LEFT + mark.at * step
        y = _TOP + 10 + (row % 3) * 13
        side = "end" if x > width * 0.8 else "start"
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" ')
        parts.append(f'y2="{height - _BOTTOM}"/>')
        labels.append(_text(x + (4 if side == "start" else -4), y, mark.label, side, "marked"))
    return _svg(name, width, height, [*parts, *labels])


def bars_over_time(
    name: str,
    points: Sequence[tuple[float, float]],
    labels: Sequence[str],
    *,
    width: int,
    step: float,
) -> str:
    """Draw thin bars at (x, y) points that are multiples of `step` apart; no point, no bar.

    `labels` are spread along the x axis.
    """
    height = 200
    top = nice_ceiling(max((y for _, y in points), default=0))
    frame = _Frame(width=width, height=height, top=top)
    parts = [frame.axis()]
    if points:
        first, last = points[0][0], points[-1][0]
        scale = frame.inner_width / (last - first + step)
        for x, y in points:
            drawn = max(step * scale, 1.2)
            parts.append(
                f'<rect class="storm" x="{_LEFT + (x - first) * scale:.1f}" y="{frame.y(y):.1f}" '
                f'width="{min(drawn, 24):.1f}" height="{height - _BOTTOM - frame.y(y):.1f}"/>'
            )
    for index, label in enumerate(labels):
        share = index / max(len(labels) - 1, 1)
        anchor = "start" if index == 0 else "end" if index == len(labels) - 1 else "middle"
        parts.append(_text(_LEFT + share * frame.inner_width, height - 14, label, anchor))
    return _svg(name, width, height, parts)


def nice_ceiling(value: float) -> float:
    """Round up to 1, 2, 2.5, 5 or 8 times a power of ten, at least 4: whole ticks."""
    if value <= _TICKS:
        return _TICKS
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value * 0.9999)


def short_number(value: float) -> str:
    """Write a number as people say it: 950, 1.2 k, 3 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The axes of a plot."""

    width: int
    height: int
    top: float

    @property
    def inner_width(self) -> float:
        return self.width - _LEFT - _RIGHT

    def y(self, value: float) -> float:
        return self.height - _BOTTOM - value / self.top * (self.height - _TOP - _BOTTOM)

    def axis(self) -> str:
        lines = []
        for tick in range(_TICKS + 1):
            value = self.top * tick / _TICKS
            y = self.y(value)
            lines.append(
                f'<line class="grid" x1="{_LEFT}" x2="{self.width - _RIGHT}" '
                f'y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            lines.append(_text(_LEFT - 6, y + 4, short_number(value), "end"))
        return "".join(lines)


def _stack(column: Column, frame: _Frame, *, x: float, width: float) -> str:
    drawn, below = [f"<g><title>{escape(column.hint)}</title>"], 0.0
    for name, value in column.parts.items():
        if value > 0:
            y, floor = frame.y(below + value), frame.y(below)
            height = max(floor - y, 1.0)
            drawn.append(
                f'<rect class="{escape(name)}" x="{x:.1f}" y="{floor - height:.1f}" '
                f'width="{width:.1f}" height="{height:.1f}"/>'
            )
            below += value
    return "".join([*drawn, "</g>"])


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(name: str, width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" aria-label="{escape(name)}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">{"".join(parts)}</svg>'
    )
