"""An included quota callback: quotas of groups."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.clients import add_users, password_of, user
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.quotas import PRODUCER, SCRAM, Producing, set_quota, told_in_a_row
from tests.support.proxy_process import ProxyProcess, gateway_config
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
