"""Sequence of the demo from its first process to its last."""

import importlib.util
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from proxy.demo import observed
from proxy.demo.broker import BROKERS
from proxy.demo.observed import Metrics, ObservedEvents
from proxy.demo.processes import DemoFailed, Program
from proxy.demo.report import Report, read_report
from proxy.demo.setup import SESSION_MS, Environment, free_ports
from proxy.demo.verdict import INTRUDER, LEDGER, ORDERS, PAYMENTS, Counted, judge

START_SECONDS: Final = 120.0
"""Seconds in which the brokers, and the proxy, must start."""
LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at events and metrics."""
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
    directory = Path(tempfile.mkdtemp(prefix="reauth-proxy-demo-"))
    setup = Environment(directory=directory, first_port=free_ports(BROKERS + 3))
    demo = _Demo(setup)
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
        self._brokers: Program | None = None
        self._proxy: Program | None = None
        self._clients: dict[str, Program] = {}
        self._log = ObservedEvents(setup.events)
        self._metrics = Metrics(f"http://{setup.http}/metrics")
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
        self._brokers = self._start("broker", "proxy.demo.broker", [])
        self._setup.set_up(self._brokers.wait_for_line(START_SECONDS))
        self._proxy = self._start("proxy", "proxy", ["serve", "--config", str(self._setup.config)])
        self._proxy.wait_for_line(START_SECONDS)
        print(f"Status page: http://{self._setup.http}/", flush=True)
        for name, options in self._client_options().items():
            common = ["--bootstrap-server", self._setup.bootstrap, "--client-id", name]
            self._clients[name] = self._start(name, "proxy.demo.client", [*common, *options])
        self._watch(seconds, interruption)
        self._end_clients()
        self._metrics.scrape()

    def _client_options(self) -> Mapping[str, Sequence[str]]:
        setup = self._setup
        passwords = {name: str(setup.password(name)) for name in (ORDERS, LEDGER)}
        return {
            PAYMENTS: ["--topic", PAYMENTS, "--key-file", str(setup.key)],
            ORDERS: ["--topic", ORDERS, "--password-file", passwords[ORDERS]],
            LEDGER: ["--topic", ORDERS, "--old", "--password-file", passwords[LEDGER]],
            INTRUDER: ["--topic", INTRUDER, "--key-file", str(setup.unknown_key)],
        }

    def _start(self, name: str, module: str, arguments: Sequence[str]) -> Program:
        return Program(name, module, arguments, self._setup.log(name))

    def _watch(self, seconds: float, interruption: _Interruption) -> None:
        totals_at, end = seconds, time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            interruption.check()
            for program in (self._brokers, self._proxy, *self._clients.values()):
                if program is not None and not program.running:
                    raise DemoFailed(f"{program.name} ended too early, see {program.log}")
            self._metrics.scrape()
            self._log.follow()
            self._print_milestones(seconds - left)
            if left <= totals_at:
                totals_at = left - TOTALS_SECONDS
                self._print_at(seconds - left, "(all)", self._metrics.sentence())
            time.sleep(min(LOOK_SECONDS, left))

    def _print_milestones(self, elapsed: float) -> None:
        for client in self._log.clients.values():
            for what in client.milestones():
                if (client.client_id, what) not in self._shown:
                    self._shown.add((client.client_id, what))
                    self._print_at(elapsed, client.client_id, what)

    def _print_at(self, elapsed: float, who: str, what: str) -> None:
        print(f"{elapsed:4.0f} s  {who:<8}  {what}", flush=True)

    def _reports(self) -> dict[str, Report]:
        lines = {name: program.last_line for name, program in self._clients.items()}
        return {name: read_report(line) for name, line in lines.items() if line}

    # The end

    def _end_clients(self) -> None:
        for client in self._clients.values():
            client.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS
        for client in self._clients.values():
            if not client.ended(deadline):
                raise DemoFailed(f"{client.name} did not stop, see {client.log}")

    def end_all(self) -> None:
        """End all programs that run, the brokers last."""
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for part in (list(self._clients.values()), [self._proxy], [self._brokers]):
                programs = [program for program in part if program is not None]
                for program in programs:
                    program.terminate()
                deadline = time.monotonic() + STOP_SECONDS
                for program in programs:
                    program.ended(deadline)
            self._setup.clear_secrets()
        finally:
            signal.signal(signal.SIGINT, handler)

    def conclude(self) -> int:
        """Print the findings, and where the files are; return the exit status."""
        self._log.follow()
        counted = Counted(
            reauthentications=self._metrics.value(observed.REAUTHENTICATIONS),
            kills=self._metrics.value(observed.KILLS),
            refusals=self._metrics.value(observed.REFUSALS),
        )
        reports = self._reports()
        findings = judge(reports, self._log.clients, counted)
        metrics = self._setup.directory / "metrics.txt"
        metrics.write_text(self._metrics.text)
        directory = self._setup.directory
        print(f"\nA session lasted {SESSION_MS // 1000} seconds at most.")
        for finding in findings:
            print("✓" if finding.good else "✗", finding.text)
        print(f"Events: {self._setup.events}")
        print(f"Metrics: {metrics}")
        print(f"All files (remove them with rm -r): {directory}", flush=True)
        made = _make_report(self._setup.events, directory / "report", directory / "report.log")
        return 0 if made and all(finding.good for finding in findings) else 1


def _make_report(events: Path, out: Path, log: Path) -> bool:
    """Make the report, and print where it is; False: it failed.

    If DuckDB is not installed, print that it is needed, and return True.
    """
    options = ["--events", str(events), "--out", str(out), "--lifetime", f"{SESSION_MS}ms"]
    if importlib.util.find_spec("duckdb") is None:
        print("Readiness report: needs DuckDB; install kafka-reauth-proxy[report], then")
        print(f"  reauth-proxy report {' '.join(options)}")
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
            print(f"Readiness report: not done in {REPORT_SECONDS:.0f} s, see {log}")
            return False
    if done.returncode:
        print(f"Readiness report: failed, see {log}")
        return False
    print(f"Readiness report: {out / 'index.html'}")
    return True
