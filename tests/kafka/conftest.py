"""Fixtures of the tests on a real Kafka. All of them carry the marker `kafka`."""

import gc
import os
import uuid
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import java
from tests.support.kafka.clients import User, add_users, user
from tests.support.kafka.cluster import KafkaCluster, StartCluster
from tests.support.kafka.objects import SECRET, served_objects
from tests.support.kafka.properties import BEHIND
from tests.support.kafka.quotas import SCRAM, remove_quotas
from tests.support.kafka.redirected import Inside
from tests.support.kafka.upstream import add_proxys_users, sasl_cluster
from tests.support.processes import Namespace, free_ports, wired
from tests.support.proxy_process import ProxyProcess, Serve, gateway_config, sidecar_config
from tests.support.sasl import Issuer

UNCLOSED_SOCKETS = "ignore:unclosed <socket:ResourceWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore sockets that a client library leaves open.

    kafka-python does, if it is still connecting when it is closed, as happens on a busy machine.
    """
    for item in items:
        if item.nodeid.startswith("tests/kafka/"):
            item.add_marker(pytest.mark.filterwarnings(UNCLOSED_SOCKETS))


@pytest.fixture(scope="module", autouse=True)
def unclosed_sockets() -> Iterator[None]:
    """Collect unclosed sockets after each module, so that they fail no later test."""
    yield
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def require_kafka() -> None:
    """Skip all tests on a machine that cannot run Kafka; fail there in CI."""
    try:
        java.class_path()
    except java.KafkaUnavailable as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def here() -> Iterator[Namespace]:
    # librdkafka looks up no IPv4 address on a machine that only has the loopback's.
    with wired(("10.99.0.1/24",), ("10.99.0.2/24",)) as (here, _):
        yield here


@pytest.fixture(scope="module")
def inside(here: Namespace) -> Iterator[Inside]:
    """Run functions in the namespace, in a thread that outlives their child processes."""
    with ThreadPoolExecutor(1, initializer=here.enter) as thread:
        yield lambda work: thread.submit(work).result(900)


@pytest.fixture(scope="session")
def issuer() -> Issuer:
    """Signs the tokens of the whole run."""
    return Issuer()


@pytest.fixture(scope="session")
def jwks(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The issuer's keys, for Kafka and for the proxy."""
    return issuer.write_jwks(tmp_path_factory.mktemp("issuer") / "jwks.json")


@pytest.fixture(scope="session")
def kafka(jwks: Path) -> Iterator[KafkaCluster]:
    """One node for the whole run: leave it as you found it."""
    with KafkaCluster(nodes=1, jwks=jwks, sidecar_port=free_ports(1)[0]) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def sasl_kafka_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with `ca.pem`, which signed the certificate of `sasl_kafka`."""
    return tmp_path_factory.mktemp("sasl-kafka")


@pytest.fixture(scope="session")
def sasl_kafka(jwks: Path, sasl_kafka_files: Path) -> Iterator[KafkaCluster]:
    """One node that requires SASL of everyone but the test harness."""
    with sasl_cluster(jwks, sasl_kafka_files) as cluster:
        add_proxys_users(cluster)
        yield cluster


@pytest.fixture
def start_cluster(jwks: Path) -> Iterator[StartCluster]:
    """Starts clusters of several nodes for one test: `start_cluster(nodes=3)`."""
    with ExitStack() as clusters:

        def start(nodes: int = 3, **options: Any) -> KafkaCluster:
            cluster = KafkaCluster(nodes=nodes, jwks=jwks, **options)
            return clusters.enter_context(cluster)

        yield start


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts proxies for a module: `serve(config)`, with carol and the super user."""
    with ExitStack() as stack:

        def start(config: dict[str, Any], *, users: bool = True) -> ProxyProcess:
            process = ProxyProcess(config, tmp_path_factory.mktemp("proxy"))
            if users:
                add_users(process)
            return stack.enter_context(process)

        yield start


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    """A topic of this test alone."""
    name = f"topic-{uuid.uuid4()}"
    kafka.create_topic(name)
    return name


@pytest.fixture
def bootstrap(proxy: ProxyProcess) -> str:
    """Bootstrap address of the test module's own `proxy`."""
    return str(proxy.addresses()["LONG"])


@pytest.fixture(scope="session")
def sidecar(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """A sidecar of the single node, which advertises the sidecar's address as its own."""
    upstream = str(kafka.address(listener=BEHIND))
    config = sidecar_config(upstream, jwks, listeners={"LONG": 3_600_000}, port=kafka.sidecar_port)
    process = ProxyProcess(config, tmp_path_factory.mktemp("sidecar"))
    add_users(process)
    with process:
        yield process


@pytest.fixture(scope="session")
def gateway(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """In front of the one node, with two workers."""
    config = gateway_config(str(kafka.address()), jwks) | {"workers": 2}
    process = ProxyProcess(config, tmp_path_factory.mktemp("gateway"))
    add_users(process)
    with process:
        yield process


@pytest.fixture(params=["sidecar", "gateway"])
def clients_proxy(request: pytest.FixtureRequest) -> ProxyProcess:
    """A sidecar, then a gateway; each has a listener LONG."""
    process = request.getfixturevalue(request.param)
    assert isinstance(process, ProxyProcess)
    return process


@pytest.fixture
def carol(issuer: Issuer) -> User:
    """A user that `add_users` adds."""
    return user(issuer, SCRAM)


@pytest.fixture
def no_quotas(proxy: ProxyProcess) -> Iterator[None]:
    """Remove all quotas after a test of the module's own `proxy`."""
    yield
    remove_quotas(proxy)


@pytest.fixture(scope="module")
def object_server() -> Iterator[str]:
    """An object store with the bucket `events`."""
    with served_objects() as address:
        yield address


@pytest.fixture
def object_store(object_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment variables with write access to that bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_server)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "writer")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
