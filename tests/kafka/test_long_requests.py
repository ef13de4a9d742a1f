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
from dataclasses import dataclass, field
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
        acls = ("+topic:t^:ALL", "+group:t^:ALL", "+txn:t^:ALL")
        creations = [creation(acl, "carol", str) for acl in acls]
        assert not any(
            one.error_code.value for one in admin.ask(30, 3, {"creations": creations}).results
        )
        admin.close()
        process.until_known()
        yield process


def visible(count: int, length: int = 60) -> list[str]:
    """Names of resources on which carol has all rights."""
    return [f"t-{number}-".ljust(length, "x") for number in range(count)]


HIDDEN = "hidden"


@dataclass(frozen=True)
class Long:
    """A request whose list names one resource per item."""

    api_key: int
    version: int
    items: str
    name: str
    names: list[str]
    each: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def fields(self, names: Sequence[str]) -> dict[str, Any]:
        items = [{self.name: one, **self.each} if self.name else one for one in names]
        return {self.items: items, **self.more}


def _partitions(count: int, key: str, **more: Any) -> list[dict[str, Any]]:
    return [{key: number, **more} for number in range(count)]


_COMMITTED = {"committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": "m" * 20}
_CONFIG = {"name": "retention.ms", "config_operation": 0, "value": "1" * 90}
_OFFSETS = _partitions(50, "partition_index", current_leader_epoch=-1, timestamp=-1)
_GROUP = {"group_id": "t-group"}
_TRIED = {"validate_only": True, "timeout": 60_000}
_SYNC = {"generation_id": 1, "member_id": "nobody"} | {
    "protocol_type": "consumer",
    "protocol_name": "range",
}
REQUESTS = {
    "Metadata": Long(
        *(3, 12, "topics", "name", visible(20_000)), more={"allow_auto_topic_creation": False}
    ),
    "OffsetCommit": Long(
        *(8, 8, "topics", "name", visible(1_500)),
        each={"partitions": _partitions(25, "partition_index", **_COMMITTED)},
        more=_GROUP | {"generation_id_or_member_epoch": -1},
    ),
    "OffsetFetch": Long(
        *(9, 7, "topics", "name", visible(2_400), {"partition_indexes": range(100)}),
        more=_GROUP | {"require_stable": False},
    ),
    "ListOffsets": Long(
        *(2, 7, "topics", "name", visible(1_500), {"partitions": _OFFSETS}), more={"replica_id": -1}
    ),
    "DescribeConfigs": Long(
        *(32, 4, "resources", "resource_name", visible(20_000)),
        each={"resource_type": 2, "configuration_keys": None},
    ),
    "IncrementalAlterConfigs": Long(
        *(44, 1, "resources", "resource_name", visible(7_000)),
        each={"resource_type": 2, "configs": [_CONFIG]},
        more={"validate_only": True},
    ),
    "CreateTopics": Long(
        *(19, 7, "topics", "name", visible(5_000, 230)),
        each={"num_partitions": 1, "replication_factor": 1},
        more=_TRIED,
    ),
    "AddPartitionsToTxn": Long(
        *(24, 3, "v3_and_below_topics", "name", visible(5_000), {"partitions": range(50)}),
        more={"v3_and_below_transactional_id": "t-transaction", "v3_and_below_producer_id": 77},
    ),
    "DescribeGroups": Long(15, 5, "groups", "", visible(20_000)),
    # as sent by the leader of many Kafka Streams members
    "SyncGroup": Long(
        *(14, 5, "assignments", "member_id", visible(500), {"assignment": b"a" * 10_000}),
        more=_GROUP | _SYNC,
    ),
}
PARTLY = ("Metadata", "OffsetCommit", "ListOffsets", "DescribeConfigs", "CreateTopics")
"""Of these one item is denied, and the others are answered as Kafka does."""


