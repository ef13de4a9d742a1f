"""Sequence of the demo from its first process to its last."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from proxy.demo.setup import (
    INTRUDER,
    LEDGER,
    ORDERS,
    PAYMENTS,
    SESSION_MS,
    DemoFailed,
    Environment,
    Program,
    read_report,
)
from proxy.demo.verdict import ObservedSessions, judge, observed, totals

START_SECONDS: Final = 120.0
"""Seconds in which the brokers, and the proxy, must start."""
LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at the events."""
TOTALS_SECONDS: Final = 15.0
"""Seconds between two lines of totals."""
REPORT_SECONDS: Final = 600.0
"""Timeout of the report in seconds: it takes two on an idle machine."""
STOP_SECONDS: Final = 60.0
"""Seconds in which clients must drain and end, and after them the proxy and the brokers."""
INTERRUPTED: Final = 130
"""Exit status of an interrupted program: 128 + SIGINT."""


def play(seconds: float) -> int:
    """Run everything, the clients for `seconds`; return the exit status."""
    demo = _Demo(Environment(Path(tempfile.mkdtemp(prefix="reauth-proxy-demo-"))))
    try:
        with _interruptible() as interruption:
            demo.run(seconds, interruption)
    except KeyboardInterrupt:
        print("Interrupted.")
        return INTERRUPTED
    except DemoFailed as failure:
        print(f"reauth-proxy: {failure}", file=sys.stderr)
        return 1
    finally:
        demo.end_all()
    try:
        return demo.conclude()
    except KeyboardInterrupt:
        return INTERRUPTED


class _Interruption:
    """Handler of signals, including those of Ctrl-C and a closing terminal: it ends the demo."""

    came = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt after a signal; the handler's own is lost in a finalizer."""
        if self.came:
            raise KeyboardInterrupt


@contextmanager
def _interruptible() -> Iterator[_Interruption]:
    interruption = _Interruption()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {one: signal.signal(one, interruption) for one in signals}
    try:
        yield interruption
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class _Demo:
    """Programs of the demo, and their results so far."""

    def __init__(self, setup: Environment) -> None:
        self._setup = setup
        self._programs: dict[str, Program] = {}
        """The programs by name, in the order of their start."""
        self._shown: set[tuple[str, str]] = set()
        """Milestones of clients that were printed."""

    def run(self, seconds: float, interruption: _Interruption) -> None:
        """Start everything, watch it, end the clients."""
        print(
            "Kafka clients must log in again before their session ends (KIP-368). Those that do go"
            " on working,\none that cannot is cut off, one that may not log in is kept out.\n"
            f"Three brokers, reauth-proxy and four clients work for {seconds:.0f} seconds.",
            flush=True,
        )
        setup = self._setup
        setup.set_up(self._start("broker", "proxy.demo.broker").wait_for_line(START_SECONDS))
        proxy = self._start("proxy", "proxy", "serve", "--config", str(setup.config))
        proxy.wait_for_line(START_SECONDS)
        print(f"Status page: http://{setup.http}/", flush=True)
        self._start_client(PAYMENTS, PAYMENTS, "--key-file", setup.key)
        self._start_client(ORDERS, ORDERS, "--password-file", setup.password(ORDERS))
        self._start_client(LEDGER, ORDERS, "--password-file", setup.password(LEDGER), "--old")
        self._start_client(INTRUDER, INTRUDER, "--key-file", setup.unknown_key)
        self._watch(seconds, interruption)
        self._end_clients()
        self._setup.save_metrics()

    def _start(self, name: str, module: str, *arguments: str) -> Program:
        log = self._setup.directory / f"{name}.log"
        program = self._programs[name] = Program(name, module, arguments, log)
        return program

    def _start_client(self, name: str, topic: str, login: str, file: Path, *more: str) -> None:
        common = ("--bootstrap-server", self._setup.bootstrap, "--client-id", name)
        self._start(name, "proxy.demo.client", *common, "--topic", topic, login, str(file), *more)

    @property
    def _clients(self) -> list[Program]:
        return list(self._programs.values())[2:]

    def _watch(self, seconds: float, interruption: _Interruption) -> None:
        totals_at, end = seconds, time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            interruption.check()
            for program in self._programs.values():
                if not program.running:
                    raise DemoFailed(f"{program.name} ended too early, see {program.log}")
            clients = observed(self._setup.events)
            self._print_milestones(seconds - left, clients)
            if left <= totals_at:
                totals_at = left - TOTALS_SECONDS
                self._print_at(seconds - left, "(all)", totals(clients))
            time.sleep(min(LOOK_SECONDS, left))

    def _print_milestones(self, elapsed: float, clients: Mapping[str, ObservedSessions]) -> None:
        for client in clients.values():
            for what in client.milestones():
                if (client.client_id, what) not in self._shown:
                    self._shown.add((client.client_id, what))
                    self._print_at(elapsed, client.client_id, what)

    def _print_at(self, elapsed: float, who: str, what: str) -> None:
        print(f"{elapsed:4.0f} s  {who:<8}  {what}", flush=True)

    # The end

    def _end_clients(self) -> None:
        for client in self._clients:
            client.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS
        for client in self._clients:
            if not client.ended(deadline):
                raise DemoFailed(f"{client.name} did not stop, see {client.log}")

    def end_all(self) -> None:
        """End all programs that run, the brokers last."""
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for client in self._clients:
                client.terminate()
            for program in reversed(self._programs.values()):
                program.terminate()
                program.ended(time.monotonic() + STOP_SECONDS)
            self._setup.clear_secrets()
        finally:
            signal.signal(signal.SIGINT, handler)

    def conclude(self) -> int:
        """Print the findings, and where the files are; return the exit status."""
        lines = {client.name: client.last_line for client in self._clients}
        reports = {name: read_report(line) for name, line in lines.items() if line}
        findings = judge(reports, observed(self._setup.events))
        directory = self._setup.directory
        print(f"\nA session lasted {SESSION_MS // 1000} seconds at most.")
        for finding in findings:
            print("✓" if finding.good else "✗", finding.text)
        print(f"Events: {self._setup.events}")
        print(f"Metrics: {self._setup.metrics}")
        print(f"All files (remove them with rm -r): {directory}", flush=True)
        made = _make_report(self._setup.events, directory / "report", directory / "report.log")
        return 0 if made and all(finding.good for finding in findings) else 1


def _make_report(events: Path, out: Path, log: Path) -> bool:
    """Make the report, and print where it is; return False if it failed."""
    options = ["--events", str(events), "--out", str(out), "--lifetime", f"{SESSION_MS}ms"]
    with log.open("wb") as file:
        try:
            subprocess.run(
                [sys.executable, "-m", "proxy", "report", *options],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                timeout=REPORT_SECONDS,
                check=True,
            )
        except subprocess.SubprocessError as error:
            print(f"Readiness report: failed, see {log}: {error}")
            return False
    print(f"Readiness report: {out / 'index.html'}")
    return True
