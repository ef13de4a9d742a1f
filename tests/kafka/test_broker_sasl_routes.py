"""Logins that brokers authenticate: through a real redirect, and with TLS on either side."""

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.kafka.clients import SslUser, User, password_of
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.properties import CONTROLLER, PLAINTEXT
from tests.support.kafka.redirected import Inside, redirect, run_unprivileged
from tests.support.kafka.traffic import (
    PARTITIONS,
    Traffic,
    confluent_traffic,
    java_traffic,
    traffic_until,
)
from tests.support.processes import Namespace, missing
from tests.support.proxy_process import (
    ProxyProcess,
    gateway_config,
    relaying_logins,
    sidecar_config,
)
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ZERO, SECURE = "ZERO", "SECURE"
"""Listeners that announce no lifetime, without TLS and with it."""
CLEAR, TLS = "CLEAR", "TLS"
"""Listeners of the proxy, without TLS and with it."""
LIFETIME_MS = 3_000
RENEWALS = 5
MECHANISM = "SCRAM-SHA-256"


def new_topic(cluster: KafkaCluster) -> str:
    name = f"routes-{uuid.uuid4()}"
    cluster.create_topic(name, partitions=PARTITIONS)
    return name


def assert_renewed(
    proxy: ProxyProcess,
    traffic: Traffic,
    who: User,
    bootstrap: str,
    topic: str,
    directory: Path,
) -> None:
    """Nothing is lost while sessions are renewed."""
    enough = renewals(proxy) + RENEWALS
    written = traffic_until(
        lambda: renewals(proxy) >= enough, traffic, who, bootstrap, topic, directory
    )
    assert min(written) > 0
    assert renewals(proxy) >= enough
    assert proxy.metric("failed_reauthentication_total") == 0
    assert "Traceback" not in proxy.log()


def renewals(proxy: ProxyProcess) -> float:
    return proxy.metric("successful_reauthentication_total", mechanism=MECHANISM)


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
def test_sessions_are_held_through_a_redirect(
    require_kafka: None,  # noqa: ARG001 - skips
    here: Namespace,
    inside: Inside,
    jwks: Path,
    issuer: Issuer,
) -> None:
    """Two brokers, whose addresses the client dials; side connections reach the same one."""
    alice = User(name="alice", mechanism=MECHANISM, issuer=issuer)
    cluster = KafkaCluster(nodes=2, sasl_listeners={ZERO: 0})
    inside(cluster.__enter__)
    try:
        inside(lambda: cluster.add_scram_user("alice", password_of("alice")))
        ports = [cluster.address(one, ZERO).port for one in cluster.node_ids]
        with tempfile.TemporaryDirectory() as name:  # those of pytest are root's alone
            directory = Path(name)
            config = relaying_logins(
                sidecar_config("127.0.0.1:1", jwks, listeners={CLEAR: LIFETIME_MS})
            )
            config["listeners"][0]["routing"] = "transparent"
            config["upstream"]["allowed"] = [f"127.0.0.1:{port}" for port in ports]
            del config["upstream"]["bootstrap.servers"]
            process = ProxyProcess({**config, "workers": 2}, directory)
            run_unprivileged(process, here, directory)
            with process:
                at = process.addresses()[CLEAR]
                redirect(here, at.port, ",".join(map(str, ports)))
                topic = inside(lambda: new_topic(cluster))
                bootstrap = str(cluster.address(1, ZERO))
                traffic = (confluent_traffic, alice, bootstrap, topic, directory)
                inside(lambda: assert_renewed(process, *traffic))
    finally:
        inside(lambda: cluster.__exit__(None, None, None))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of the broker and of the proxy, and their authority's."""
    directory = tmp_path_factory.mktemp("certificates")
    authority = Authority()
    authority.write(directory)
    for name in ("broker", "server"):
        (directory / f"{name}.pem").write_bytes(authority.issue(name).pem)
    return directory


@pytest.fixture(scope="module")
def cluster(
    require_kafka: None,  # noqa: ARG001 - skips
    files: Path,
) -> Iterator[KafkaCluster]:
    protocols = dict.fromkeys((PLAINTEXT, CONTROLLER), "PLAINTEXT")
    protocols |= {ZERO: "SASL_PLAINTEXT", SECURE: "SASL_SSL"}
    prefix = f"listener.name.{SECURE.lower()}.ssl.keystore"
    properties = {
        "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
        f"{prefix}.type": "PEM",
        f"{prefix}.location": str(files / "broker.pem"),
    }
    with KafkaCluster(sasl_listeners={ZERO: 0, SECURE: 0}, properties=properties) as cluster:
        cluster.add_scram_user("alice", password_of("alice"))
        yield cluster


@pytest.fixture(scope="module", params=[ZERO, SECURE])
def proxy(
    request: pytest.FixtureRequest,
    cluster: KafkaCluster,
    jwks: Path,
    files: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProxyProcess]:
    """In front of one of the two, with a listener without TLS and one with it."""
    upstream = str(cluster.address(listener=request.param))
    listeners = {CLEAR: LIFETIME_MS, TLS: LIFETIME_MS}
    config = relaying_logins(gateway_config(upstream, jwks, listeners=listeners))
    config["listeners"][1] |= {
        "security.protocol": "SASL_SSL",
        "ssl.keystore.location": str(files / "server.pem"),
    }
    if request.param == SECURE:
        config["upstream"] |= {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": str(files / "ca.pem"),
        }
    with ProxyProcess(config, tmp_path_factory.mktemp("proxy")) as process:
        yield process


@pytest.mark.parametrize("traffic", [confluent_traffic, java_traffic])
@pytest.mark.parametrize("listener", [CLEAR, TLS])
def test_sessions_are_held_with_tls_on_either_side(
    cluster: KafkaCluster,
    proxy: ProxyProcess,
    files: Path,
    issuer: Issuer,
    tmp_path: Path,
    listener: str,
    traffic: Traffic,
) -> None:
    who = User(name="alice", mechanism=MECHANISM, issuer=issuer)
    if listener == TLS:
        who = SslUser(name="alice", mechanism=MECHANISM, issuer=issuer, ca=files / "ca.pem")
    bootstrap = str(proxy.addresses()[listener])
    assert_renewed(proxy, traffic, who, bootstrap, new_topic(cluster), tmp_path)
