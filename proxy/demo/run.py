"""Sequence of the demo from its first process to its last."""

import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console
from rich.text import Text

from proxy.demo import observed
from proxy.demo.broker import BROKERS
from proxy.demo.display import Show, screen
from proxy.demo.observed import Metrics, ObservedEvents
from proxy.demo.processes import DemoFailed, Program
from proxy.demo.readiness import make_report
from proxy.demo.report import Report, read_report
from proxy.demo.setup import SESSION_MS, Environment, free_ports
from proxy.demo.verdict import INTRUDER, LEDGER, ORDERS, PAYMENTS, Counted, Finding, judge

START_SECONDS: Final = 120.0
"""Seconds in which the brokers, and the proxy, must start."""
LOOK_SECONDS: Final = 0.5
"""Seconds between two updates of the display."""
STOP_SECONDS: Final = 60.0
"""Seconds in which clients must drain and end, and after them the proxy and the brokers."""
INTERRUPTED: Final = 130
"""Exit status of an interrupted program: 128 + SIGINT."""


def play(seconds: float) -> int:
    """Run everything, the clients for `seconds`; return the exit status."""
    console = Console()
    directory = Path(tempfile.mkdtemp(prefix="reauth-proxy-demo-"))
    setup = Environment(directory=directory, first_port=free_ports(BROKERS + 3))
    demo = _Demo(setup, console)
    try:
        with _interruptible() as interruption:
            demo.run(seconds, interruption)
    except KeyboardInterrupt:
        console.print("Interrupted.")
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

    def __init__(self, setup: Environment, console: Console) -> None:
        self._setup = setup
        self._console = console
        self._brokers: Program | None = None
        self._proxy: Program | None = None
        self._clients: dict[str, Program] = {}
        self._log = ObservedEvents(setup.events)
        self._metrics = Metrics(f"http://{setup.http}/metrics")

    def run(self, seconds: float, interruption: _Interruption) -> None:
        """Start everything, watch it, end the clients."""
        self._console.print(
            Text(
                "Kafka clients must log in again before their session ends (KIP-368): those that do"
                " go on working, one that cannot is cut off, one that never may is kept out."
            ),
            soft_wrap=not self._console.is_terminal,
        )
        self._console.print(
            Text(f"Three brokers, reauth-proxy and four clients work for {seconds:.0f} seconds.")
        )
        self._brokers = self._start("broker", "proxy.demo.broker", [])
        self._setup.set_up(self._brokers.wait_for_line(START_SECONDS))
        self._proxy = self._start("proxy", "proxy", ["serve", "--config", str(self._setup.config)])
        self._proxy.wait_for_line(START_SECONDS)
        self._console.print(Text(f"Status page: http://{self._setup.http}/"), soft_wrap=True)
        for name, (module, options) in self._client_programs().items():
            common = ["--bootstrap-server", self._setup.bootstrap, "--client-id", name]
            self._clients[name] = self._start(name, module, [*common, *options])
        with screen(self._console) as show:
            self._watch(seconds, show, interruption)
        self._end_clients()
        self._metrics.scrape()

    def _client_programs(self) -> Mapping[str, tuple[str, Sequence[str]]]:
        setup, modern, old = (
            self._setup,
            "proxy.demo.modern_client",
            "proxy.demo.old_client",
        )
        return {
            PAYMENTS: (modern, ["--key-file", str(setup.key)]),
            ORDERS: (modern, ["--password-file", str(setup.password(ORDERS))]),
            LEDGER: (
                old,
                ["--password-file", str(setup.password(LEDGER)), "--topic", ORDERS],
            ),
            INTRUDER: (modern, ["--key-file", str(setup.unknown_key)]),
        }

    def _start(self, name: str, module: str, arguments: Sequence[str]) -> Program:
        return Program(name, module, arguments, self._setup.log(name))

    def _watch(self, seconds: float, show: Show, interruption: _Interruption) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            interruption.check()
            for program in (self._brokers, self._proxy, *self._clients.values()):
                if program is not None and not program.running:
                    raise DemoFailed(f"{program.name} ended too early, see {program.log}")
            self._metrics.scrape()
            self._log.follow()
            show(left, self._log, self._metrics, self._reports())
            time.sleep(min(LOOK_SECONDS, left))

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
        self._console.print(f"\nA session lasted {SESSION_MS // 1000} seconds at most.")
        for finding in findings:
            self._print(finding)
        directory = self._setup.directory
        for what, where in (
            ("Events", self._setup.events),
            ("Metrics", metrics),
            ("All that was made (remove it with rm -r)", directory),
        ):
            self._console.print(Text(f"{what}: {where}"), soft_wrap=True)
        log = directory / "report.log"
        made = make_report(self._setup.events, directory / "report", log, self._console)
        return 0 if made and all(finding.good for finding in findings) else 1

    def _print(self, finding: Finding) -> None:
        mark = ("✓", "green") if finding.good else ("✗", "red")
        text = Text.assemble(mark, " ", finding.text)
        self._console.print(text, soft_wrap=not self._console.is_terminal)
