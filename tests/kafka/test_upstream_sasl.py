"""The proxy's login at brokers: it works, also over TLS, or is refused.

Clients are known to the proxy alone; the brokers know the proxy alone, and let nobody else do
anything.
"""

import re
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from proxy.brokers.token_providers import MIN_CREDENTIALS_SECONDS
from tests.support.certificates import Authority
from tests.support.cloud import ARN, ROLE, Cloud
from tests.support.kafka.clients import User, add_users, confluent_admin, user
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.properties import BEHIND
from tests.support.kafka.sasl_differential.transcript import METADATA, Actor
from tests.support.kafka.traffic import PARTITIONS, confluent_traffic
from tests.support.kafka.upstream import (
    BUSY,
    BUSY_MS,
    CHANGING,
    CLIENT_SECRET,
    EXPIRED_CHANNEL,
    GATE,
    IAM,
    PASSWORD,
    SECURE,
    SHORT,
    SHORT_MS,
    WRONG_PASSWORD,
    TokenEndpoint,
    by_client_credentials,
    by_password,
    by_token_file,
    sidecar_of,
)
from tests.support.kafka.wire_client import WireClient, metadata_fields
from tests.support.messages import request_body
from tests.support.proxy_process import ProxyProcess, gateway_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

DEADLINE = 120.0
PLAIN, SCRAM_256, SCRAM_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
RECORDS = 100
ATTEMPTS = 10
"""Number of clients that are closed because the broker refuses the login."""
MAX_LINES = 6
"""Lines of log on a lasting refusal, independent of `ATTEMPTS`."""

Login = dict[str, Any]


TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"


@pytest.fixture(scope="module")
def endpoint(issuer: Issuer) -> Iterator[TokenEndpoint]:
    with TokenEndpoint(issuer) as one:
        yield one


@contextmanager
def serving(config: dict[str, Any], directory: Path) -> Iterator[ProxyProcess]:
    """Run a proxy; its log must contain no traceback and no secret."""
    with ProxyProcess(config, directory) as process:
        yield process
    log = process.log()
    assert "Traceback" not in log
    assert_no_secret(log, config)


def assert_no_secret(text: str, config: dict[str, Any]) -> None:
    secrets = [PASSWORD, WRONG_PASSWORD, CLIENT_SECRET]
    url = config["upstream"].get(TOKEN_URL, "")
    if url.startswith("file:"):
        secrets.append(Path(url.removeprefix("file://")).read_text())
    for secret in secrets:
        assert secret not in text


@pytest.mark.parametrize("how", [PLAIN, "client credentials"])
def test_clients_work_behind_a_login(
    sasl_kafka: KafkaCluster,
    jwks: Path,
    endpoint: TokenEndpoint,
    carol: User,
    tmp_path: Path,
    how: str,
) -> None:
    """The tests of sessions have SCRAM."""
    login = by_password(PLAIN, tmp_path)
    if how != PLAIN:
        login = by_client_credentials(tmp_path, endpoint)
    config = sidecar_of(sasl_kafka, BEHIND, jwks, login)
    add_users(ProxyProcess(config, tmp_path))
    with serving(config, tmp_path) as proxy:
        confluent_round(carol, str(proxy.addresses()["LONG"]))
        assert proxy.readiness() == 200
        assert proxy.metric("connections_closed_total", reason="broker_login_failed") == 0
        assert "ERROR" not in proxy.log()
        (warning,) = (line for line in proxy.log().splitlines() if "WARNING" in line)
        assert "every client may do what brokers allow the proxy itself" in warning
    assert not endpoint.refused
    if how != PLAIN:
        # All connections share a token until it is old.
        assert 1 <= len(endpoint.given) <= 3


