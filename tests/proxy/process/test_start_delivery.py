"""The deliverer as a process beside the workers: start, accidents, end."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from tests.support.kafka.delivery import messages
from tests.support.processes import free_ports
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, eventually, sockets_of

TOPIC = "sessions"


class Cluster:
    """librdkafka's own stand-in for a cluster of one broker. Only `create_topic` makes topics: the
    deliverer asks for none to be created."""

    def __init__(self) -> None:
        self._producer = confluent.Producer({"test.mock.num.brokers": 1})
        (broker,) = self._producer.list_topics(timeout=PATIENCE_SECONDS).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def create_topic(self) -> None:
        self._producer.produce(TOPIC, b"{}")
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def delivered(self) -> list[dict[str, Any]]:
        """The events of the topic, without the message that created it."""
        return [event for _, value in messages(self.address, TOPIC) if (event := json.loads(value))]


def deliver(serving: Serving, address: str, **more: object) -> None:
    target = {"to": f"kafka:{TOPIC}", "kafka": {"bootstrap.servers": address}, **more}
    serving.settings["events"] = {"directory": "events", "rotate.ms": 500, "deliver": target}
    serving.write()


@pytest.fixture
def cluster(serving: Serving) -> Iterator[Cluster]:
    """The cluster that is delivered to."""
    made = Cluster()
    deliver(serving, made.address, hide=["client_host"])
    yield made
    serving.stop()  # before the cluster, whose end would be logged


@pytest.fixture
def topic(cluster: Cluster) -> Cluster:
    """The same with the topic."""
    cluster.create_topic()
    return cluster


@pytest.mark.usefixtures("topic")
def test_the_parent_alone_has_the_socket_of_take_overs(serving: Serving) -> None:
    """A child that outlives it would keep the next process waiting, or let both proxies end."""
    serving.start()
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    ours = {*sockets_of(serving.process.pid)}
    # proc(5): …, inode, path
    (inode,) = [row[-2] for row in rows if row[-1].endswith(".take-over") and row[-2] in ours]
    eventually(
        lambda: not any(inode in sockets_of(pid) for pid in serving.children()),
        "every child has closed it",
    )


def test_events_are_delivered_and_the_last_ones_at_the_end(
    serving: Serving, topic: Cluster
) -> None:
    serving.start()
    eventually(lambda: len(serving.children()) == 5, "the deliverer runs beside the others")
    serving.handshake_error()
    eventually(lambda: len(topic.delivered()) > 0, "the events are delivered")
    eventually(
        lambda: serving.metric("delivery_events_total") == len(topic.delivered()), "and counted"
    )
    eventually(lambda: serving.metric("delivery_waiting_bytes") == 0, "none waits")
    assert serving.metric("delivery_last_success_timestamp_seconds") > 0
    facts = json.loads(serving.page("/sessions.json")[1])
    (shown,) = [one for one in facts["conditions"] if one["what"] == "delivery"]
    assert "no event lost" in [one["state"] for one in facts["conditions"]]
    assert (shown["name"], shown["good"]) == (f"kafka:{TOPIC}", True)
    assert shown["state"].startswith("all delivered ")
    assert {event["client_host"] for event in topic.delivered()} == {"hidden"}
    before = len(topic.delivered())
    serving.handshake_error()
    serving.process.terminate()
    assert serving.process.wait(PATIENCE_SECONDS) == 0
    assert len(topic.delivered()) > before, "what a worker wrote at its end is delivered"
    assert not list(serving.path.with_name("events").glob("*.open"))
    assert "Traceback" not in serving.log()


def test_a_deliverer_that_dies_is_restarted_and_its_counts_stay(
    serving: Serving, topic: Cluster
) -> None:
    serving.start()
    serving.handshake_error()
    eventually(lambda: serving.metric("delivery_events_total") > 0, "events are delivered")
    before = serving.metric("delivery_events_total")
    os.kill(serving.children()[-1], signal.SIGKILL)
    eventually(lambda: "deliverer was ended by SIGKILL, restarting it" in serving.log(), "noticed")
    serving.handshake_error()
    eventually(lambda: serving.metric("delivery_events_total") > before, "it delivers")
    eventually(
        lambda: len(topic.delivered()) == serving.metric("delivery_events_total"),
        "and nothing twice",
    )


@pytest.mark.slow
def test_a_topic_that_is_missing_delays_nothing(serving: Serving, cluster: Cluster) -> None:
    """Events wait, and that is reported; at the end the proxy waits for `drain.ms` at most."""
    serving.settings["events"]["deliver"]["drain.ms"] = 100
    serving.write()
    serving.start()
    assert serving.handshake_error() == 0
    eventually(lambda: serving.metric("delivery_failures_total") > 0, "the failure is counted")
    assert f"there is no topic '{TOPIC}'; create it" in serving.log()
    assert serving.metric("delivery_waiting_bytes") > 0
    cluster.create_topic()
    eventually(lambda: len(cluster.delivered()) > 0, "events are delivered to the new topic")
    eventually(lambda: "events are delivered again" in serving.log(), "and that is logged")


@pytest.mark.slow
def test_brokers_that_are_gone_do_not_delay_the_end(serving: Serving) -> None:
    deliver(serving, f"127.0.0.1:{free_ports(1)[0]}", **{"drain.ms": 100})
    serving.start()
    serving.handshake_error()
    eventually(lambda: serving.metric("delivery_failures_total") > 0, "the failure is counted")
    serving.process.terminate()
    assert serving.process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.slow
def test_events_that_are_removed_with_their_folder_end_no_delivery(
    serving: Serving, topic: Cluster
) -> None:
    serving.start()
    serving.handshake_error()
    eventually(lambda: len(topic.delivered()) > 0, "the events are delivered")
    before = len(topic.delivered())
    shutil.rmtree(serving.path.with_name("events"))
    eventually(lambda: "was moved or replaced" in serving.log(), "it is noticed")

    def more_come() -> bool:
        serving.handshake_error()
        return len(topic.delivered()) > before

    eventually(more_come, "events of the new folder are delivered")
