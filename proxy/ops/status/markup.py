"""HTML builder that escapes all text.

Rule: a `str` is text and is escaped; only this module makes `Markup`, which is not.
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
    """Return text as HTML; characters that UTF-8 cannot encode are replaced."""
    return Markup(escape(given.encode("utf-8", "replace").decode()))


def name(given: str | None, otherwise: str = "-") -> Markup:
    """Return a name that a client chose, cut if it is long, and isolated from the text direction.

    `otherwise` is shown if the name is missing.
    """
    if given is None:
        return tag("span", otherwise, class_="none")
    short = given if len(given) <= MAX_CHARACTERS else f"{given[: MAX_CHARACTERS - 1]}…"
    return tag(
        "bdi", "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in short)
    )


def tag(element: str, *content: Content, **attributes: str | None) -> Markup:
    """Return an element. Attribute `class_` is `class`, `data_label` is `data-label`.

    Attributes with the value None are left out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if element in _VOID:
        return Markup(f"<{element}{given}>")
    return Markup(f"<{element}{given}>{joined(content)}</{element}>")


def joined(content: Iterable[Content], between: Content = "") -> Markup:
    """Return pieces of content as one, separated by `between`."""
    return Markup(_safe(between).join(_safe(one) for one in content))


def own(source: str) -> Markup:
    """Return the page's own style or script unescaped; its hash is in the page's policy."""
    return Markup(source)


def _safe(content: Content) -> Markup:
    return content if isinstance(content, Markup) else text(content)