def confluent_round(who: User, bootstrap: str) -> None:
    topic = f"confluent-{uuid.uuid4()}"
    admin = confluent_admin.AdminClient(who.confluent(bootstrap))
    admin.create_topics([confluent_admin.NewTopic(topic, 2, 1)])[topic].result(DEADLINE)
    producer = confluent.Producer(who.confluent(bootstrap, enable_idempotence=True))
    sent = [f"{number}".encode() for number in range(RECORDS)]
    for value in sent:
        producer.produce(topic, value, partition=0)
    assert producer.flush(DEADLINE) == 0
    settings = {"group_id": topic, "auto_offset_reset": "earliest"}
    consumer = confluent.Consumer(who.confluent(bootstrap, **settings))
    try:
        consumer.subscribe([topic])
        read = consumer.consume(RECORDS, timeout=DEADLINE)
        assert [message.value() for message in read] == sent
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def brokers_seen(proxy: ProxyProcess, issuer: Issuer) -> list[int] | None:
    """Broker ids that a new client sees; None if it is disconnected."""
    with WireClient(proxy.addresses()["LONG"]) as client:
        actor = Actor(client, issuer)
        actor.oauth(issuer.mint("carol"))
        return seen(actor)


def seen(actor: Actor) -> list[int] | None:
    answer = actor.ask(METADATA, 12, request_body(METADATA, 12, **metadata_fields()))
    if answer is None:
        assert actor.lines[-1] == "< closed"
        return None
    return [int(broker.node_id) for broker in answer.brokers]


# --- refused logins


Refused = Callable[[Path, Issuer], Login]
_REFUSED: dict[str, tuple[Refused, str]] = {
    "wrong password of SCRAM": (
        lambda path, _: by_password(SCRAM_512, path, password=WRONG_PASSWORD),
        "invalid credentials",
    ),
    "token signed by another key": (
        lambda path, issuer: by_token_file(path, issuer.mint_with_wrong_key("gate")),
        "token",
    ),
}


@pytest.mark.parametrize(("refused", "reason"), _REFUSED.values(), ids=_REFUSED)
def test_refusal_is_told_and_closes_clients(
    sasl_kafka: KafkaCluster,
    jwks: Path,
    issuer: Issuer,
    tmp_path: Path,
    refused: Refused,
    reason: str,
) -> None:
    """`/readyz` reports the reason in one line; the log does not repeat it for each client."""
    config = sidecar_of(sasl_kafka, BEHIND, jwks, refused(tmp_path, issuer))
    with serving(config, tmp_path) as proxy:
        assert proxy.readiness() == 503
        (reported,) = proxy.reasons()
        assert reason in reported
        assert reported.isprintable()
        assert_no_secret(reported, config)
        before = len(proxy.log().splitlines())
        for _ in range(ATTEMPTS):
            assert brokers_seen(proxy, issuer) is None
        assert len(proxy.log().splitlines()) - before <= MAX_LINES
        proxy.until_logged(reason)
        assert proxy.readiness() == 503


