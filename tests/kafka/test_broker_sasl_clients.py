"""Sessions over SASL that brokers end, with real clients (`sasl.termination: broker`, KIP-368).

Rights are Kafka's own, and given to alice alone: a client that gets through is alice to the broker.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.clients import password_of
from tests.support.kafka.cluster import wait_until
from tests.support.kafka.properties import BEHIND
from tests.support.kafka.sasl_brokers import ALICE, BOB, SECURE, ZERO, SaslBrokers, sasl_brokers
from tests.support.kafka.sasl_clients import (
    OLD_PROGRAMS,
    PROGRAMS,
    RAW,
    SECURE_PROGRAMS,
    WITHOUT_JAVA,
    Program,
    Running,
    end_offsets,
)
from tests.support.kafka.sasl_differential.transcript import METADATA, Actor
from tests.support.kafka.sessions import PLAIN_PARTITIONS
from tests.support.kafka.wire_client import WireClient, metadata_fields
from tests.support.messages import request_body
from tests.support.proxy_process import (
    ProxyProcess,
    Serve,
    gateway_config,
    relaying_logins,
    sidecar_config,
)
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

RENEW, ENFORCE, PROBE, OBSERVE = "RENEW", "ENFORCE", "PROBE", "OBSERVE"
LIFETIME_MS = 6_000
SHORT_MS = 2_000
RENEWALS = 3
"""Minimum number of re-authentications of a busy connection."""
DEADLINE_SECONDS = 400.0
"""Allowance for a busy machine."""
TOPIC = "of-alice"


@dataclass(frozen=True, slots=True)
class Place:
    """A proxy and the programs that use it."""

    proxy: ProxyProcess
    programs: Sequence[Program]
    secure: bool = False
    """Whether its listener speaks TLS."""


@pytest.fixture(scope="module")
def brokers(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBrokers]:
    with sasl_brokers(tmp_path_factory.mktemp("brokers"), issuer) as found:
        found.kafka.create_topic(TOPIC)
        yield found


@pytest.fixture(scope="module")
def gateway(brokers: SaslBrokers, jwks: Path, serve: Serve) -> ProxyProcess:
    """A gateway of the listener without a lifetime; it has a listener for each enforcement."""
    lifetimes = {RENEW: LIFETIME_MS, ENFORCE: SHORT_MS, PROBE: SHORT_MS, OBSERVE: SHORT_MS}
    upstream = str(brokers.kafka.address(listener=ZERO))
    config = relaying_logins(gateway_config(upstream, jwks, listeners=lifetimes))
    for listener in config["listeners"]:
        if listener["name"].upper() in (PROBE, OBSERVE):
            listener["reauth.enforcement"] = listener["name"]
    return serve(config | {"workers": 2}, users=False)


@pytest.fixture(scope="module")
def sidecar(brokers: SaslBrokers, jwks: Path, serve: Serve) -> ProxyProcess:
    """A sidecar that announces shorter lifetimes than its broker."""
    upstream = str(brokers.kafka.address(listener=BEHIND))
    port = brokers.kafka.sidecar_port
    config = sidecar_config(upstream, jwks, listeners={RENEW: LIFETIME_MS}, port=port)
    return serve(relaying_logins(config), users=False)


@pytest.fixture(scope="module")
def by_tls(brokers: SaslBrokers, jwks: Path, serve: Serve) -> ProxyProcess:
    """A gateway with TLS to clients and to brokers, which announce no lifetime."""
    upstream = str(brokers.kafka.address(listener=SECURE))
    config = relaying_logins(gateway_config(upstream, jwks, listeners={RENEW: LIFETIME_MS}))
    config["upstream"] |= {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(brokers.ca),
    }
    config["listeners"][0] |= {
        "security.protocol": "SASL_SSL",
        "ssl.keystore.location": str(brokers.certificate),
    }
    return serve(config, users=False)


def test_every_library_and_every_mechanism_renews(
    brokers: SaslBrokers,
    gateway: ProxyProcess,
    sidecar: ProxyProcess,
    by_tls: ProxyProcess,
    tmp_path: Path,
) -> None:
    """Every connection re-authenticates several times, and no record is lost. The gateways renew
    over side connections, the sidecar on the same connection."""
    places = {
        "gateway": Place(gateway, PROGRAMS),
        "sidecar": Place(sidecar, WITHOUT_JAVA),
        "tls": Place(by_tls, SECURE_PROGRAMS, secure=True),
    }
    running: dict[str, Running] = {}
    late: dict[str, int] = {}

    def all_renewed() -> bool:
        late.clear()
        for name, place in places.items():
            running[name].check()
            names = running[name].client_ids
            most = Counter[str]()
            # Cheaper than reading all events each time.
            renewed = place.proxy.metric("successful_reauthentication_total")
            if renewed >= RENEWALS * len(names):
                most = renewals(place.proxy.events())
            late.update({one: most[one] for one in names if most[one] < RENEWALS})
        return not late

    with ExitStack() as stack:
        for name, place in places.items():
            bootstrap = str(place.proxy.addresses()[RENEW])
            running[name] = stack.enter_context(
                Running(place.programs, brokers, bootstrap, name, tmp_path, secure=place.secure)
            )
        wait_until(all_renewed, DEADLINE_SECONDS, what="not renewed", details=lambda: f"{late}")
        for each in running.values():
            assert_nothing_lost_or_doubled(brokers, each)
    for place in places.values():
        assert not client_ids(place.proxy.events(), "failed")
        assert "Traceback" not in place.proxy.log()
    written = {
        (ALICE, "Allowed", "WRITE", one.name) for each in running.values() for one in each.logins
    }
    assert written <= brokers.audited()


def assert_nothing_lost_or_doubled(brokers: SaslBrokers, running: Running) -> None:
    """Groups have read every record once and in order."""
    written = running.stop()
    assert {login.name for login in running.logins} == written.keys()
    plain = {name: records[:PLAIN_PARTITIONS] for name, records in written.items()}
    assert end_offsets(brokers.kafka, plain) == plain
    assert all(min(records) > 0 for records in written.values())


def renewals(events: list[dict[str, Any]]) -> Counter[str]:
    """The highest number of re-authentications of a connection, by client.id."""
    found: Counter[str] = Counter()
    for event in events:
        if event["kind"] == "reauthenticated":
            name = event["client_id"]
            found[name] = max(found[name], event["authentications"] - 1)
    return found


def test_clients_without_lifetimes_are_killed_counted_or_left_alone(
    brokers: SaslBrokers, gateway: ProxyProcess, tmp_path: Path
) -> None:
    """Clients with SaslAuthenticate v0 and raw tokens reconnect when killed, and lose nothing."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                Running(programs, brokers, str(gateway.addresses()[name]), name.lower(), tmp_path)
            )
            for name, programs in ((ENFORCE, OLD_PROGRAMS), (PROBE, [RAW]), (OBSERVE, [RAW]))
        ]
        killed, counted, left_alone = running

        def all_found() -> bool:
            for each in running:
                each.check()
            events = gateway.events()
            return (
                client_ids(events, "expired-killed") >= set(killed.client_ids)
                and client_ids(events, "would-be-killed") >= set(counted.client_ids)
                and outlived(events, SHORT_MS) >= set(left_alone.client_ids)
            )

        wait_until(all_found, DEADLINE_SECONDS, what="not killed, or not counted")
        for each in running:
            assert_nothing_lost_or_doubled(brokers, each)
    logins = {name for each in running for name in each.client_ids}
    events = [event for event in gateway.events() if event.get("client_id") in logins]
    assert client_ids(events, "expired-killed") == set(killed.client_ids)
    assert client_ids(events, "would-be-killed") == set(counted.client_ids)
    assert {event.get("authenticate_version") for event in events} == {0, None}
    sessions = [event for event in events if event["authentications"]]  # some may give up earlier
    assert {event["announced_lifetime_ms"] for event in sessions} == {0}
    assert not client_ids(events, "failed")


