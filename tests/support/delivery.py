"""Helpers for tests of the delivery of events."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from benchmarks.events.generate import Size
from metrics.delivery.deliverer import DeliveryFailed
from metrics.delivery.spool import Batch
from proxy.cli import app

SIZE = Size(connections=24, principals=6, clients=12, days=0.2, seed=5, bad=True)
"""Size of generated events, including invalid lines."""


def report_of(folder: Path) -> dict[str, Any]:
    """Report on a folder of `SIZE`, without run id and source."""
    out = folder.with_name(f"{folder.name}-report")
    arguments = ["report", "--events", str(folder), "--out", str(out)]
    result = CliRunner().invoke(app, [*arguments, "--as-of", "2026-06-02T00:00"])
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    del report["run_id"], report["source"]
    return report


class Lines:
    """A sink that stores lines or refuses them."""

    def __init__(self, batch_bytes: int = 1000, *, fails: bool = False) -> None:
        self.batch_bytes = batch_bytes
        self.fails = fails
        self.taken: list[bytes] = []

    def deliver(self, batch: Batch) -> int:
        if self.fails:
            raise DeliveryFailed("No space left on device")
        self.taken += batch.lines
        return 0
