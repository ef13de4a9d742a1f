"""Reports in a folder, written like a run does, and served like the image does."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metrics.readiness.output import RUN_NAME, publish, staging
from metrics.report.facts import build_facts
from metrics.report.write import write_report
from tests.support.deploy import DEPLOY, find
from tests.support.metrics import collected
from tests.support.processes import free_ports
from tests.support.proxy_process import eventually

RUNS = tuple(f"20260601T00{number:02}00Z-0123456{number % 10}" for number in range(60))
"""Ids of runs, in order."""


def facts_of(run_id: str = RUNS[0], **more: Any) -> dict[str, Any]:
    """Facts of a report with one client that is not capable."""
    return build_facts(collected("User:alice")) | {"run_id": run_id} | more


def put_report(out: Path, run_id: str = RUNS[0], **more: Any) -> None:
    """Replace the report with that of a run, whose tables contain the run's id."""
    with staging(out, run_id) as made:
        write_report(facts_of(run_id, **more), made.folder)
        for name in ("clients", "sessions/day=2026-06-01"):
            table = made.tables / name / "part-00000.parquet"
            table.parent.mkdir(parents=True)
            table.write_text(run_id)
        (made.tables / RUN_NAME).write_text(f"{run_id}\n")
        publish(made, out)


@contextmanager
def served_by_nginx(report: Path, scratch: Path) -> Iterator[str]:
    """Serve a report like its image; yield the address."""
    (port,) = free_ports(1)
    changes = {
        "listen 9405": f"listen 127.0.0.1:{port}",
        "/var/lib/reauth-report/report": str(report),
        "/tmp/nginx": f"{scratch}/nginx",  # noqa: S108
    }
    text = (DEPLOY / "report" / "nginx.conf").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    file = scratch / "nginx.conf"
    file.write_text("user root;\n" + text if os.geteuid() == 0 else text)
    with subprocess.Popen([find("nginx"), "-c", str(file)], stderr=subprocess.PIPE) as server:
        eventually(lambda: _accepts(port), "nginx listens")
        yield f"127.0.0.1:{port}"
        server.terminate()


def _accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