def client_ids(events: list[dict[str, Any]], kind: str) -> set[str]:
    """Client ids in events of a kind."""
    return {event.get("client_id", "") for event in events if event["kind"] == kind}


def outlived(events: list[dict[str, Any]], lifetime_ms: int) -> set[str]:
    """Client ids whose last login is more than two lifetimes ago."""
    until_ms = time.time() * 1000 - 2 * lifetime_ms
    return {
        event.get("client_id", "")
        for event in events
        if event["kind"] == "authenticated" and event["timestamp_ms"] < until_ms
    }


def test_rights_are_those_of_who_logged_in(
    brokers: SaslBrokers, gateway: ProxyProcess, issuer: Issuer
) -> None:
    for name, errors in ((ALICE, [0]), (BOB, [29])):
        with WireClient(gateway.addresses()[RENEW]) as client:
            actor = Actor(client, issuer)
            actor.scram(name, password=password_of(name))
            actor.send(METADATA, 12, request_body(METADATA, 12, **metadata_fields([TOPIC])))
            answer = actor.hear(METADATA, 12)
        assert [int(topic.error_code) for topic in answer.topics] == errors
    expected = {(ALICE, "Allowed", "DESCRIBE", TOPIC), (BOB, "Denied", "DESCRIBE", TOPIC)}
    assert expected <= brokers.audited()
