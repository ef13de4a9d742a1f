"""`python -m proxy serve` while its signing keys, its broker or its events' directory are away."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.frames import metadata
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, eventually

ROOT = Path(__file__).parents[3]


@contextmanager
def broker(port: int) -> Iterator[None]:
    """Somebody who answers what a proxy asks."""
    command = [sys.executable, "-m", "tests.support.fake_broker", f"1=127.0.0.1:{port}"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.kill()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    one = Serving(tmp_path, workers=1)
    yield one
    one.stop()


def broker_port(serving: Serving) -> int:
    return int(serving.settings["upstream"]["bootstrap.servers"].rpartition(":")[2])


def metric(serving: Serving, name: str) -> float:
    """Its value; of several label sets, the last one's."""
    _, body = serving.get("/metrics")
    found = re.findall(rf"^kafka_reauth_proxy_{re.escape(name)} (\S+)$", body, re.MULTILINE)
    return float(found[-1]) if found else -1.0


def not_ready(serving: Serving) -> list[str]:
    """Why it is not; empty: it is."""
    status, body = serving.get("/readyz")
    reasons = [reason for one in json.loads(body)["workers"] for reason in one["reasons"]]
    assert status == (503 if reasons else 200)
    return reasons


def test_a_broker_that_goes_away_and_comes_back_is_told(serving: Serving) -> None:
    (listener,) = serving.settings["listeners"]
    for key in ("sasl.enabled.mechanisms", "reauth.enforcement"):
        del listener[key]
    listener["security.protocol"] = "PLAINTEXT"
    serving.write()
    with broker(broker_port(serving)):
        serving.start()
        eventually(lambda: metric(serving, "upstream_unreachable") == 0, "it is reached")
    with socket.create_connection(("127.0.0.1", serving.port), PATIENCE_SECONDS) as client:
        client.sendall(metadata(1, b"\0\0\0\0"))
        assert client.recv(1) == b"", "there is no broker to ask"
    eventually(lambda: metric(serving, "upstream_unreachable") == 1, "it is not reached")
    eventually(lambda: not_ready(serving) == [], "it goes on as soon as the broker does")
    eventually(lambda: serving.log().count("no broker can be reached: ") == 1, "it is logged")
    with broker(broker_port(serving)):
        eventually(lambda: metric(serving, "upstream_unreachable") == 0, "it is reached again")
        eventually(lambda: serving.log().count("brokers can be reached again") == 1, "logged too")


def test_a_worker_that_dies_while_its_groups_are_not_valid_waits_for_them(
    serving: Serving, tmp_path: Path
) -> None:
    """The proxy could start with them, and does not give up."""
    path = tmp_path / "groups.json"
    path.write_text('{"groups": {}}')
    serving.settings["listeners"][0]["groups.file"] = str(path)
    serving.write()
    assert "accepting" in serving.start()
    eventually(lambda: serving.workers_up() == [True], "the worker answers")
    path.write_text('{"groups": {"half')
    os.kill(serving.children()[0], signal.SIGKILL)
    waits = f"waits to start: groups.file: {path} is not a JSON object"
    eventually(lambda: waits in serving.log(), "it says what it waits for")
    path.write_text('{"groups": {}}')
    eventually(lambda: serving.workers_up() == [True], "it has them again")
    assert "Traceback" not in serving.log()
