"""Links of the site (a hook of mkdocs): what is not below docs/ is named by its path instead."""

import re
from typing import Any, Final

_OUTSIDE: Final = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page without links that lead out of the site."""
    return _OUTSIDE.sub(_named, markdown)


def _named(link: re.Match[str]) -> str:
    text, path = link.groups()
    return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"
