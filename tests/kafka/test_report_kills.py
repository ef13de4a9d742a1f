"""Nothing is lost while proxy, deliverer, broker and report are killed."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.cli import app
from tests.support.kafka.cluster import KafkaCluster, StartCluster
from tests.support.kafka.delivery import command, messages
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.wire_client import Address, WireClient
from tests.support.proxy_process import ProxyProcess, alive, eventually, sidecar_config
from tests.support.readiness import comparable
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPIC = "session-events"
CLIENTS = 3


@contextmanager
def logins(address: Address, issuer: Issuer) -> Iterator[None]:
    """Clients that log in, some twice, and reconnect if they are disconnected."""
    enough = threading.Event()

    def log_in() -> None:
        while not enough.is_set():
            # errors of clients whose proxy is killed
            with suppress(OSError, AssertionError), WireClient(address) as client:
                actor = Actor(client, issuer)
                actor.oauth(issuer.mint("carol"))
                actor.oauth(issuer.mint("carol"))
            enough.wait(0.02)

    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(log_in) for _ in range(CLIENTS)]
        try:
            yield
        finally:
            enough.set()
        for each in running:
            each.result()


class Reports:
    """Repeated reports of the topic with a persistent state."""

    def __init__(self, kafka: KafkaCluster, directory: Path) -> None:
        self._kafka = kafka
        self._directory = directory
        self._as_of = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}"
        self.state = directory / "state"

    def command(self, events: str, out: str, *more: str) -> list[str]:
        arguments = ["report", "--events", events, "--out", str(self._directory / out)]
        return [*arguments, "--as-of", self._as_of, *more]

    def of_topic(self) -> list[str]:
        options = ["--bootstrap-server", self._kafka.bootstrap(), "--state", str(self.state)]
        return self.command(f"kafka:{TOPIC}", "of-topic", *options)

    def kill_one(self) -> None:
        """Kill a report while it writes its table or soon after."""
        lines, table = self.state / "topic" / "half.jsonl", self.state / "topic" / "topic.json"
        before = table.stat().st_mtime_ns if table.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-m", "proxy", *self.of_topic()], stderr=subprocess.DEVNULL
        )
        try:

            def has_begun() -> bool:
                saved = table.exists() and table.stat().st_mtime_ns != before
                return lines.exists() or saved or process.poll() is not None

            eventually(has_begun, "the report reads")
        finally:
            process.kill()
            process.wait()

    def facts(self, out: str, arguments: list[str]) -> dict[str, Any]:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads((self._directory / out / "report.json").read_text())
        del found["run_id"], found["source"]
        return found


def kill_proxy(proxy: ProxyProcess) -> None:
    """SIGKILL to all its processes, like the OOM killer."""
    children = proxy.children()
    proxy.signal(signal.SIGKILL)
    proxy.wait()
    eventually(lambda: not any(map(alive, children)), "its children end")


def test_nothing_is_lost_whatever_is_killed(
    start_cluster: StartCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """Every event in the files reaches the topic, and both give the same report."""
    kafka = start_cluster(nodes=1)
    kafka.create_topic(TOPIC, partitions=3)
    config = sidecar_config(str(kafka.address()), jwks, listeners={"LONG": 3_600_000})
    config["events"] |= {"rotate.ms": 2_000, "deliver": {"to": f"kafka:{TOPIC}"}}
    config["workers"] = 2
    events, reports = tmp_path / "events", Reports(kafka, tmp_path)
    proxy = ProxyProcess(config, tmp_path)

    def found() -> list[bytes]:
        return [value for _, value in messages(kafka.bootstrap(), TOPIC)]

    def more_arrive() -> None:
        before = len(found())
        eventually(lambda: len(found()) > before, "events arrive")

    with proxy, logins(proxy.addresses()["LONG"], issuer):
        more_arrive()
        for pid in proxy.children():  # workers, the HTTP process, the deliverer
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            more_arrive()
        reports.kill_one()
        kafka.kill_node(1)
        kafka.start_node(1)
        more_arrive()
        reports.kill_one()
        kill_proxy(proxy)
        proxy.start()
        more_arrive()
    deliver = command(events, TOPIC, "--bootstrap-server", kafka.bootstrap())
    eventually(lambda: CliRunner().invoke(app, deliver).exit_code == 0, "the rest is delivered")
    written = [line for file in events.glob("*.jsonl") for line in file.read_bytes().splitlines()]
    assert not list(events.glob("*.open"))
    assert set(found()) == set(written)
    of_topic = reports.facts("of-topic", reports.of_topic())
    of_files = reports.facts("of-files", reports.command(str(events), "of-files"))
    twice = len(found()) - len(written)
    assert of_topic["lines"].pop("duplicate") == twice
    assert of_files["lines"].pop("duplicate") == 0
    assert of_topic["lines"].pop("lines") == of_files["lines"].pop("lines") + twice
    assert comparable(of_topic) == comparable(of_files)
