"""The two included quota callbacks: quotas of groups, and shares by leadership."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.acl_differential.side import PASSWORD, Client
from tests.support.kafka.clients import add_users, password_of, user
from tests.support.kafka.cluster import KafkaCluster, StartCluster, wait_until
from tests.support.kafka.quotas import PRODUCER, SCRAM, Producing, set_quota, told_in_a_row
from tests.support.proxy_process import ProxyFailed, ProxyProcess, gateway_config, sidecar_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

METADATA = 3
EXAMPLES = "tests.support.quota_callbacks"
LISTENERS = {"LONG": 3_600_000}


def with_callback(config: dict[str, Any], name: str, configs: dict[str, Any]) -> dict[str, Any]:
    quotas = {
        "mode": "enforce",
        "client.quota.callback.class": f"{EXAMPLES}.{name}",
        "client.quota.callback.configs": configs,
    }
    return {**config, "quotas": quotas, "workers": 2}


def test_users_of_a_group_share_its_quota(
    kafka: KafkaCluster, jwks: Path, tmp_path: Path, issuer: Issuer
) -> None:
    topic = f"groups-{uuid.uuid4()}"
    kafka.create_topic(topic)
    config = gateway_config(str(kafka.address()), jwks, listeners=LISTENERS)
    groups = {"groups": {"web": ["carol", "web-*"]}}
    process = ProxyProcess(with_callback(config, "groups:QuotaGroups", groups), tmp_path)
    add_users(process)
    process.add_user("web-1", password_of("web-1"), SCRAM)
    set_quota(process, PRODUCER, 1_000, user="web")
    with process:
        bootstrap = str(process.addresses()["LONG"])
        carol, other = user(issuer, SCRAM), user(issuer, SCRAM, "web-1")
        admin = user(issuer, SCRAM, "admin")
        users = [Producing(who, bootstrap, topic, "a") for who in (carol, admin, other)]
        first, not_of_the_group, second = told_in_a_row(users, 8_000)
        assert first == not_of_the_group == 0
        assert second > 4
        assert process.metric("quota_limit", quota=PRODUCER, entry="group=web") > 0


def test_a_proxy_grants_the_share_of_the_partitions_led_behind_it(
    start_cluster: StartCluster, jwks: Path, tmp_path: Path
) -> None:
    """A sidecar of the first of two brokers, to which the leaders of the second one move."""
    cluster = start_cluster(nodes=2)
    topic = f"share-{uuid.uuid4()}"
    cluster.create_topic(topic, replicas={0: [1, 2], 1: [2, 1], 2: [2, 1]})
    config = sidecar_config(str(cluster.address()), jwks, listeners=LISTENERS)
    shares = {"topics": {"dora": [topic]}}
    process = ProxyProcess(with_callback(config, "partitions:PartitionShare", shares), tmp_path)
    process.add_user("dora", PASSWORD, SCRAM)
    set_quota(process, PRODUCER, 3_000, user="dora")
    with process:
        client = Client(process.addresses()["LONG"], "dora")
        assert client.ask(METADATA, 9, {"topics": ()}).brokers

        def granted(limit: float) -> None:
            wait_until(
                lambda: process.metric("quota_limit", quota=PRODUCER) == limit,
                what=f"the limit is not {limit}",
                details=process.log,
            )

        granted(1_000)
        cluster.stop_node(2)
        granted(3_000)
        client.close()


def test_a_callback_that_cannot_be_used_is_one_line(
    kafka: KafkaCluster, jwks: Path, tmp_path: Path
) -> None:
    config = sidecar_config(str(kafka.address()), jwks, listeners=LISTENERS)
    process = ProxyProcess(with_callback(config, "groups:QuotaGroups", {}), tmp_path)
    with pytest.raises(ProxyFailed, match="ended with 2"):
        process.start()
    assert process.log().splitlines() == [
        f"reauth-proxy: quotas.client.quota.callback.class: {EXAMPLES}.groups:QuotaGroups"
        " cannot be configured: ValueError: groups must be a mapping from groups to lists of users"
    ]
