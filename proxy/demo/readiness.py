"""Readiness report of the demo's own events, if DuckDB is installed."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from proxy.demo.setup import SESSION_MS

REPORT_SECONDS: Final = 600.0
"""Timeout of the report in seconds: it takes two on an idle machine."""


def make_report(events: Path, out: Path, log: Path, console: Console) -> bool:
    """Make the report, and print where it is; False: it failed.

    If DuckDB is not installed, print that it is needed, and return True.
    """
    options = ["--events", str(events), "--out", str(out), "--lifetime", f"{SESSION_MS}ms"]
    if importlib.util.find_spec("duckdb") is None:
        needed = f"DuckDB ({_program('pip')} install duckdb)"
        _print_text(console, f"Readiness report: it needs {needed}; then")
        _print_text(console, f"  {_program('reauth-proxy')} report {' '.join(options)}")
        return True
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "proxy", "report", *options],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                timeout=REPORT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            _print_text(console, f"Readiness report: not done in {REPORT_SECONDS:.0f} s, see {log}")
            return False
    if done.returncode:
        _print_text(console, f"Readiness report: failed, see {log}")
        return False
    _print_text(console, f"Readiness report: {out / 'index.html'}")
    return True


def _program(name: str) -> str:
    """Return a command with its path: its virtual environment may not be active."""
    path = Path(sys.executable).with_name(name)
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _print_text(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)
