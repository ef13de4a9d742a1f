"""Writer of `report.json` and `index.html`, each replaced atomically."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metrics.report.page import page

JSON_NAME = "report.json"
PAGE_NAME = "index.html"


def write_report(facts: Mapping[str, Any], out: Path) -> Path:
    """Write both files into the folder `out`; return the page's path. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    _replace(out / JSON_NAME, json.dumps(facts, indent=1) + "\n")
    _replace(out / PAGE_NAME, page(facts))
    return out / PAGE_NAME


def _replace(path: Path, text: str) -> None:
    """A reader sees the old file or the new one, never half of it."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
