"""The deliverer as a process beside the workers: start, accidents, end."""

import gzip
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.proxy_process import PATIENCE_SECONDS, Serving, eventually, sockets_of


@pytest.fixture
def shared(serving: Serving) -> Path:
    """The folder that is delivered to."""
    folder = serving.path.with_name("shared")
    folder.mkdir()
    serving.settings["events"] = {
        "directory": "events",
        "rotate.ms": 500,
        "deliver": {"to": folder.as_uri(), "hide": ["client_host"]},
    }
    serving.write()
    return folder


def delivered(shared: Path) -> list[dict[str, object]]:
    paths = sorted(shared.rglob("*.jsonl.gz"))
    lines = [line for path in paths for line in gzip.decompress(path.read_bytes()).splitlines()]
    return [json.loads(line) for line in lines]


def metric(serving: Serving, name: str) -> float:
    families = text_string_to_metric_families(serving.get("/metrics")[1])
    (found,) = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == f"kafka_reauth_proxy_delivery_{name}"
    ]
    return found


def deliverer_of(serving: Serving) -> int:
    return serving.children()[-1]


def test_the_parent_alone_has_the_socket_of_take_overs(serving: Serving, shared: Path) -> None:
    """A child that outlives it would keep the next process waiting, or let both proxies end."""
    assert shared.is_dir()
    serving.start()
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    ours = {*sockets_of(serving.process.pid)}
    # proc(5): …, inode, path
    (inode,) = [row[-2] for row in rows if row[-1].endswith(".take-over") and row[-2] in ours]
    eventually(
        lambda: not any(inode in sockets_of(pid) for pid in serving.children()),
        "every child has closed it",
    )


def test_events_are_delivered_and_the_last_ones_at_the_end(serving: Serving, shared: Path) -> None:
    serving.start()
    eventually(lambda: len(serving.children()) == 5, "the deliverer runs beside the others")
    serving.handshake_error()
    eventually(lambda: len(delivered(shared)) > 0, "the events are delivered")
    eventually(lambda: metric(serving, "events_total") == len(delivered(shared)), "and counted")
    eventually(lambda: metric(serving, "waiting_bytes") == 0, "none waits")
    assert metric(serving, "last_success_timestamp_seconds") > 0
    facts = json.loads(serving.get("/sessions.json")[1])
    (shown,) = [one for one in facts["conditions"] if one["what"] == "delivery"]
    assert (shown["name"], shown["good"]) == (shared.as_uri(), True)
    assert shown["state"].startswith("all delivered ")
    assert {event["client_host"] for event in delivered(shared)} == {"hidden"}
    before = len(delivered(shared))
    serving.handshake_error()
    serving.process.terminate()
    assert serving.process.wait(PATIENCE_SECONDS) == 0
    assert len(delivered(shared)) > before, "what a worker wrote at its end is delivered"
    assert not list(serving.path.with_name("events").glob("*.open"))
    assert "Traceback" not in serving.log()


def test_a_deliverer_that_dies_is_started_anew_and_its_counts_stay(
    serving: Serving, shared: Path
) -> None:
    serving.start()
    serving.handshake_error()
    eventually(lambda: metric(serving, "events_total") > 0, "events are delivered")
    before = metric(serving, "events_total")
    os.kill(deliverer_of(serving), signal.SIGKILL)
    eventually(lambda: "deliverer was ended by SIGKILL, restarting it" in serving.log(), "noticed")
    serving.handshake_error()
    eventually(lambda: metric(serving, "events_total") > before, "it delivers")
    eventually(
        lambda: len(delivered(shared)) == metric(serving, "events_total"), "and nothing twice"
    )


@pytest.mark.slow
def test_a_folder_that_is_not_there_holds_nothing_up(serving: Serving, shared: Path) -> None:
    """Events wait, which is seen; at the end the proxy waits no longer than it may."""
    shared.rmdir()
    serving.settings["events"]["deliver"]["drain.ms"] = 100
    serving.write()
    serving.start()
    assert serving.handshake_error() == 0
    eventually(lambda: metric(serving, "failures_total") > 0, "the failure is counted")
    assert "does not take them: No such file or directory" in serving.log()
    assert metric(serving, "waiting_bytes") > 0
    shared.mkdir()
    eventually(lambda: len(delivered(shared)) > 0, "it is mended")
    eventually(lambda: "events are delivered again" in serving.log(), "and logged")
    shutil.rmtree(shared)
    serving.handshake_error()
    serving.process.terminate()
    assert serving.process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.slow
def test_events_that_are_removed_with_their_folder_end_no_delivery(
    serving: Serving, shared: Path
) -> None:
    serving.start()
    serving.handshake_error()
    eventually(lambda: len(delivered(shared)) > 0, "the events are delivered")
    before = len(delivered(shared))
    shutil.rmtree(serving.path.with_name("events"))
    eventually(lambda: "was moved or replaced" in serving.log(), "it is noticed")

    def more_come() -> bool:
        serving.handshake_error()
        return len(delivered(shared)) > before

    eventually(more_come, "events of the new folder are delivered")
