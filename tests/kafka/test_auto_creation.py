"""Brokers with auto.create.topics.enable=false, and a proxy configured the same way.

The conversations are those of test_differential_acls.py, whose brokers make them.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.kafka.acl_differential.conversations import run_scripts, script_acls
from tests.support.kafka.acl_differential.profiles import PROFILES
from tests.support.kafka.acl_differential.side import (
    AUTHORIZER_PROPERTIES,
    FEATURES,
    PASSWORD,
    Side,
    needs_groups,
)
from tests.support.kafka.cluster import StartCluster
from tests.support.proxy_process import SUPER_USER, ProxyProcess, enforcing_acls, sidecar_config

pytestmark = [pytest.mark.kafka, pytest.mark.slow, needs_groups]

LISTENERS = {"LONG": 3_600_000}
SETTING = "auto.create.topics.enable"
SCRIPTS = "auto-"


def test_a_missing_topic_is_unknown_as_behind_kafka(
    start_cluster: StartCluster, jwks: Path, tmp_path: Path
) -> None:
    properties = {**AUTHORIZER_PROPERTIES, SETTING: "false"}
    broker = start_cluster(
        nodes=1, properties=properties, features=FEATURES, sasl_listeners=LISTENERS
    )
    broker.add_scram_user(SUPER_USER, PASSWORD)
    config = enforcing_acls(sidecar_config(str(broker.address()), jwks, listeners=LISTENERS))
    config["authorizer"][SETTING] = False
    proxy = ProxyProcess(config, tmp_path)
    proxy.add_user(SUPER_USER, PASSWORD, "SCRAM-SHA-256")
    kafkas = _answers(
        Side("kaf", broker.address(listener="LONG"), broker.address()), administers_users=False
    )
    with proxy:
        address = proxy.addresses()["LONG"]
        proxys = _answers(Side("prx", address, broker.address()), administers_users=True)
    assert proxys == kafkas
    assert all("made: []" in lines for lines in kafkas.values())


def _answers(side: Side, *, administers_users: bool) -> Mapping[str, str]:
    with closing(side):
        profiles = {"all": PROFILES["all"], **script_acls(SCRIPTS)}
        side.prepare(administers_users=administers_users, profiles=profiles)
        return run_scripts(side, SCRIPTS)
