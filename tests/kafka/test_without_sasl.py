"""PLAINTEXT and SSL listeners of Kafka and the proxy: same answers and principals.

Both judge by ACLs with `User:ANONYMOUS` for a super user: the identity of a client shows in what it
may see.
"""

import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import confluent_kafka as confluent
import pytest

from tests.support.kafka.acl_differential.profiles import creation
from tests.support.kafka.clients import Certified
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.wire_client import ask
from tests.support.kafka.without_sasl import (
    CLIENT_AUTH,
    CONVERSATIONS,
    CREATE_ACLS,
    DEADLINE,
    MAPPED,
    NONE,
    PLAINTEXT,
    REQUESTED,
    REQUIRED,
    SUBJECTS,
    Side,
    kafka_properties,
    proxy_config,
    topics,
    with_acls,
    write_certificates,
)
from tests.support.proxy_process import ProxyProcess, Serve
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    write_certificates(directory)
    return directory


@pytest.fixture(scope="module")
def cluster(files: Path) -> Iterator[KafkaCluster]:
    with KafkaCluster(
        nodes=1, properties=kafka_properties(files), sasl_listeners=dict.fromkeys(CLIENT_AUTH, 0)
    ) as cluster:
        for name in topics():
            cluster.create_topic(name)
        yield cluster


@pytest.fixture(scope="module")
def proxy(cluster: KafkaCluster, files: Path, serve: Serve) -> ProxyProcess:
    return serve(proxy_config(cluster, files), users=False)


@pytest.fixture(scope="module")
def kafka_side(cluster: KafkaCluster, files: Path, issuer: Issuer) -> Side:
    names = (PLAINTEXT, *CLIENT_AUTH)
    side = Side(
        addresses={name: cluster.address(listener=name) for name in names},
        files=files,
        issuer=issuer,
    )
    return with_acls(side)


@pytest.fixture(scope="module")
def proxy_side(proxy: ProxyProcess, files: Path, issuer: Issuer) -> Side:
    side = with_acls(Side(addresses=proxy.addresses(), files=files, issuer=issuer))
    proxy.until_known()
    return side


# --- principals


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_certificate_names_the_same_principal(
    kafka_side: Side, proxy_side: Side, name: str
) -> None:
    for listener in (REQUIRED, REQUESTED):
        assert kafka_side.seen(listener, name) == [f"of-{name}"]
        assert proxy_side.seen(listener, name) == [f"of-{name}"]


@pytest.mark.parametrize("listener", [PLAINTEXT, NONE, REQUESTED])
def test_who_shows_no_certificate_is_anonymous(
    kafka_side: Side, proxy_side: Side, listener: str
) -> None:
    assert sorted(kafka_side.seen(listener)) == sorted(topics())
    assert sorted(proxy_side.seen(listener)) == sorted(topics())


def test_a_certificate_that_is_not_asked_for_is_not_believed(
    kafka_side: Side, proxy_side: Side
) -> None:
    assert sorted(kafka_side.seen(NONE, "alice")) == sorted(topics())
    assert sorted(proxy_side.seen(NONE, "alice")) == sorted(topics())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("alice", "of-ALICE"),
        ("bob", "of-bob-mapped"),
        ("carol", "< closed"),  # matches no rule
        ("imitation", "< closed"),  # resembles alice to a sloppy pattern
    ],
)
def test_rules_map_alike(kafka_side: Side, proxy_side: Side, name: str, expected: str) -> None:
    assert kafka_side.seen(MAPPED, name) == [expected]
    assert proxy_side.seen(MAPPED, name) == [expected]


def test_control_characters_name_nobody_here(
    kafka_side: Side, proxy_side: Side, proxy: ProxyProcess
) -> None:
    """Kafka accepts them as a principal; docs/compatibility.md documents the difference."""
    assert kafka_side.seen(REQUIRED, "hostile") == ["< Metadata v12 errors=[29]"]
    assert proxy_side.seen(REQUIRED, "hostile") == ["< closed"]
    proxy.until_logged("is refused: its subject has control characters")


def test_without_a_certificate_that_is_required_nobody_is_let_in(
    kafka_side: Side, proxy_side: Side
) -> None:
    for side in (kafka_side, proxy_side):
        answer = ["< closed"]
        with suppress(OSError):  # TLS 1.2 fails in the handshake
            answer = side.seen(REQUIRED)
        assert answer == ["< closed"]


# --- conversations


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_same_is_said(kafka_side: Side, proxy_side: Side, name: str) -> None:
    def act(actor: Actor) -> None:
        actor.act(program.steps)

    program = CONVERSATIONS[name]
    assert proxy_side.run(program.listener, act) == kafka_side.run(program.listener, act)


# --- a library


@pytest.fixture
def alice(files: Path) -> Certified:
    return Certified(files=files, name="alice")


@pytest.fixture
def allowed(proxy_side: Side) -> str:
    """A name of topics, groups and transactions on which ALICE has all rights."""
    name = f"mine-{uuid.uuid4()}"
    acls = (*(f"+{kind}:{name}^:ALL" for kind in ("topic", "group", "txn")), "+cluster::ALL")
    creations = [creation(acl, "ALICE", str) for acl in acls]
    answer = ask(proxy_side.addresses[PLAINTEXT], CREATE_ACLS, 3, {"creations": creations})
    assert {result.error_code for result in answer.results} == {0}
    return name


def test_librdkafka_shows_its_certificate(
    cluster: KafkaCluster, proxy: ProxyProcess, alice: Certified, allowed: str
) -> None:
    cluster.create_topic(allowed)
    proxy.until_known()
    bootstrap = str(proxy.addresses()[MAPPED])
    producer = confluent.Producer(alice.confluent(bootstrap, enable_idempotence=True))
    producer.produce(allowed, b"hello", partition=0)
    assert producer.flush(DEADLINE) == 0
    group = {"group_id": allowed, "auto_offset_reset": "earliest"}
    consumer = confluent.Consumer(alice.confluent(bootstrap, **group))
    try:
        consumer.subscribe([allowed])
        message = consumer.poll(DEADLINE)
        assert message is not None
        assert (message.error(), message.value()) == (None, b"hello")
    finally:
        consumer.close()
