"""Fixtures of the tests on Kubernetes, which share a cluster and have the marker `cluster`."""

import logging
import uuid
from collections.abc import Iterator

import pytest

from tests.support.deploy import missing
from tests.support.kubernetes import cluster as kubernetes
from tests.support.kubernetes import images, node
from tests.support.kubernetes.broker import Broker
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.producing import Producer, producing
from tests.support.kubernetes.release import Gateway, gateway_values
from tests.support.sasl import Issuer

log = logging.getLogger(__name__)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster; the tests' thread is in its node's network namespace."""
    if (reason := node.missing()) is not None:
        missing(reason)
    with kubernetes.running() as made:
        yield made


@pytest.fixture(scope="session")
def report_image(cluster: Cluster) -> None:
    """Build and load the report's image for tests that need it."""
    with cluster.node.left():
        archives = images.report()
    cluster.load(archives)


@pytest.fixture(scope="session")
def issuer() -> Issuer:
    """Signs the tokens of the whole run."""
    return Issuer()


@pytest.fixture(scope="session")
def broker(cluster: Cluster) -> Broker:
    """A Kafka broker in a pod."""
    made = Broker(cluster)
    made.start()
    return made


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A new namespace for each test."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def gateway(cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer) -> Gateway:
    """Two proxies behind one Service."""
    del broker  # exists before the proxies
    made = Gateway(cluster, namespace, issuer)
    made.upgrade(gateway_values())
    log.info("two gateways are ready after %.1f s", made.wait())
    return made


@pytest.fixture
def client(gateway: Gateway, broker: Broker, issuer: Issuer) -> Iterator[Producer]:
    """A client that produces during the test and must lose nothing."""
    arguments = (gateway.namespace, issuer, gateway.bootstrap, gateway.authority)
    with producing(gateway.cluster, broker, *arguments) as producer:
        yield producer
    log.info("nothing of %s was lost", producer.name)
