"""SVG plots in units of CSS pixels, coloured by the page's CSS classes.

A plot has a fixed width; the page has a wide and a narrow one, and shows the one that fits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 12, 34
_TICKS = 4
_BROADEST = 90
"""Maximum width of a column, so that a few columns do not fill the plot."""
_CHARACTER = 7.3
"""The width of a digit at the size of the ticks, in the widest of the usual typefaces."""
_MARK_ROWS, _MARK_ROW = 3, 13
"""The number of rows for the labels of marks above the columns, and the height of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a plot: its label, and its parts by CSS class, from the bottom up."""

    label: str
    parts: Mapping[str, float]
    hint: str
    """The tooltip of the column."""


Mark = tuple[float, str]
"""A line across the columns, at a place counted in columns from the left edge, and its label."""


def columns(
    name: str, given: Sequence[Column], *, width: int, height: int = 220, marks: Sequence[Mark] = ()
) -> str:
    """Draw stacked columns with marks over them; `name` is for screen readers."""
    top = nice_ceiling(max((sum(column.parts.values()) for column in given), default=0))
    above = _MARK_ROWS * _MARK_ROW if marks else 0
    frame = _Frame(width=width, height=height + above, above=_TOP + above, top=top)
    step = frame.inner_width / max(len(given), 1)
    longest = max((len(column.label) for column in given), default=0)
    every = math.ceil((longest + 2) * _CHARACTER / step)
    parts = [frame.axis()]
    for index, column in enumerate(given):
        x = _LEFT + index * step
        broad = min(step * 0.72, _BROADEST)
        parts.append(_stack(column, frame, x=x + (step - broad) / 2, width=broad))
        if index % every == 0:
            parts.append(frame.label(x + step / 2, column.label))
    for index, (at, label) in enumerate(marks):
        parts.append(_mark(label, frame, x=_LEFT + at * step, row=index % _MARK_ROWS))
    return _svg(name, frame, parts)


def bars_over_time(
    name: str,
    points: Sequence[tuple[float, float]],
    labels: tuple[str, str],
    *,
    width: int,
    step: float,
) -> str:
    """Draw bars at (x, y) points that are multiples of `step` apart, with gaps for missing points.

    `labels` are drawn below the first and the last bar.
    """
    top = nice_ceiling(max((y for _, y in points), default=0))
    frame = _Frame(width=width, height=200, above=_TOP, top=top)
    parts = [frame.axis()]
    if points:
        first, last = points[0][0], points[-1][0]
        slot = frame.inner_width / ((last - first) / step + 1)
        broad = min(max(slot, 1.2), _BROADEST)
        for x, y in points:
            left = _LEFT + (x - first) / step * slot + (slot - broad) / 2
            parts.append(
                f'<rect class="storm" x="{left:.1f}" y="{frame.y(y):.1f}" '
                f'width="{broad:.1f}" height="{frame.y(0) - frame.y(y):.1f}"/>'
            )
        parts.append(frame.label(_LEFT + slot / 2, labels[0]))
        if last > first:
            parts.append(frame.label(_LEFT + frame.inner_width - slot / 2, labels[1]))
    return _svg(name, frame, parts)


def nice_ceiling(value: float) -> float:
    """Round up to a round number of at least 4 whose quarters are whole numbers."""
    if value <= _TICKS:
        return _TICKS
    power = 10.0 ** math.floor(math.log10(value))
    tops = (step * power for step in (1.2, 2, 4, 6, 8, 10, 12))
    return next(top for top in tops if top % _TICKS == 0 and top >= value)


def short_number(value: float) -> str:
    """Write a number in short form: 950, 1.2 k, 3 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The axes of a plot."""

    width: int
    height: int
    above: int
    """The space above the columns, in pixels."""
    top: float
    """The value at the top of the axis."""

    @property
    def inner_width(self) -> float:
        return self.width - _LEFT - _RIGHT

    def y(self, value: float) -> float:
        return self.height - _BOTTOM - value / self.top * (self.height - self.above - _BOTTOM)

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

    def label(self, x: float, text: str) -> str:
        """Draw a label below the axis, centred at `x` as far as the edges allow."""
        half = len(text) * _CHARACTER / 2
        return _text(min(max(x, half), self.width - half), self.height - 14, text, "middle")


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


def _mark(label: str, frame: _Frame, *, x: float, row: int) -> str:
    """Draw the line from its label down to the axis."""
    y = _TOP + row * _MARK_ROW
    side, gap = ("end", -4) if x > frame.width * 0.8 else ("start", 4)
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 8}" y2="{frame.y(0):.1f}"/>'
        + _text(x + gap, y + 2, label, side, "marked")
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(name: str, frame: _Frame, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" aria-label="{escape(name)}" viewBox="0 0 {frame.width} {frame.height}" '
        f'width="{frame.width}" height="{frame.height}">{"".join(parts)}</svg>'
    )
