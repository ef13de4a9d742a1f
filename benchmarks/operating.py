"""Cost of operation: duration of a start, of a scrape, and of a load of the status page.

    python -m benchmarks.operating
    python -m benchmarks.operating --figures start --rounds 20
    python -m benchmarks.operating --figures watch --connections 1000

About two minutes; needs what `benchmarks.bench` needs, without HAProxy and Kafka. The exit status
is 1 if a limit is not kept.

start   From fork to the line "accepting", and to the first answered request: with the fastest
        settings, and with all that a start can wait for (two workers, TLS, authorizer, quotas,
        OAUTHBEARER, events, HTTP). Then the packages that took longest to import in all of its
        processes together (`python -X importtime`, which makes imports slower).
watch   With many authenticated connections: a scrape of /metrics and a load of the page, each from
        connecting to the last byte, and the page's size. The worker's CPU time for each is what the
        data path loses; p99 of 16 busy connections, without and with a scrape every 100 ms, is what
        clients notice.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks import machine, report
from benchmarks.bench import fake_broker, make_lab
from benchmarks.load import Generator
from benchmarks.programs import (
    Address,
    MeasurementFailed,
    answers,
    compile_all,
    cpu_seconds,
    free_address,
    process_tree,
)
from benchmarks.targets import Lab, Target, proxy, proxy_config, sasl_ssl

START_LIMIT_S = 0.45
_SLOWEST_IMPORTS = 12
"""Number of packages that are listed with the time that their import takes."""
SCRAPE_LIMIT_MS = 50.0
PAGE_LIMIT_MS = 1_000.0
PAGE_LIMIT_KB = 200.0
_SCRAPES, _PAGES = 20, 5
_PAUSE_S = 0.1
_PAGE_PAUSE_S = 2.1
"""Seconds between two loads of the page, longer than it is cached."""
_LOAD_SECONDS = 5.0
_EVERYTHING: Mapping[str, Any] = {
    "authorizer": {"mode": "enforce", "allow.everyone.if.no.acl.found": True},
    "quotas": {"mode": "enforce"},
}


class Results:
    """Table of the results, and whether all limits were kept."""

    def __init__(self) -> None:
        self.table = Table(title="Operating")
        self.kept = True
        for name in ("what", "median", "worst", "to reach"):
            self.table.add_column(name, justify="left" if name == "what" else "right")

    def add(self, what: str, values: Sequence[float], unit: str, limit: float | None) -> None:
        """Add a row, and compare the median with the limit."""
        middle, digits = median(values), 2 if unit == "s" else 1
        missed = limit is not None and middle >= limit
        self.kept &= not missed
        colour = "red" if missed else "default" if limit is None else "green"
        self.table.add_row(
            what,
            f"[{colour}]{middle:,.{digits}f} {unit}[/]",
            f"{max(values):,.{digits}f}",
            "" if limit is None else f"< {limit:,.{digits}f}",
        )


def start(lab: Lab, options: argparse.Namespace, results: Results) -> None:
    """Measure starts of the proxy."""
    everything = dict(_EVERYTHING) | {"workers": 2}
    for name, listener, settings, leave_out in (
        ("the least", {"sasl.enabled.mechanisms": ["SCRAM-SHA-256"]}, {}, ("http", "events")),
        ("everything on", sasl_ssl(lab), everything, ()),
    ):
        address = free_address()
        document = proxy_config(lab, address, listener) | settings
        directory = lab.directory / name.replace(" ", "-")
        directory.mkdir()
        config = directory / "proxy.yaml"
        config.write_text(
            yaml.safe_dump({key: document[key] for key in document if key not in leave_out})
        )
        ca = lab.ca if "security.protocol" in listener else None
        found = [_started(config, address, ca) for _ in range(options.rounds + 1)][1:]
        results.add(f"start, {name}: accepting", [one for one, _ in found], "s", START_LIMIT_S)
        results.add(f"start, {name}: answering", [one for _, one in found], "s", START_LIMIT_S)
        for package, ms in _slowest_imports(config):
            results.add(f"  import of {package}", [ms], "ms", None)


def _started(config: Path, address: Address, ca: Path | None) -> tuple[float, float]:
    """Return the seconds until the line "accepting", and until a request was answered."""
    command = [sys.executable, "-m", "proxy", "serve", "--config", str(config)]
    begin = time.perf_counter()
    with (config.parent / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        accepting = time.perf_counter() - begin
        answered = "accepting" in line and answers(address, ca)
        answering = time.perf_counter() - begin
        process.terminate()
        if not answered:
            raise MeasurementFailed(f"did not start: {line}{(config.parent / 'log').read_text()}")
    return accepting, answering


def _slowest_imports(config: Path) -> list[tuple[str, float]]:
    """Return packages with the milliseconds that their modules took to import, slowest first."""
    command = [sys.executable, "-X", "importtime", "-m", "proxy", "serve", "--config", str(config)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        _, lines = process.communicate()
    took: Counter[str] = Counter()
    for line in lines.splitlines():
        if line.startswith("import time:") and (own := line[12:].split("|"))[0].strip().isdigit():
            took[own[2].strip().partition(".")[0]] += int(own[0])
    return [(name, us / 1e3) for name, us in took.most_common(_SLOWEST_IMPORTS)]


def watch(lab: Lab, options: argparse.Namespace, results: Results) -> None:
    """Measure scrapes and the status page of a proxy with many connections."""
    http = free_address()
    settings = dict(_EVERYTHING) | {"http": {"address": str(http)}}
    generator = Generator(program=options.programs["load"], credentials=lab.credentials)
    with ExitStack() as running:
        target = running.enter_context(proxy("watched", settings=settings)(lab))
        running.enter_context(generator.idle(target, options.connections, None))
        _check_connections(http, options.connections)
        with_them = f"{options.connections:,} connections"
        scrapes = _fetched(target, f"http://{http}/metrics", _SCRAPES, _PAUSE_S)
        results.add(f"scrape, {with_them}", scrapes.ms, "ms", SCRAPE_LIMIT_MS)
        results.add("  the worker's CPU for it", [scrapes.worker_cpu_ms], "ms", None)
        results.add("  size", scrapes.kb, "KB", None)
        pages = _fetched(target, f"http://{http}/", _PAGES, _PAGE_PAUSE_S)
        results.add(f"status page, {with_them}", pages.ms, "ms", PAGE_LIMIT_MS)
        results.add("  the worker's CPU for it", [pages.worker_cpu_ms], "ms", None)
        results.add("  size", pages.kb, "KB", PAGE_LIMIT_KB)
        _disturbed(generator, target, http, results)


class _Fetched:
    """Results of fetching a URL: durations, sizes, and the worker's CPU time for each."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.kb: list[float] = []
        self.worker_cpu_ms = 0.0