def test_proxy_without_a_login_where_one_is_wanted(
    sasl_kafka: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """Without a login such a broker only answers ApiVersions."""
    upstream = str(sasl_kafka.address(listener=BEHIND))
    config = gateway_config(upstream, jwks, listeners={"LONG": 3_600_000})
    with serving(config, tmp_path) as proxy:
        assert proxy.readiness() == 503
        (reported,) = proxy.reasons()
        assert (
            f"broker {upstream}: closed the connection after its ApiVersions response" in reported
        )
        proxy.until_logged("set upstream.security.protocol: SASL_SSL")
        assert brokers_seen(proxy, issuer) is None


def test_right_password_is_taken_up_without_a_restart(
    sasl_kafka: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """The broker's password changes first: open connections end when they must re-authenticate."""
    passwords = ["first-secret", "second-secret"]
    sasl_kafka.add_scram_user(CHANGING, passwords[0], SCRAM_256)
    login = by_password(SCRAM_256, tmp_path, name=CHANGING, password=passwords[0])
    config = sidecar_of(sasl_kafka, SHORT, jwks, login)
    with serving(config, tmp_path) as proxy, WireClient(proxy.addresses()["LONG"]) as client:
        actor = Actor(client, issuer)
        actor.oauth(issuer.mint("carol"))
        assert seen(actor) == [1]
        sasl_kafka.add_scram_user(CHANGING, passwords[1], SCRAM_256)
        actor.wait(1.2 * SHORT_MS / 1000)
        assert seen(actor) is None
        assert brokers_seen(proxy, issuer) is None
        assert proxy.metric("connections_closed_total", reason="broker_login_failed") == 2
        wait_until(lambda: proxy.readiness() == 503, what="still ready", details=proxy.log)

        (tmp_path / "password").write_text(passwords[1])
        wait_until(lambda: brokers_seen(proxy, issuer) == [1], what="not let in", details=proxy.log)
        wait_until(lambda: proxy.readiness() == 200, what="not ready", details=proxy.log)
        for password in passwords:
            assert password not in proxy.log()


def test_an_identity_provider_with_an_authority_of_ones_own(
    sasl_kafka: KafkaCluster, issuer: Issuer, sasl_kafka_files: Path, tmp_path: Path
) -> None:
    """TLS to the identity provider and to brokers, each with its own authority."""
    authority = Authority()
    authority.write(tmp_path)
    certificate = tmp_path / "provider.pem"
    certificate.write_bytes(authority.issue("provider").pem)
    with TokenEndpoint(issuer, certificate=certificate) as endpoint:
        login = by_client_credentials(tmp_path, endpoint)
        config = sidecar_of(sasl_kafka, SECURE, tmp_path / "unused", login)
        config["listeners"][0]["sasl.oauthbearer.jwks.endpoint.url"] = endpoint.jwks_url
        config["upstream"] |= {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": str(sasl_kafka_files / "ca.pem"),
            "sasl.oauthbearer.header.urlencode": True,
        }
        with serving(config, tmp_path) as proxy:
            assert proxy.readiness() == 503
            proxy.until_logged("CERTIFICATE_VERIFY_FAILED")
            assert brokers_seen(proxy, issuer) is None
        process = ProxyProcess(config, tmp_path)
        process.prefix = ("env", f"SSL_CERT_FILE={tmp_path / 'ca.pem'}")
        with process:
            assert process.readiness() == 200, process.reasons()
            assert brokers_seen(process, issuer) == [1]


# --- sessions that are renewed (KIP-368), unnoticed by clients

SECONDS = 2.5 * BUSY_MS / 1000
RENEWALS = 2
"""Minimum per connection in `SECONDS`: each session is renewed before 95 % of it."""
CLIENT_MS = 6_000
"""Lifetime of clients' sessions at the proxy."""
PAST_SHORT_SECONDS = 1.2 * SHORT_MS / 1000
SCRAM = "SCRAM-SHA-256"
FLOWS = (("LONG", 900_000, 0.2), ("LONG", 10, 0.01), ("QUICK", 50_000, 0.05))
"""Listener, size of records, and seconds between them."""
RENEWED = "upstream_successful_reauthentication_total"


@pytest.fixture
def proxy(sasl_kafka: KafkaCluster, jwks: Path, tmp_path: Path) -> Iterator[ProxyProcess]:
    """A gateway, so that clients use it whatever the broker advertises."""
    upstream = str(sasl_kafka.address(listener=BUSY))
    config = gateway_config(upstream, jwks, listeners={"LONG": 3_600_000, "QUICK": CLIENT_MS})
    config["upstream"] |= by_password("SCRAM-SHA-512", tmp_path)
    add_users(ProxyProcess(config, tmp_path))
    with ProxyProcess(config, tmp_path) as process:
        yield process


def new_topic(cluster: KafkaCluster) -> str:
    name = f"sessions-{uuid.uuid4()}"
    cluster.create_topic(name, partitions=PARTITIONS)
    return name


def test_nothing_is_lost_while_sessions_are_renewed(
    sasl_kafka: KafkaCluster, proxy: ProxyProcess, issuer: Issuer
) -> None:
    """With large and small requests, and clients that re-authenticate meanwhile."""
    killed_before = sasl_kafka.log().count(EXPIRED_CHANNEL)
    carol, running = user(issuer, SCRAM), []
    with ThreadPoolExecutor() as pool:
        for listener, padding, pause in FLOWS:
            bootstrap, topic = str(proxy.addresses()[listener]), new_topic(sasl_kafka)
            flow = partial(confluent_traffic, pause_seconds=pause, padding_bytes=padding)
            running.append(pool.submit(flow, carol, bootstrap, topic, SECONDS))
    for each in running:
        assert min(each.result()) > 0
    assert proxy.metric(RENEWED) >= 6 * RENEWALS
    assert proxy.metric("successful_reauthentication_total", listener="quick") >= 2
    reasons = {one["reason"] for one in proxy.labels("connections_closed_total")}
    for reason in reasons - {"client_closed"}:
        assert proxy.metric("connections_closed_total", reason=reason) == 0, reason
    assert sasl_kafka.log().count(EXPIRED_CHANNEL) == killed_before
    assert "Traceback" not in proxy.log()
    assert "ERROR" not in proxy.log()
    assert PASSWORD not in proxy.log()


def test_idle_connections_are_renewed_when_they_are_used(
    sasl_kafka: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """Long after the end of their sessions at the broker, each time; a client of the broker's own
    that does not renew is closed."""
    config = sidecar_of(sasl_kafka, SHORT, jwks, by_password(SCRAM, tmp_path))
    killed_before = sasl_kafka.log().count(EXPIRED_CHANNEL)
    with (
        ProxyProcess(config, tmp_path) as proxy,
        WireClient(proxy.addresses()["LONG"]) as client,
        WireClient(sasl_kafka.address(listener=SHORT)) as other,
    ):
        actor, direct = Actor(client, issuer), Actor(other, issuer)
        actor.oauth(issuer.mint("carol"))
        direct.scram(GATE, password=PASSWORD)
        actor.metadata()
        for _ in range(2):
            time.sleep(PAST_SHORT_SECONDS)
            actor.metadata()
            assert actor.lines[-1].startswith("< Metadata")
        assert proxy.metric(RENEWED) >= 2
        assert sasl_kafka.log().count(EXPIRED_CHANNEL) == killed_before
        direct.metadata()
        assert direct.lines[-1] == "< closed"
        assert "Traceback" not in proxy.log()
    wait_until(
        lambda: sasl_kafka.log().count(EXPIRED_CHANNEL) == killed_before + 1,
        what="a broker that closes does not say so",
    )


def test_sessions_with_iam_are_renewed_in_place(
    sasl_kafka: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """A broker that verifies the signed URL; the keys change, the principal must not."""
    cloud = Cloud()
    cloud.lives = MIN_CREDENTIALS_SECONDS + 6
    (tmp_path / "identity").write_text("e30.e30.c2ln")
    environment = cloud.environment | {
        "AWS_REGION": "eu-west-1",
        "AWS_ROLE_ARN": ROLE,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "identity"),
    }
    login = {"sasl.mechanism": "OAUTHBEARER", "sasl.login.provider": "aws-msk-iam"}
    login["security.protocol"] = "SASL_PLAINTEXT"
    process = ProxyProcess(sidecar_of(sasl_kafka, IAM, jwks, login), tmp_path)
    process.prefix = ("env", *(f"{name}={value}" for name, value in environment.items()))
    killed_before = sasl_kafka.log().count(EXPIRED_CHANNEL)
    with cloud.service, process as proxy, WireClient(proxy.addresses()["LONG"]) as client:
        actor = Actor(client, issuer)
        actor.oauth(issuer.mint("carol"))

        def renewed() -> bool:
            actor.metadata()
            assert actor.lines[-1].startswith("< Metadata")
            time.sleep(0.3)
            return proxy.metric(RENEWED) >= 3 and len(iam_logins(sasl_kafka)) >= 2

        wait_until(renewed, what="not renewed", details=proxy.log)
        log = proxy.log()
        assert proxy.readiness() == 200
    assert set(iam_logins(sasl_kafka).values()) == {ARN}
    assert sasl_kafka.log().count(EXPIRED_CHANNEL) == killed_before
    assert "Traceback" not in log
    assert "X-Amz" not in log


def iam_logins(cluster: KafkaCluster) -> dict[str, str]:
    """Principals by access key."""
    return dict(re.findall(r"^IAM login: (\S+) (\S+)$", cluster.log(), re.MULTILINE))