def values(message: Any) -> Any:
    """A message's values, ignoring the order of lists and generated topic ids."""
    if dataclasses.is_dataclass(message):
        return tuple(values(getattr(message, one.name)) for one in dataclasses.fields(message))
    if isinstance(message, tuple):
        return sorted(map(values, message), key=repr)
    return "an id" if isinstance(message, UUID) else message


@pytest.mark.parametrize("name", [one for one in REQUESTS if one not in PARTLY])
def test_what_is_allowed_is_answered_as_kafka_does(
    kafka: KafkaCluster, proxy: ProxyProcess, name: str
) -> None:
    one = REQUESTS[name]
    asked = one.fields(one.names)
    assert len(request_body(one.api_key, one.version, **asked)) > LONG_BYTES
    direct, proxied = clients(kafka, proxy)
    with contextlib.closing(direct), contextlib.closing(proxied):
        expected = direct.ask(one.api_key, one.version, asked)
        assert not isinstance(expected, Outcome)
        assert values(proxied.ask(one.api_key, one.version, asked)) == values(expected)


@pytest.mark.parametrize("name", PARTLY)
def test_what_is_denied_in_it_is_denied(
    kafka: KafkaCluster, proxy: ProxyProcess, name: str
) -> None:
    request = REQUESTS[name]
    names = request.names
    more = request.fields([*names[:100], HIDDEN, *names[100:]])
    assert len(request_body(request.api_key, request.version, **more)) > LONG_BYTES
    direct, proxied = clients(kafka, proxy)
    with contextlib.closing(direct), contextlib.closing(proxied):
        expected = direct.ask(request.api_key, request.version, request.fields(names))
        found = proxied.ask(request.api_key, request.version, more)
    (results,) = (one for one in ("topics", "results") if hasattr(found, one))

    def hides(one: Any) -> bool:
        return HIDDEN in (getattr(one, "name", None), getattr(one, "resource_name", None))

    (denied,) = (one for one in getattr(found, results) if hides(one))
    kept = tuple(one for one in getattr(found, results) if not hides(one))
    assert values(dataclasses.replace(found, **{results: kept})) == values(expected)
    assert "topic_authorization_failed" in repr(denied)


def clients(kafka: KafkaCluster, proxy: ProxyProcess) -> tuple[Client, Client]:
    return Client(kafka.address(), None), Client(proxy.addresses()["LONG_BYTES"], "carol")


# --- attackers


def highest_memory(parent: int) -> int:
    """Peak resident bytes of a process's children, one of which is the worker."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    peaks = [Path(f"/proc/{child}/status").read_text().partition("VmHWM:")[2] for child in children]
    return max(int(peak.split()[0]) for peak in peaks) * 1_024


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
    return len(client.ask(3, 12, REQUESTS["Metadata"].fields(names)).topics)


def test_attackers_fill_no_memory_and_keep_nobody_waiting(proxy: ProxyProcess) -> None:
    """Several connections send 100 MB each, repeatedly: the proxy gathers one per principal.

    Every item is denied, which is the most expensive case.
    """
    address = proxy.addresses()["LONG_BYTES"]
    header = request_header(15, 5, 1, "mallory", flexible=True)
    content = header + request_body(15, 5, groups=[f"h{number}" for number in range(10_000)])
    content = content.ljust(LONGEST, b"\0")
    before, stop = highest_memory(proxy.pid), threading.Event()
    names = REQUESTS["Metadata"].names
    with ThreadPoolExecutor(ATTACKERS) as pool, contextlib.ExitStack() as clients:
        attackers = [pool.submit(flood, address, content, stop) for _ in range(ATTACKERS)]
        try:
            carol = clients.enter_context(contextlib.closing(Client(address, "carol")))
            assert topics_seen(carol, names) == len(names)
            for _ in range(50):
                assert topics_seen(carol, names[:1]) == 1
        finally:
            stop.set()
    assert sum(attacker.result(600) for attacker in attackers) > 0, "and they were answered"
    # One request is gathered while another is judged, in several copies.
    grown = highest_memory(proxy.pid) - before
    assert grown < 2 * MAX_BYTES + 300 * MIB < ATTACKERS * LONGEST
