"""Writer of `report.json`, `report.prom` and `index.html`, each replaced atomically."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metrics.report.page import page
from metrics.report.prometheus import exposition

JSON_NAME = "report.json"
PAGE_NAME = "index.html"
METRICS_NAME = "report.prom"


def write_report(facts: Mapping[str, Any], out: Path) -> Path:
    """Write the files into the folder `out`; return the page's path. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    _replace(out / JSON_NAME, f"{json.dumps(facts, indent=1)}\n".encode())
    _replace(out / METRICS_NAME, exposition(facts))
    _replace(out / PAGE_NAME, page(facts).encode())
    return out / PAGE_NAME


def _replace(path: Path, content: bytes) -> None:
    """A reader sees the old file or the new one, never half of it."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_bytes(content)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
