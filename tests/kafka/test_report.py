"""The readiness report on three real client libraries, with the proxy in mode `probe`.

What each client is known to do is written beside it; the report must come to the same verdict.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Never

import confluent_kafka as confluent
import kafka as python
import pytest
from kafka.errors import KafkaError

from metrics.report.libraries import library_of
from tests.support.kafka.clients import OAUTHBEARER, User, confluent_admin, password_of, user
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.traffic import PARTITIONS, confluent_traffic, java_traffic
from tests.support.proxy_process import ProxyProcess, gateway_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LIFETIME_MS = 20_000
"""Clients renew it after 85 to 95 %, which leaves at least a second."""
SECONDS = 45
"""More than two lifetimes."""
DEADLINE = 60
SCRAM = "SCRAM-SHA-256"

KNOWN = {
    "librdkafka": "ready",
    "java": "ready",
    "python": "ready",
    "python-raw-tokens": "not_capable",
    "python-first-version": "not_capable",
    "python-withdrawn": "failing",
    "librdkafka-brief": "unproven",
}
"""What each user's one client does, and so the verdict that it deserves.

The first three re-authenticate, as `metrics/report/libraries.py` says of these versions. Then
kafka-python configured for Kafka 0.11 (raw SASL tokens) and for Kafka 1.0 (SaslAuthenticate
v0); an application that has no second token to give; one that ends before its session does.
"""

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def facts(
    kafka: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory
) -> Facts:
    """Report on all clients, including one with a wrong password."""
    directory = tmp_path_factory.mktemp("real-run")
    config = gateway_config(str(kafka.address()), jwks, listeners={"PROBE": LIFETIME_MS})
    config["listeners"][0]["reauth.enforcement"] = "probe"
    with ProxyProcess(config, directory) as proxy:
        for name in KNOWN:
            proxy.add_user(name, password_of(name), SCRAM)
        run_clients(str(proxy.addresses()["PROBE"]), issuer, kafka, directory)
    return report_of(directory / "events", directory / "report")


def report_of(events: Path, out: Path) -> Facts:
    """Run the report like an operator, gated on a principal that is ready."""
    arguments = ["report", "--events", str(events), "--out", str(out), "--require", "User:java"]
    done = subprocess.run(
        [sys.executable, "-m", "proxy", *arguments], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    found: Facts = json.loads((out / "report.json").read_text())
    return found


def run_clients(bootstrap: str, issuer: Issuer, kafka: KafkaCluster, directory: Path) -> None:
    """Run all clients at the same time, each with its own topic."""
    topics = {name: f"report-{name}" for name in KNOWN}
    for topic in topics.values():
        kafka.create_topic(topic, partitions=PARTITIONS)

    def scram(name: str) -> User:
        return user(issuer, SCRAM, name)

    def of_python(name: str, **more: Any) -> Callable[[], None]:
        return lambda: python_traffic(scram(name), bootstrap, topics[name], **more)

    renewing = (bootstrap, topics["librdkafka"], SECONDS)
    tasks: list[Callable[[], object]] = [
        lambda: confluent_traffic(scram("librdkafka"), *renewing, pause_seconds=0.01),
        lambda: java_traffic(scram("java"), bootstrap, topics["java"], SECONDS, directory),
        of_python("python"),
        of_python("python-first-version", api_version=(1, 0)),
        of_python("python-raw-tokens", api_version=(0, 11)),
        lambda: withdrawn(issuer, bootstrap, topics["python-withdrawn"]),
        lambda: brief(scram("librdkafka-brief"), bootstrap),
        lambda: refused(scram("unknown"), bootstrap),
    ]
    with ThreadPoolExecutor(len(tasks)) as pool:
        for running in [pool.submit(task) for task in tasks]:
            running.result()


def python_traffic(who: User, bootstrap: str, topic: str, **more: Any) -> None:
    """kafka-python with steady light traffic."""
    producer = python.KafkaProducer(**who.python(bootstrap, client_id=who.name, **more))
    ends_at = time.monotonic() + SECONDS
    while time.monotonic() < ends_at:
        producer.send(topic, b"x").get(DEADLINE)
        time.sleep(0.05)
    producer.close()


def withdrawn(issuer: Issuer, bootstrap: str, topic: str) -> None:
    """An application whose token provider fails after the first login."""
    who = Withdrawn(name="python-withdrawn", mechanism=OAUTHBEARER, issuer=issuer)
    producer = python.KafkaProducer(**who.python(bootstrap, client_id=who.name, retries=0))
    producer.send(topic, b"x").get(DEADLINE)
    who.is_withdrawn.set()
    with pytest.raises(KafkaError):
        send_on(producer, topic)
    with suppress(KafkaError):
        producer.close(timeout=1)


def send_on(producer: Any, topic: str) -> Never:
    """Send until it fails."""
    while True:
        producer.send(topic, b"x").get(DEADLINE / 2)
        time.sleep(0.05)


def brief(who: User, bootstrap: str) -> None:
    """librdkafka lists the topics and disconnects."""
    admin = confluent_admin.AdminClient(who.confluent(bootstrap, client_id=who.name))
    assert admin.list_topics(timeout=DEADLINE).topics


def refused(who: User, bootstrap: str) -> None:
    """librdkafka as an unknown user."""
    admin = confluent_admin.AdminClient(who.confluent(bootstrap, client_id=who.name))
    with pytest.raises(confluent.KafkaException):
        admin.list_topics(timeout=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn(User):
    """A user whose tokens become invalid when they are withdrawn."""

    is_withdrawn: threading.Event = field(default_factory=threading.Event)

    def token(self) -> str:
        """Called for each authentication."""
        return self.issuer.mint(self.name, -60 if self.is_withdrawn.is_set() else 3600)


def test_the_verdicts_are_what_these_clients_are_known_to_do(facts: Facts) -> None:
    found = {row["principal"]: row["verdict"] for row in facts["principals"]}
    assert found == {f"User:{name}": verdict for name, verdict in KNOWN.items()}


def test_who_never_logged_in_is_unknown_and_no_principal(facts: Facts) -> None:
    unknown = [row for row in facts["clients"] if row["client_id"] == "unknown"]
    assert {(row["verdict"], row["principal"]) for row in unknown} == {("unknown", None)}


def test_nothing_of_what_the_proxy_wrote_is_set_aside_or_missing(facts: Facts) -> None:
    lines = dict(facts["lines"])
    assert lines.pop("lines") > len(KNOWN)
    assert set(lines.values()) == {0}


def test_only_the_ready_may_be_enforced_and_each_library_is_recognized(facts: Facts) -> None:
    ready = {f"User:{name}" for name, verdict in KNOWN.items() if verdict == "ready"}
    assert set(facts["enforceable_principals"]) == ready
    software = {
        row["client_software_name"] for row in facts["clients"] if row["verdict"] == "ready"
    }
    assert None not in {library_of(name) for name in software}
    assert len({library_of(name) for name in software}) == 3


def test_the_evidence_is_of_the_kind_that_the_verdict_says(facts: Facts) -> None:
    evidence = {row["principal"]: row for row in facts["clients"]}
    for name, verdict in KNOWN.items():
        row = evidence[f"User:{name}"]
        assert row["killed"] == 0
        if verdict == "not_capable":
            assert row["would_be_kills"] > 0
        elif verdict == "failing":
            assert row["reauth_failures"] > 0
        else:
            assert row["would_be_kills"] == row["reauth_failures"] == 0, name