def _fetched(target: Target, url: str, times: int, pause: float) -> _Fetched:
    assert target.pid is not None
    worker = process_tree(target.pid)[1]
    found = _Fetched()
    _get(url)  # the first request imports modules
    time.sleep(pause)
    idle = _cpu_ms(worker, times * pause)
    before = cpu_seconds(worker)
    for _ in range(times):
        begin = time.perf_counter()
        body = _get(url)
        found.ms.append((time.perf_counter() - begin) * 1e3)
        found.kb.append(len(body) / 1e3)
        time.sleep(pause)
    found.worker_cpu_ms = max(0.0, (cpu_seconds(worker) - before) * 1e3 - idle) / times
    return found


def _cpu_ms(pid: int, seconds: float) -> float:
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) * 1e3


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
    return body


def _check_connections(http: Address, wanted: int) -> None:
    lines = _get(f"http://{http}/metrics").decode().splitlines()
    counted = [line for line in lines if line.startswith("kafka_reauth_proxy_connections{")]
    if sum(float(line.rpartition(" ")[2]) for line in counted) != wanted:
        raise MeasurementFailed(f"not {wanted} connections: {counted}")


def _disturbed(generator: Generator, target: Target, http: Address, results: Results) -> None:
    """Relay with and without scrapes, beside the idle connections."""

    def p99_ms() -> float:
        options = ["--in-flight", "1", "--payload", "100"]
        measured = generator.measure(
            target, "relay", connections=16, seconds=_LOAD_SECONDS, options=options
        )
        return float(measured.report["p99_us"]) / 1e3

    quiet, scraped = [], []
    for _ in range(3):
        quiet.append(p99_ms())
        with _scraping(http):
            scraped.append(p99_ms())
    results.add("p99 of 16 busy connections", quiet, "ms", None)
    results.add("  with a scrape every 100 ms", scraped, "ms", None)


@contextmanager
def _scraping(http: Address) -> Iterator[None]:
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(_PAUSE_S):
            _get(f"http://{http}/metrics")

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


FIGURES: Mapping[str, Callable[[Lab, argparse.Namespace, Results], None]] = {
    "start": start,
    "watch": watch,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 0, or 1 if a limit was not kept."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operating",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--figures", default="start,watch", metavar="A,B")
    parser.add_argument("--rounds", type=int, default=10, help="starts (default 10)")
    parser.add_argument("--connections", type=int, default=5_000, help="(default 5000)")
    options = parser.parse_args(arguments)
    if unknown := set(options.figures.split(",")) - FIGURES.keys():
        parser.error(f"no such figures: {', '.join(sorted(unknown))}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    console, results = Console(width=100), Results()
    with tempfile.TemporaryDirectory(prefix="operating-") as name:
        directory = Path(name)
        options.programs = compile_all(directory)
        with fake_broker(options.programs, make_lab(directory)) as lab:
            console.print(report.machine(machine.describe(pinned=False)))
            for figure in options.figures.split(","):
                FIGURES[figure](lab, options, results)
    console.print(results.table)
    return 0 if results.kept else 1


if __name__ == "__main__":
    sys.exit(main())
