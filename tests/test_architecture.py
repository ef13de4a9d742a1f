"""What import-linter cannot say, and import-linter itself."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("proxy", "sasl", "metrics")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MAY_KNOW_ASYNCIO = {
    "proxy/accepted.py",
    "proxy/admin/client.py",
    "proxy/admin/connection.py",
    "proxy/admin_socket.py",
    "proxy/cli/administration.py",
    "proxy/bulk.py",
    "proxy/child.py",
    "proxy/control.py",
    "proxy/door.py",
    "proxy/doors.py",
    "proxy/http.py",
    "proxy/http_process.py",
    "proxy/identity_provider.py",
    "proxy/keys.py",
    "proxy/lanes.py",
    "proxy/listener.py",
    "proxy/login.py",
    "proxy/quota_cluster.py",
    "proxy/relay.py",
    "proxy/routing/discovery.py",
    "proxy/routing/transparent.py",
    "proxy/service_connection.py",
    "proxy/status/service.py",
    "proxy/store/brokers/administration.py",
    "proxy/store/brokers/follower.py",
    "proxy/storekeeper.py",
    "proxy/tls/follower.py",
    "proxy/tls/peers.py",
    "proxy/tls/transport.py",
    "proxy/token_source.py",
    "proxy/turns.py",
    "proxy/unending.py",
    "proxy/upstream_identity.py",
    "proxy/worker.py",
    "proxy/worker_process.py",
}
"""The shell. Everything else is told what happened, and when."""

MAY_READ_A_CLOCK = MAY_KNOW_ASYNCIO | {
    "metrics/event_writer.py",  # a thread of its own
    "metrics/spark/job.py",  # reads, calls, writes
    "proxy/children.py",
    "proxy/server.py",
}
PROGRAMS = ("proxy/cli/", "proxy/demo/")
"""Run by people, for as long as it takes."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(path: Path) -> Iterator[str]:
    """The top-level names of what a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (name.name.partition(".")[0] for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


def test_import_contracts() -> None:
    """The contracts stand in pyproject.toml."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout


def test_only_the_shell_knows_asyncio() -> None:
    knows = {
        relative(path) for path in MODULES if {"asyncio", "uvloop", "aiohttp"} & {*imported(path)}
    }
    assert knows == MAY_KNOW_ASYNCIO


def test_only_the_shell_reads_a_clock() -> None:
    """Time is an argument: a test then needs no sleep, and an hour is a number."""
    clock = re.compile(r"\btime\.(time|monotonic|perf_counter)(_ns)?\(|datetime\.(now|utcnow)\(")
    reads = {relative(path) for path in MODULES if clock.search(path.read_text())}
    assert {name for name in reads - MAY_READ_A_CLOCK if not name.startswith(PROGRAMS)} == set()


def test_nobody_imports_tests_or_benchmarks() -> None:
    guilty = [relative(path) for path in MODULES if {"tests", "benchmarks"} & {*imported(path)}]
    assert guilty == []
