"""Limits of connections, of a proxy of two workers as an operator runs it."""

import contextlib
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.frames import handshake
from tests.support.proxy_process import PATIENCE_SECONDS, Serving, eventually

LIMIT = 20
ELSEWHERE = "127.0.0.9"
"""All of 127.0.0.0/8 is this machine."""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path, workers=2)
    made.settings["listeners"][0]["max.connections"] = LIMIT
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


def test_unauthenticated_clients_keep_nobody_out(serving: Serving) -> None:
    """An old unauthenticated connection is closed to free a slot, in whichever worker it is.

    They come one by one: two at once, in two workers, may close more than two others.
    """
    assert "accepting" in serving.start()
    clients: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for _ in range(3 * LIMIT):
            newest = stack.enter_context(connect(serving))
            assert is_served(newest)
            clients.append(newest)
            if len(clients) > LIMIT:
                (evicted,), _, _ = select.select(clients, [], [], PATIENCE_SECONDS)
                assert evicted is not newest
                clients.remove(evicted)
        eventually(lambda: closed(serving, "evicted") == 2 * LIMIT, "they are counted")
        assert closed(serving, "too_many_connections") == 0


def test_an_address_has_as_many_as_it_may_have_in_all_workers(serving: Serving) -> None:
    """A reload changes it for those that come after.

    They come one by one: of two at once for the last place, in two workers, both may be refused.
    """
    serving.settings |= {
        "max.connections.per.ip": 6,
        "max.connections.per.ip.overrides": f"{ELSEWHERE}:2",
    }
    serving.write()
    assert "accepting" in serving.start()
    with contextlib.ExitStack() as clients:
        mine = [is_served(clients.enter_context(connect(serving))) for _ in range(10)]
        others = [is_served(clients.enter_context(connect(serving, ELSEWHERE))) for _ in range(4)]
        assert (mine, others) == ([True] * 6 + [False] * 4, [True] * 2 + [False] * 2)
        eventually(lambda: closed(serving, "too_many_from_address") == 6, "they are counted")
        serving.settings["max.connections.per.ip.overrides"] = [f"{ELSEWHERE}:3"]
        serving.write()
        serving.process.send_signal(signal.SIGHUP)
        reported = "reloaded: max.connections.per.ip.overrides"
        eventually(lambda: reported in serving.log(), "the reload is told")

        def comes_in() -> bool:
            with connect(serving, ELSEWHERE) as client:
                return is_served(client)

        eventually(comes_in, "every worker has heard of it")


def is_served(client: socket.socket) -> bool:
    """Return whether it gets an answer; otherwise it is closed."""
    with contextlib.suppress(ConnectionError):
        client.sendall(handshake(1, "SCRAM-SHA-256"))
        return bool(client.recv(1_000))
    return False
