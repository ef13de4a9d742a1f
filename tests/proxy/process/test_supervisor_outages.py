"""`python -m proxy serve` while its signing keys, its broker or its events' directory are away."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.frames import metadata
from tests.support.processes import free_ports
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, eventually
from tests.support.sasl import document, ed_key

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


def test_a_listener_whose_keys_are_too_old_makes_the_proxy_not_ready(serving: Serving) -> None:
    """Although another listener's clients could be served: the reason names the listener."""
    (passwords,) = serving.settings["listeners"]
    keys = serving.path.with_name("keys.json")
    keys.write_bytes(document(ed_key().jwk()))
    tokens = passwords | {
        "name": "tokens",
        "address": f"127.0.0.1:{free_ports(1)[0]}",
        "sasl.enabled.mechanisms": ["OAUTHBEARER"],
        "sasl.oauthbearer.jwks.endpoint.url": "file:keys.json",
        "sasl.oauthbearer.expected.audience": ["kafka"],
        "sasl.oauthbearer.expected.issuer": "https://issuer.test",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": 200,
        "sasl.oauthbearer.jwks.max.stale.ms": 1_000,
    }
    serving.settings["listeners"].append(tokens)
    serving.write()
    with broker(broker_port(serving)):
        serving.start()
        eventually(lambda: not_ready(serving) == [], "it is ready")
        keys.rename(keys.with_name("away"))
        too_old = "listener tokens: signing keys are too old, read "
        eventually(
            lambda: [one.startswith(too_old) for one in not_ready(serving)] == [True],
            "its keys are too old",
        )
        eventually(lambda: metric(serving, 'ready{worker="0"}') == 0, "so says the metric")
        said = "the keys are too old, every token is refused"
        eventually(lambda: said in serving.log(), "the next attempt fails")
        keys.with_name("away").rename(keys)
        eventually(lambda: not_ready(serving) == [], "they are read again")


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


def test_a_directory_of_events_that_is_removed_is_made_anew(serving: Serving) -> None:
    events = serving.path.with_name("events")
    serving.settings["events"] = {"directory": "events"}
    serving.write()
    with broker(broker_port(serving)):
        serving.start()
        serving.handshake_error()
        eventually(lambda: metric(serving, "events_written_total") > 0, "an event is written")
        shutil.rmtree(events)
        lost = 'events_dropped_total{reason="file_removed"}'
        eventually(lambda: metric(serving, lost) > 0, "it is noticed")
        eventually(lambda: "which was removed or moved away; " in serving.log(), "it is logged")
        serving.handshake_error()
        eventually(lambda: bool(list(events.glob("*"))), "events are written again")
        eventually(
            lambda: metric(serving, lost) < metric(serving, "events_written_total"),
            "some were not lost",
        )


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
    waits = f"waits to start: groups.file: {path} is no JSON object"
    eventually(lambda: waits in serving.log(), "it says what it waits for")
    path.write_text('{"groups": {}}')
    eventually(lambda: serving.workers_up() == [True], "it has them again")
    assert "Traceback" not in serving.log()
