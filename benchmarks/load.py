"""Runner of the load generator, whose lines of JSON mark the begin and end of a measurement."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.programs import MeasurementFailed, cpu_seconds
from benchmarks.targets import Credentials, Target

_GRACE_SECONDS = 60.0
"""Seconds after its due end at which the generator gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Results of one run of the generator against one target."""

    report: dict[str, Any]
    """The generator's last line."""
    cpu_seconds: float
    """The CPU seconds of the target's process tree between the generator's "start" and "end"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """Load generator (load.c), and the credentials that it uses."""

    program: Path
    credentials: Credentials

    def measure(
        self,
        target: Target,
        mode: str,
        *,
        connections: int,
        seconds: float,
        mechanism: str | None = None,
        authenticate: bool = True,
        options: Sequence[str] = (),
    ) -> Measured:
        """Run one mode to its end; `mechanism` None: the target's."""
        arguments = ["--connections", str(connections), "--seconds", f"{seconds}", *options]
        login = (mechanism or target.mechanism) if authenticate else None
        with self._started(target, mode, login, arguments, seconds) as process:
            self._expect(process, "start")
            before = _cpu(target)
            report = self._expect(process, "end")
            used = _cpu(target) - before
        if not report["finished"] or report["count"] == 0:
            raise MeasurementFailed(f"load {mode} on {target.address}: {report}")
        return Measured(report=report, cpu_seconds=used)

    @contextmanager
    def idle(self, target: Target, connections: int, mechanism: str | None) -> Iterator[None]:
        """Hold authenticated connections open until the end of the block."""
        arguments = ["--connections", str(connections)]
        login = mechanism or target.mechanism
        with self._started(target, "idle", login, arguments, 0.0) as process:
            ready = self._expect(process, "ready")
            if ready["connections"] != connections:
                raise MeasurementFailed(f"only {ready['connections']} of {connections} connected")
            yield
            assert process.stdin is not None
            process.stdin.close()
            report = self._expect(process, "end")
            if report["errors"]:
                raise MeasurementFailed(f"{report['errors']} idle connections were closed")

    @contextmanager
    def _started(
        self,
        target: Target,
        mode: str,
        mechanism: str | None,
        options: Sequence[str],
        seconds: float,
    ) -> Iterator["subprocess.Popen[str]"]:
        command = [str(self.program), mode, "--target", str(target.address), *options]
        login = self.credentials.login(mechanism)
        tls = () if target.ca is None else ("--tls-ca", str(target.ca))
        process = subprocess.Popen(
            [*command, *login, *tls, "--timeout", f"{seconds + _GRACE_SECONDS}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    @staticmethod
    def _expect(process: "subprocess.Popen[str]", event: str) -> dict[str, Any]:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {}
        if found.get("event") != event:
            process.kill()
            raise MeasurementFailed(f"{process.args!r}: {line}{process.stderr.read()}")
        return found


def _cpu(target: Target) -> float:
    return 0.0 if target.pid is None else cpu_seconds(target.pid)
