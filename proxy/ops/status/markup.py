"""HTML builder that escapes all text.

Rule: a `str` is text and is escaped, cut if it is long, and made what UTF-8 can carry; only this
module makes `Markup`, which is neither.
"""

from collections.abc import Iterable
from html import escape
from typing import Final

MAX_CHARACTERS: Final = 64
"""Largest length of a name on the page, in characters."""
_VOID: Final = frozenset({"input", "meta", "link"})


class Markup(str):
    """HTML that is complete and safe."""

    __slots__ = ()


Content = str | Markup


def text(given: str) -> Markup:
    """Return text as HTML, whatever it holds."""
    return Markup(escape(given.encode("utf-8", "replace").decode()))


def name(given: str | None, otherwise: str = "-") -> Markup:
    """Return a name that a client chose: cut if it is long, in isolation if it runs leftward."""
    if given is None:
        return tag("span", otherwise, class_="none")
    short = given if len(given) <= MAX_CHARACTERS else f"{given[: MAX_CHARACTERS - 1]}…"
    return tag(
        "bdi", "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in short)
    )


def tag(element: str, *content: Content, **attributes: str | None) -> Markup:
    """Return an element. `class_` is `class`, `data_label` is `data-label`; None: left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if element in _VOID:
        return Markup(f"<{element}{given}>")
    return Markup(f"<{element}{given}>{joined(content)}</{element}>")


def joined(content: Iterable[Content], between: Content = "") -> Markup:
    """Return several as one."""
    return Markup(_safe(between).join(_safe(one) for one in content))


def own(source: str) -> Markup:
    """Take a style or a script of ours, whose hash the page's policy names, as it is."""
    return Markup(source)


def _safe(content: Content) -> Markup:
    return content if isinstance(content, Markup) else text(content)
