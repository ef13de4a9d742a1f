"""Reports in a folder, put there as a run does it."""

import shutil
from pathlib import Path
from typing import Any

from metrics.readiness.output import RUN_NAME, publish, staging
from metrics.readiness.output import RUNS as FOLDER_OF_RUNS
from metrics.report.facts import build_facts
from metrics.report.write import write_report
from tests.support.metrics import collected

RUNS = tuple(f"20260601T00{number:02}00Z-0123456{number % 10}" for number in range(60))
"""Names of runs, in their order."""


def facts_of(run_id: str = RUNS[0], **more: Any) -> dict[str, Any]:
    """The facts of a report of one client that is not capable."""
    return build_facts(collected("User:alice")) | {"run_id": run_id} | more


def put_report(out: Path, run_id: str = RUNS[0], **more: Any) -> None:
    """Let a run replace the report; each of its tables says which run it is of."""
    with staging(out, run_id) as made:
        write_report(facts_of(run_id, **more), made.folder)
        for name in ("clients", "sessions/day=2026-06-01"):
            table = made.tables / name / "part-00000.parquet"
            table.parent.mkdir(parents=True)
            table.write_text(run_id)
        (made.tables / RUN_NAME).write_text(f"{run_id}\n")
        publish(made, out)


def put_copy(out: Path, run_id: str = RUNS[0], **more: Any) -> None:
    """Put a report there as one who copies its page, JSON and tables alone."""
    put_report(out, run_id, **more)
    shutil.rmtree(out / FOLDER_OF_RUNS)
