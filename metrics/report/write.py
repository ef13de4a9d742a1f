"""Writer of `report.json`, `report.prom` and `index.html`, each replaced atomically."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from metrics import registry
from metrics.exposition import expose
from metrics.report.formats import logged_in
from metrics.report.page import page
from metrics.snapshot import Snapshot

JSON_NAME = "report.json"
PAGE_NAME = "index.html"
METRICS_NAME = "report.prom"

TEXT_FORMAT: Final = "text/plain; version=0.0.4"
"""Content type with which a web server must serve `report.prom`."""
MAX_LIFETIMES: Final = 50
"""Maximum number of lifetimes with their own metrics: the shortest ones."""


def write_report(facts: Mapping[str, Any], out: Path) -> Path:
    """Write the files into the folder `out`; return the page's path. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    _replace(out / JSON_NAME, f"{json.dumps(facts, indent=1)}\n".encode())
    _replace(out / METRICS_NAME, exposition(facts))
    _replace(out / PAGE_NAME, page(facts).encode())
    return out / PAGE_NAME


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader sees the old or the new content."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_bytes(content)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def exposition(facts: Mapping[str, Any]) -> bytes:
    """Return the report's figures as metrics."""
    snapshot = Snapshot()
    failures = {"login": 0, "reauthentication": 0}
    for row in facts["failures"]:
        failures["reauthentication" if row["reauthentication"] else "login"] += row["count"]
    clients = logged_in(facts) | {"never_logged_in": facts["never_logged_in"]}
    for metric, counts in (
        (registry.READINESS_CLIENTS, clients),
        (registry.READINESS_PRINCIPALS, facts["principals_by_verdict"]),
        (registry.READINESS_FAILED_AUTHENTICATIONS, failures),
    ):
        for label, count in counts.items():
            snapshot.gauge(metric, count, label)
    for row in sorted(facts["what_if"], key=lambda row: row["lifetime_ms"])[:MAX_LIFETIMES]:
        label = f"{row['lifetime_ms'] / 1000:.3f}".rstrip("0").rstrip(".")
        if (killed := row["killed_clients"]) is not None:
            snapshot.gauge(registry.READINESS_KILLED_CLIENTS, killed, label)
        for bound in ("least", "most"):
            if (kills := row[f"kills_per_day_{bound}"]) is not None:
                snapshot.gauge(registry.READINESS_KILLS_PER_DAY, kills, label, bound)
    regressed, broken = facts["regressed"], facts["breaks_at_kafka_4"]
    snapshot.gauge(registry.READINESS_REGRESSED_CLIENTS, regressed["client_count"])
    snapshot.gauge(registry.READINESS_KAFKA_4_CLIENTS, broken["client_count"])
    snapshot.gauge(registry.READINESS_REPORT_TIME, facts["as_of_ms"] / 1000)
    if (newest_ms := facts["observed"]["to_ms"]) is not None:
        snapshot.gauge(registry.READINESS_NEWEST_EVENT, newest_ms / 1000)
    body, _ = expose(snapshot, TEXT_FORMAT)
    return body
