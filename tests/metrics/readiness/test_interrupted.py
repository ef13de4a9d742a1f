"""An interrupted report ends with one error at any stage."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest

from metrics.readiness.duckdb_engine import duckdb_errors
from metrics.readiness.errors import Interrupted
from metrics.readiness.job import sigterm_as_sigint


def test_told_to_end_within_a_query_it_is_interrupted() -> None:
    """DuckDB gives its own error where a signal's handler has raised one.

    Only the main thread notices the signal, so it runs the query.
    """
    sent = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    with sigterm_as_sigint(print), duckdb.connect(config={"threads": 1}) as database:
        sent.start()
        with pytest.raises(Interrupted), duckdb_errors():
            database.execute("SELECT count(*) FROM range(10_000_000_000) WHERE range % 7 = 3")


def test_an_interrupt_that_was_lost_is_raised_at_the_next_step() -> None:
    """Python ignores exceptions in weakref callbacks."""
    steps: list[str] = []
    with sigterm_as_sigint(steps.append) as progress:
        with suppress(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            progress("next")
    assert steps == []


def test_told_to_end_while_spark_ends_it_keeps_its_exit_status(tmp_path: Path) -> None:
    """Exit handlers of Spark run before those that were registered sooner."""
    (tmp_path / "done.py").write_text(
        "import atexit, os, signal\n"
        "from metrics.readiness.job import sigterm_as_sigint\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGTERM)\n"
        "with sigterm_as_sigint(print):\n"
        "    atexit.register(os.kill, os.getpid(), signal.SIGTERM)\n"
        "raise SystemExit(1)\n"
    )
    command = [sys.executable, "-m", "done"]
    assert subprocess.run(command, cwd=tmp_path, timeout=60).returncode == 1


def test_told_to_end_within_an_import_it_ends_by_its_own_exit_status(tmp_path: Path) -> None:
    """Python ends itself by SIGINT after any KeyboardInterrupt that left an `exec`."""
    (tmp_path / "ended.py").write_text(
        "import os, signal\n"
        "from metrics.readiness.errors import Interrupted\n"
        "from metrics.readiness.job import sigterm_as_sigint\n"
        "try:\n"
        "    with sigterm_as_sigint(print):\n"
        "        exec('os.kill(os.getpid(), signal.SIGTERM)\\nwhile True: pass')\n"
        "except KeyboardInterrupt:\n"
        "    raise SystemExit(2)\n"
    )
    command = [sys.executable, "-m", "ended"]
    assert subprocess.run(command, cwd=tmp_path, timeout=60).returncode == 2
