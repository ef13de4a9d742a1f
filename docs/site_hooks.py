"""Hooks of mkdocs: links that leave docs/, a Markdown twin of each page, and llms.txt."""

import re
from pathlib import Path
from typing import Any, Final

_OUTSIDE: Final = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(?:#[^)]*)?\)")
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)
_pages: Final[dict[str, str]] = {}
"""Markdown of each page of the build, by the path of its source."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page whose links out of the site are paths in the repository, and keep it."""
    _pages[page.file.src_uri] = shown = _OUTSIDE.sub(_named, markdown)
    return shown


def _named(link: re.Match[str]) -> str:
    text, path = link.groups()
    return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"


def on_post_build(config: Any, **_: Any) -> None:
    """Write each page's Markdown as `NAME.md`, and an index of them as `llms.txt` (llmstxt.org)."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for path, text in _pages.items():
        (site / path).write_text(text)
        title = _TITLE.search(text)
        assert title is not None, f"{path} has no title"
        lines.append(f"- [{title[1]}]({path})")
    (site / "llms.txt").write_text("\n".join(lines) + "\n")
