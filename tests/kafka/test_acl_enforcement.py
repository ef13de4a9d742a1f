"""Hidden topics where the broker chooses among all of them."""

import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.kafka.acl_differential.profiles import creation
from tests.support.kafka.acl_differential.side import AUTHORIZER_PROPERTIES, PASSWORD, SCRAM, Client
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.java import is_since
from tests.support.kafka.wire_client import Address
from tests.support.proxy_process import SUPER_USER, ProxyProcess, enforcing_acls, sidecar_config

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LISTENER = "LONG"
MEMBER = "carol"
RIGHTS = ("+topic:orders-^:DESCRIBE", "+group:g^:READ")
VISIBLE, HIDDEN = ["orders-1", "orders-2"], ["a-payroll", "orders", "orderz", "z-payroll"]

has_regular_expressions = pytest.mark.skipif(
    not is_since("4.0"), reason="ConsumerGroupHeartbeat has them since Kafka 4.0"
)

FIND_COORDINATOR, CREATE_ACLS, HEARTBEAT, DESCRIBE_TOPIC_PARTITIONS = 10, 30, 68, 75


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaCluster]:
    with KafkaCluster(
        nodes=1, properties=AUTHORIZER_PROPERTIES, sasl_listeners={LISTENER: 3_600_000}
    ) as cluster:
        for user in (SUPER_USER, MEMBER):
            cluster.add_scram_user(user, PASSWORD)
        for name in (*VISIBLE, *HIDDEN):
            cluster.create_topic(name, partitions=2)
        yield cluster


@pytest.fixture(scope="module")
def proxy(
    broker: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    config = sidecar_config(str(broker.address()), jwks, listeners={LISTENER: 3_600_000})
    process = ProxyProcess(enforcing_acls(config), tmp_path_factory.mktemp("hidden"))
    for user in (SUPER_USER, MEMBER):
        process.add_user(user, PASSWORD, SCRAM)
    with process:
        yield process


@pytest.fixture(scope="module", params=["Kafka", "the proxy"])
def address(request: pytest.FixtureRequest, broker: KafkaCluster, proxy: ProxyProcess) -> Address:
    """A listener at which the member has the rights `RIGHTS`."""
    is_proxy = request.param == "the proxy"
    at = proxy.addresses()[LISTENER] if is_proxy else broker.address(listener=LISTENER)
    with closing(Client(at, SUPER_USER)) as admin:
        entries = [creation(acl, MEMBER, str) for acl in RIGHTS]
        results = admin.ask(CREATE_ACLS, 3, {"creations": entries}).results
    assert not [one for one in results if one.error_code.value]
    with closing(Client(at, MEMBER)) as member:
        wait_until(lambda: _coordinator(member), deadline_seconds=60, what="a coordinator")
        wait_until(lambda: len(_page(member, None, 9).topics) > 1, deadline_seconds=60, what="ACLs")
    return at


def _coordinator(member: Client) -> bool:
    fields = {"key_type": 0, "coordinator_keys": ("g",)}
    answer = member.ask(FIND_COORDINATOR, 4, fields)
    return answer.coordinators[0].error_code is ErrorCode.none


def _page(member: Client, cursor: Any, limit: int) -> Any:
    fields = {"topics": (), "response_partition_limit": limit, "cursor": cursor}
    return member.ask(DESCRIBE_TOPIC_PARTITIONS, 0, fields)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 99])
def test_pages_hold_and_end_as_if_there_were_no_others(address: Address, limit: int) -> None:
    seen: list[tuple[str, int]] = []
    ends: list[tuple[str, int]] = []
    cursor = None
    with closing(Client(address, MEMBER)) as member:
        while True:
            page = _page(member, cursor, limit)
            seen += [(one.name, p.partition_index) for one in page.topics for p in one.partitions]
            if page.next_cursor is None:
                break
            ends.append((page.next_cursor.topic_name, page.next_cursor.partition_index))
            cursor = {"topic_name": ends[-1][0], "partition_index": ends[-1][1]}
    every = [(name, index) for name in VISIBLE for index in range(2)]
    assert seen == every
    assert ends == every[limit::limit]


@pytest.mark.parametrize("first", ["", "a-payroll", "b", "orders", "orders-0", "orders-1"])
def test_a_cursor_tells_nothing_of_what_is_at_it(address: Address, first: str) -> None:
    with closing(Client(address, MEMBER)) as member:
        page = _page(member, {"topic_name": first, "partition_index": 0}, 1)
        assert [one.name for one in page.topics] == ["orders-1"]
        behind = _page(member, {"topic_name": "orders-3", "partition_index": 0}, 1)
        assert (behind.topics, behind.next_cursor) == ((), None)


def _heartbeat(member: Client, group: str, member_id: str, epoch: int, regex: str) -> Any:
    first: dict[str, Any] = {
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": (),
        "subscribed_topic_regex": regex,
        "topic_partitions": (),
    }
    later = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
    fields = {"group_id": group, "member_id": member_id, "member_epoch": epoch}
    return member.ask(HEARTBEAT, 1, {**fields, **(later if epoch else first)})


def _assigned(member: Client, broker: KafkaCluster, regex: str) -> set[str]:
    """Join a new group; return the first assignment that is not empty."""
    group, member_id = f"g-{uuid.uuid4()}", str(uuid.uuid4())
    found, epoch = set[str](), 0

    def assigned() -> bool:
        nonlocal epoch
        answer = _heartbeat(member, group, member_id, epoch, regex)
        assert answer.error_code is ErrorCode.none, answer
        epoch = answer.member_epoch
        if answer.assignment is not None:
            found.update(names[one.topic_id] for one in answer.assignment.topic_partitions)
        return bool(found)

    names = _names(broker)
    wait_until(assigned, deadline_seconds=60, what="an assignment")
    return found


def _names(broker: KafkaCluster) -> dict[uuid.UUID, str]:
    with closing(Client(broker.address(), None)) as client:
        topics = client.ask(3, 12, {"topics": None}).topics
    return {one.topic_id: one.name for one in topics}


@has_regular_expressions
def test_a_regular_expression_gets_what_may_be_described(
    address: Address, broker: KafkaCluster
) -> None:
    with closing(Client(address, MEMBER)) as member:
        assert _assigned(member, broker, "orders-.*") == {*VISIBLE}
        assert _assigned(member, broker, r"^orders\-1") == {"orders-1"}


@has_regular_expressions
def test_kafka_matches_whole_names(broker: KafkaCluster) -> None:
    """So every match begins with the literal prefix of the regular expression."""
    with closing(Client(broker.address(), None)) as everybody:
        regex = "payroll|-payroll|a-pay|orders-1"
        assert _assigned(everybody, broker, regex) == {"orders-1"}
        assert _assigned(everybody, broker, "(?i)ORDERS|orders-2") == {"orders", "orders-2"}


@has_regular_expressions
@pytest.mark.parametrize("regex", [".*", "order.*", "orders-.*|z.*", "(?i)orders-.*", "z-payroll"])
def test_one_that_could_match_others_is_refused(proxy: ProxyProcess, regex: str) -> None:
    with closing(Client(proxy.addresses()[LISTENER], MEMBER)) as member:
        answer = _heartbeat(member, "g", str(uuid.uuid4()), 0, regex)
    assert answer.error_code is ErrorCode.topic_authorization_failed
    assert answer.error_message is None
    denial = re.compile(r"carol at \S+ is denied DESCRIBE on TOPIC \S+")
    wait_until(lambda: denial.search(proxy.log()) is not None, deadline_seconds=60, what="a denial")
