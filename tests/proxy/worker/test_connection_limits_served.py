"""Limits of connections, of a proxy of two workers as an operator runs it."""

import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.frames import handshake
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, eventually

MOST = 20
ELSEWHERE = "127.0.0.9"
"""All of 127.0.0.0/8 is this machine."""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path, workers=2)
    made.settings["listeners"][0]["max.connections"] = MOST
    made.write()
    yield made
    made.stop()


def connect(serving: Serving, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(
        ("127.0.0.1", serving.port), timeout=PATIENCE_SECONDS, source_address=(source, 0)
    )


def closed(serving: Serving, reason: str) -> float:
    _, page = serving.get("/metrics")
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.endswith("connections_closed_total")
        and sample.labels.get("reason") == reason
    )


def test_strangers_who_stay_silent_keep_nobody_out(serving: Serving) -> None:
    """Who has not logged in for longest makes room, in whichever worker it is."""
    assert "accepting" in serving.start()
    with contextlib.ExitStack() as strangers:
        for _ in range(3 * MOST):
            strangers.enter_context(connect(serving))
        assert [serving.handshake_error() for _ in range(10)] == [0] * 10
        assert 2 * MOST <= closed(serving, "evicted") <= 2 * MOST + 10
        assert closed(serving, "too_many_connections") == 0


def test_an_address_has_as_many_as_it_may_have_in_all_workers(serving: Serving) -> None:
    """A reload changes it for those that come after."""
    serving.settings |= {
        "max.connections.per.ip": 6,
        "max.connections.per.ip.overrides": f"{ELSEWHERE}:2",
    }
    serving.write()
    assert "accepting" in serving.start()
    with contextlib.ExitStack() as clients:
        mine = [clients.enter_context(connect(serving)) for _ in range(10)]
        others = [clients.enter_context(connect(serving, ELSEWHERE)) for _ in range(4)]
        assert (answered(mine), answered(others)) == (6, 2)
        assert closed(serving, "too_many_from_address") == 6
        serving.settings["max.connections.per.ip.overrides"] = [f"{ELSEWHERE}:3"]
        serving.write()
        serving.process.send_signal(signal.SIGHUP)
        told = "reloaded: max.connections.per.ip.overrides"
        eventually(lambda: told in serving.log(), "the reload is told")

        def comes_in() -> bool:
            with connect(serving, ELSEWHERE) as client:
                return answered([client]) == 1

        eventually(comes_in, "every worker has heard of it")


def answered(clients: list[socket.socket]) -> int:
    """How many of them are served; the others are closed."""
    served = 0
    for client in clients:
        with contextlib.suppress(ConnectionError):
            client.sendall(handshake(1, "SCRAM-SHA-256"))
            served += len(client.recv(1_000)) > 0
    return served
