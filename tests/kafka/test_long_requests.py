"""Requests of more than a megabyte, judged item by item: what Kafka serves is served.

And what somebody who means harm can do with them: the proxy's memory stays bounded, and others are
served.
"""

import contextlib
import dataclasses
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from proxy.scheduling.memory_budget import LONG_BYTES, MAX_BYTES
from tests.support.kafka.acl_differential.profiles import creation
from tests.support.kafka.acl_differential.side import PASSWORD, SCRAM, Client, log_in
from tests.support.kafka.clients import add_users
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.wire_client import Address, Outcome, WireClient, request_header
from tests.support.messages import request_body
from tests.support.proxy_process import SUPER_USER, ProxyProcess, enforcing_acls, sidecar_config

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

METADATA = 3
MIB = 1_048_576
ATTACKERS = 6
LONGEST = 104_857_600
"""Kafka's `socket.request.max.bytes`."""


@pytest.fixture(scope="module")
def proxy(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    config = sidecar_config(str(kafka.address()), jwks, listeners={"LONG_BYTES": 3_600_000})
    # A client that waits behind attackers must not be closed as idle.
    directory = tmp_path_factory.mktemp("long")
    process = ProxyProcess(enforcing_acls(config, workers=1), directory)
    add_users(process)
    for name in (SUPER_USER, "carol", "mallory"):
        process.add_user(name, PASSWORD, SCRAM)
    with process:
        admin = Client(process.addresses()["LONG_BYTES"], SUPER_USER)
        creations = [creation("+topic:t^:ALL", "carol", str)]
        assert not any(
            one.error_code.value for one in admin.ask(30, 3, {"creations": creations}).results
        )
        admin.close()
        process.until_known()
        yield process


HIDDEN = "hidden"
NAMES = [f"t-{number}-".ljust(60, "x") for number in range(20_000)]
"""Names of topics on which carol has all rights."""


def metadata(names: Sequence[str]) -> dict[str, Any]:
    topics = [{"name": one} for one in names]
    return {"topics": topics, "allow_auto_topic_creation": False}


def values(message: Any) -> Any:
    """A message's values, ignoring the order of lists and generated topic ids."""
    if dataclasses.is_dataclass(message):
        return tuple(values(getattr(message, one.name)) for one in dataclasses.fields(message))
    if isinstance(message, tuple):
        return sorted(map(values, message), key=repr)
    return "an id" if isinstance(message, UUID) else message


def test_what_is_denied_in_it_is_denied(kafka: KafkaCluster, proxy: ProxyProcess) -> None:
    """The rest is answered as Kafka does; `tests/proxy/acl/test_recording.py` judges every other
    API in steps, too."""
    asked = metadata([*NAMES[:100], HIDDEN, *NAMES[100:]])
    assert len(request_body(METADATA, 12, **asked)) > LONG_BYTES
    direct, proxied = (
        Client(kafka.address(), None),
        Client(proxy.addresses()["LONG_BYTES"], "carol"),
    )
    with contextlib.closing(direct), contextlib.closing(proxied):
        expected = direct.ask(METADATA, 12, metadata(NAMES))
        found = proxied.ask(METADATA, 12, asked)
    (denied,) = (one for one in found.topics if one.name == HIDDEN)
    kept = tuple(one for one in found.topics if one.name != HIDDEN)
    assert values(dataclasses.replace(found, topics=kept)) == values(expected)
    assert "topic_authorization_failed" in repr(denied)


# --- attackers


def flood(address: Address, content: bytes, stop: threading.Event) -> int:
    """Send the longest requests one after another; return the number of responses."""
    answered = 0
    with contextlib.suppress(ConnectionError), WireClient(address) as client:
        log_in(client, "mallory")
        while not stop.is_set():
            client.raw(struct.pack(">i", len(content)))
            client.raw(content)
            if isinstance(client.receive(), Outcome):
                break
            answered += 1
    return answered


def topics_seen(client: Client, names: Sequence[str]) -> int:
    return len(client.ask(METADATA, 12, metadata(names)).topics)


def test_attackers_fill_no_memory_and_keep_nobody_waiting(proxy: ProxyProcess) -> None:
    """Several connections send 100 MB each, repeatedly: the proxy gathers one per principal.

    Every item is denied, which is the most expensive case.
    """
    address = proxy.addresses()["LONG_BYTES"]
    header = request_header(15, 5, 1, "mallory", flexible=True)
    content = header + request_body(15, 5, groups=[f"h{number}" for number in range(10_000)])
    content = content.ljust(LONGEST, b"\0")
    before, stop = proxy.peak_kb(), threading.Event()
    with ThreadPoolExecutor(ATTACKERS) as pool, contextlib.ExitStack() as clients:
        attackers = [pool.submit(flood, address, content, stop) for _ in range(ATTACKERS)]
        try:
            carol = clients.enter_context(contextlib.closing(Client(address, "carol")))
            assert topics_seen(carol, NAMES) == len(NAMES)
            for _ in range(50):
                assert topics_seen(carol, NAMES[:1]) == 1
        finally:
            stop.set()
    assert sum(attacker.result(600) for attacker in attackers) > 0, "and they were answered"
    # One request is gathered while another is judged, in several copies.
    grown = proxy.peak_kb() - before
    assert grown * 1_024 < 2 * MAX_BYTES + 300 * MIB < ATTACKERS * LONGEST
