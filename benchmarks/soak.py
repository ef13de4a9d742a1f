"""Memory over an hour of requests, logins, reloads and scrapes.

    python -m benchmarks.soak
    python -m benchmarks.soak --minutes 30 --pause 5

One proxy with an authorizer, quotas, events and TLS is in front of the fake broker. Round after
round, 16 connections produce for five seconds, clients log in by SCRAM and by OAUTHBEARER for two
seconds each, the configuration is changed and reloaded, and the metrics and the status page are
fetched; `--pause` leaves a machine that others use some seconds of each round. Needs what
`benchmarks.bench` needs, without HAProxy and Kafka.

The table has, for each tenth of the time, what was done in it, and the anonymous memory of each
process at its end. The exit status is 1 if anything failed, or a process ended with over 5 % and
1 MiB more than it had after the third tenth: what is used at first only, caches and the
allocator's reserves have filled by then.
"""

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks import machine, report
from benchmarks.bench import fake_broker, make_lab
from benchmarks.load import Generator
from benchmarks.programs import (
    MeasurementFailed,
    anonymous_kib,
    compile_all,
    process_tree,
)
from benchmarks.targets import OAUTHBEARER, SCRAM, Target, featured

_RELAY_SECONDS, _LOGIN_SECONDS = 5.0, 5.0
_PARTS: Final = 10
"""Number of lines of the table."""
_FILLED: Final = 3
"""Number of the line that the last one is compared with."""
KINDS: Final = ("requests", "logins", "reloads", "scrapes", "pages")
"""Kinds of operations that are counted."""
PROCESSES: Final = ("parent", "worker", "HTTP")
"""The proxy's processes, in the order in which they are forked."""
_RELOAD_SECONDS: Final = 180.0
"""Seconds within which a reload must be done."""


class Soak:
    """Load on one proxy."""

    def __init__(self, target: Target, generator: Generator, directory: Path) -> None:
        assert target.pid is not None
        self._target = target
        self._pid = target.pid
        self._generator = generator
        self._config, self._log = directory / "proxy.yaml", directory / "proxy.log"
        self.done: Counter[str] = Counter()
        """Number of operations since the start, by kind."""

    def round(self) -> None:
        """Do everything once. Raises MeasurementFailed."""
        self._load("requests", "relay", 16, _RELAY_SECONDS, None)
        for mechanism in (SCRAM, OAUTHBEARER):
            self._load("logins", "auth", 8, _LOGIN_SECONDS, mechanism)
        self._reload()
        self._fetch()

    def _load(
        self, kind: str, mode: str, connections: int, seconds: float, mechanism: str | None
    ) -> None:
        found = self._generator.measure(
            self._target, mode, connections=connections, seconds=seconds, mechanism=mechanism
        ).report
        if found["errors"]:
            raise MeasurementFailed(f"{mode}: {found}")
        self.done[kind] += found["count"]

    def _reload(self) -> None:
        document = yaml.safe_load(self._config.read_text())
        listener = document["listeners"][0]
        listener["connections.max.reauth.ms"] ^= 1
        self._config.write_text(yaml.safe_dump(document))
        os.kill(self._pid, signal.SIGHUP)
        self.done["reloads"] += 1
        deadline = time.monotonic() + _RELOAD_SECONDS
        while self._log.read_text().count(" reloaded: ") < self.done["reloads"]:
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"not reloaded:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def _fetch(self) -> None:
        http = yaml.safe_load(self._config.read_text())["http"]["address"]
        for path in ("metrics", ""):
            with urllib.request.urlopen(f"http://{http}/{path}", timeout=30) as answer:
                answer.read()
            self.done["scrapes" if path else "pages"] += 1

    def memory_mib(self) -> list[float]:
        """Return the anonymous memory of each process: parent, worker, HTTP."""
        return [anonymous_kib(one) / 1024 for one in process_tree(self._pid)]


def soak(running: Soak, seconds: float, pause: float, show: Table) -> bool:
    """Load a proxy, and fill the table; return whether its memory stayed as it was."""
    begun = time.monotonic()
    before: Counter[str] = Counter()
    filled: list[float] = []
    for part in range(1, _PARTS + 1):
        while time.monotonic() < begun + seconds * part / _PARTS:
            running.round()
            time.sleep(pause)
        done = running.done - before
        before = running.done.copy()
        mib = running.memory_mib()
        minutes, load = (time.monotonic() - begun) / 60, os.getloadavg()[0]
        counts = (f"{done[kind]:,}" for kind in KINDS)
        show.add_row(f"{minutes:.0f}", *counts, *(f"{one:.1f}" for one in mib), f"{load:.0f}")
        if part == _FILLED:
            filled = mib
    return len(mib) == len(filled) and all(
        end <= max(1.05 * first, first + 1) for first, end in zip(filled, mib, strict=True)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 0, or 1 if memory grew or anything failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60, help="(default 60)")
    parser.add_argument("--pause", type=float, default=0, help="seconds of each round (default 0)")
    options = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    table = Table(title="Anonymous MiB under load, reloads and scrapes")
    for name in ("minute", *KINDS, *PROCESSES, "machine's load"):
        table.add_column(name, justify="right")
    console = Console(width=110)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        directory = Path(name)
        programs = compile_all(directory)
        with fake_broker(programs, make_lab(directory)) as lab:
            console.print(report.machine(machine.describe(pinned=False)))
            generator = Generator(program=programs["load"], credentials=lab.credentials)
            start = featured("soak", acls=1_000, quotas=True, compiled=False, tls=True)
            with start(lab) as target:
                running = Soak(target, generator, directory / "soak")
                try:
                    flat = soak(running, options.minutes * 60, options.pause, table)
                finally:
                    console.print(table)
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
