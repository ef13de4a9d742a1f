"""The same requests under the same ACLs, to Kafka's StandardAuthorizer and to the proxy.

Only some profiles are asked here; `make record` asks all of them, without the proxy's connections.

One broker serves both: by its SASL listener, where it judges itself, and by its plain listener,
where the proxy is a super user and has judged before.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from proxy.wire.apis import APIS, Kind
from tests.support.kafka.acl_differential.comparison import (
    DELIBERATE,
    Versions,
    answer_all,
    compare,
    offered,
)
from tests.support.kafka.acl_differential.conversations import run_scripts, script_acls
from tests.support.kafka.acl_differential.profiles import PROFILES, THOROUGH
from tests.support.kafka.acl_differential.questions import QUESTIONS
from tests.support.kafka.acl_differential.side import (
    AUTHORIZER_PROPERTIES,
    FEATURES,
    PASSWORD,
    Side,
    needs_groups,
)
from tests.support.kafka.cluster import KafkaCluster, StartCluster
from tests.support.proxy_process import (
    SUPER_USER,
    ProxyProcess,
    Serve,
    enforcing_acls,
    sidecar_config,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow, needs_groups]

PROFILES_HERE = {name: PROFILES[name] for name in (*THOROUGH, "only-read", "prefixed-read")}
LISTENER = "LONG"
LISTENERS = {LISTENER: 3_600_000}
#: Only offered by brokers with a client metrics reporter.
NEEDS_A_REPORTER = {71, 72}
#: Brokers before 4.4 lack these.
SINCE_4_4 = {93, 94}


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaCluster]:
    with KafkaCluster(
        nodes=1, properties=AUTHORIZER_PROPERTIES, features=FEATURES, sasl_listeners=LISTENERS
    ) as cluster:
        cluster.add_scram_user(SUPER_USER, PASSWORD)
        yield cluster


@pytest.fixture(scope="module")
def proxy(broker: KafkaCluster, jwks: Path, serve: Serve) -> ProxyProcess:
    config = sidecar_config(str(broker.address()), jwks, listeners=LISTENERS)
    process = serve(enforcing_acls(config), users=False)
    process.add_user(SUPER_USER, PASSWORD, "SCRAM-SHA-256")
    return process


@pytest.fixture(scope="module")
def versions(broker: KafkaCluster, proxy: ProxyProcess) -> Versions:
    """API versions that both offer."""
    kafkas = offered(broker.address(listener=LISTENER))
    proxys = offered(proxy.addresses()[LISTENER])
    both = {}
    for key in kafkas.keys() & proxys.keys():
        low, high = (max(kafkas[key][0], proxys[key][0]), min(kafkas[key][1], proxys[key][1]))
        if low <= high:
            both[key] = (low, high)
    return both


@pytest.fixture(scope="module")
def kafkas(broker: KafkaCluster, versions: Versions) -> Mapping[str, str]:
    side = Side("kaf", broker.address(listener=LISTENER), broker.address())
    return _judge(side, versions, administers_users=False)


def _judge(side: Side, versions: Versions, *, administers_users: bool) -> Mapping[str, str]:
    with closing(side):
        side.prepare(
            administers_users=administers_users, profiles={**PROFILES_HERE, **script_acls()}
        )
        return {**run_scripts(side), **answer_all(side, versions, PROFILES_HERE)}


def test_every_api_that_is_offered_is_asked(versions: Versions) -> None:
    """An API without a case here would go untested."""
    asked = {question.api_key for question in QUESTIONS}
    judged = {key for key, api in APIS.items() if api.kind is Kind.FORWARDED} | {29, 30, 31, 48}
    assert judged == asked
    assert judged - versions.keys() - SINCE_4_4 == NEEDS_A_REPORTER


def test_every_deliberate_difference_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    assert not {what for what in DELIBERATE if f"\n| {what} | " not in text}


def test_proxy_judges_as_kafka_does(
    broker: KafkaCluster,
    proxy: ProxyProcess,
    versions: Versions,
    kafkas: Mapping[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    side = Side("prx", proxy.addresses()[LISTENER], broker.address())
    proxys = _judge(side, versions, administers_users=True)
    with capsys.disabled():
        print(f"\n{len(kafkas)} cases")  # noqa: T201 - part of the result
    compare(kafkas, proxys)


# --- brokers with auto.create.topics.enable=false, and a proxy configured the same way

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
