"""Sessions over SASL that brokers end, with real clients (`sasl.termination: broker`, KIP-368).

Rights are Kafka's own, and given to alice alone: a client that gets through is alice to the broker.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.clients import User, password_of
from tests.support.kafka.cluster import wait_until
from tests.support.kafka.properties import BEHIND
from tests.support.kafka.quotas import PRODUCER, set_kafkas, told_by_librdkafka
from tests.support.kafka.sasl_brokers import (
    ALICE,
    BOB,
    SECURE,
    ZERO,
    SaslBrokers,
    sasl_brokers,
)
from tests.support.kafka.sasl_clients import (
    BY_PASSWORD,
    OLD_PROGRAMS,
    PLAIN_PARTITIONS,
    PROGRAMS,
    RENEWING_KCAT,
    SECURE_PROGRAMS,
    Program,
    RenewingKcat,
    Running,
    end_offsets,
)
from tests.support.kafka.sasl_differential.transcript import METADATA, Actor
from tests.support.kafka.wire_client import WireClient, metadata_fields
from tests.support.messages import request_body
from tests.support.proxy_process import (
    ProxyProcess,
    gateway_config,
    relaying_logins,
    sidecar_config,
)
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

RENEW, ENFORCE, PROBE, OBSERVE = "RENEW", "ENFORCE", "PROBE", "OBSERVE"
RENEW_BY_TLS = "RENEW-BY-TLS"
LIFETIME_MS = 6_000
SHORT_MS = 2_000
RENEWALS = 10
"""Minimum number of re-authentications of a busy connection."""
RENEWALS_BY_TLS = 3
"""The same for the TLS tests."""
DEADLINE_SECONDS = 400.0
"""Allowance for a busy machine."""
TOPIC = "of-alice"


@dataclass(frozen=True, slots=True)
class Place:
    """A proxy's listener and the programs that use it."""

    proxy: ProxyProcess
    listener: str
    secure: bool = False
    """Whether that listener speaks TLS."""


@pytest.fixture(scope="module")
def brokers(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBrokers]:
    with sasl_brokers(tmp_path_factory.mktemp("brokers"), issuer) as found:
        found.kafka.create_topic(TOPIC)
        yield found


@pytest.fixture(scope="module")
def gateway(
    brokers: SaslBrokers, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """A gateway of the listener without a lifetime; it has a listener for each enforcement."""
    lifetimes = {RENEW: LIFETIME_MS, ENFORCE: SHORT_MS, PROBE: SHORT_MS, OBSERVE: SHORT_MS}
    upstream = str(brokers.kafka.address(listener=ZERO))
    config = relaying_logins(gateway_config(upstream, jwks, listeners=lifetimes))
    for listener in config["listeners"]:
        if listener["name"].upper() in (PROBE, OBSERVE):
            listener["reauth.enforcement"] = listener["name"]
    directory = tmp_path_factory.mktemp("gateway")
    with ProxyProcess({**config, "workers": 2}, directory) as process:
        yield process


@pytest.fixture(scope="module")
def sidecar(
    brokers: SaslBrokers, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """A sidecar that announces shorter lifetimes than its broker."""
    upstream = str(brokers.kafka.address(listener=BEHIND))
    port = brokers.kafka.sidecar_port
    config = sidecar_config(upstream, jwks, listeners={RENEW: LIFETIME_MS}, port=port)
    with ProxyProcess(relaying_logins(config), tmp_path_factory.mktemp("sidecar")) as process:
        yield process


@pytest.fixture(scope="module")
def by_tls(
    brokers: SaslBrokers, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Place]]:
    """Gateways with TLS to clients, to brokers, and to both; the brokers announce no lifetime."""
    mine = {"ssl.keystore.location": str(brokers.certificate)}
    to_brokers = {"security.protocol": "SASL_SSL", "ssl.truststore.location": str(brokers.ca)}
    upstreams = {ZERO: {"security.protocol": "SASL_PLAINTEXT"}, SECURE: to_brokers}
    with ExitStack() as stack:
        started = {}
        for name, upstream in upstreams.items():
            address = str(brokers.kafka.address(listener=name))
            lifetimes = {RENEW: LIFETIME_MS, RENEW_BY_TLS: LIFETIME_MS}
            config = relaying_logins(gateway_config(address, jwks, listeners=lifetimes))
            config["upstream"] |= upstream
            config["listeners"][1] |= {"security.protocol": "SASL_SSL", **mine}
            process = ProxyProcess(config, tmp_path_factory.mktemp(name.lower()))
            started[name] = stack.enter_context(process)
        yield {
            "clients": Place(started[ZERO], RENEW_BY_TLS, secure=True),
            "brokers": Place(started[SECURE], RENEW),
            "both": Place(started[SECURE], RENEW_BY_TLS, secure=True),
        }


@pytest.fixture(scope="module")
def places(gateway: ProxyProcess, sidecar: ProxyProcess) -> dict[str, Place]:
    return {"gateway": Place(gateway, RENEW), "sidecar": Place(sidecar, RENEW)}


def test_every_library_renews_by_every_mechanism(
    brokers: SaslBrokers, places: dict[str, Place], tmp_path: Path
) -> None:
    """The gateway renews over side connections, the sidecar on the same connection."""
    assert_renewed(PROGRAMS, brokers, places, tmp_path)


def test_every_library_renews_over_tls(
    brokers: SaslBrokers, by_tls: dict[str, Place], tmp_path: Path
) -> None:
    """Side connections to the broker also use TLS."""
    assert_renewed(SECURE_PROGRAMS, brokers, by_tls, tmp_path, RENEWALS_BY_TLS)


def test_librdkafka_renews_by_gssapi(
    brokers: SaslBrokers, places: dict[str, Place], tmp_path: Path
) -> None:
    """The librdkafka of the Python wheels has no GSSAPI; Debian's re-authenticates since 13."""
    RenewingKcat.skip_unless_it_renews()
    assert_renewed([RENEWING_KCAT], brokers, places, tmp_path)


def assert_renewed(
    programs: Sequence[Program],
    brokers: SaslBrokers,
    places: Mapping[str, Place],
    directory: Path,
    often: int = RENEWALS,
) -> None:
    """Every connection re-authenticates `often` times, and no record is lost."""
    running: dict[str, Running] = {}
    late: dict[str, int] = {}
    before = {
        name: place.proxy.metric("successful_reauthentication_total")
        for name, place in places.items()
    }

    def all_renewed() -> bool:
        late.clear()
        for name, place in places.items():
            proxy = place.proxy
            running[name].check()
            names = running[name].client_ids
            most = Counter[str]()
            # Cheaper than reading all events each time.
            renewed = proxy.metric("successful_reauthentication_total") - before[name]
            if renewed >= often * len(names):
                most = renewals(proxy.events())
            late.update({one: most[one] for one in names if most[one] < often})
        return not late

    with ExitStack() as stack:
        for name, place in places.items():
            bootstrap = str(place.proxy.addresses()[place.listener])
            running[name] = stack.enter_context(
                Running(programs, brokers, bootstrap, name, directory, secure=place.secure)
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
                Running(
                    OLD_PROGRAMS, brokers, str(gateway.addresses()[name]), name.lower(), tmp_path
                )
            )
            for name in (ENFORCE, PROBE, OBSERVE)
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


def log_in(actor: Actor, name: str, mechanism: str) -> None:
    if mechanism == "PLAIN":
        actor.handshake(mechanism)
        actor.authenticate(f"\0{name}\0{password_of(name)}".encode())
    elif mechanism == "OAUTHBEARER":
        actor.oauth(actor.issuer.mint(name))
    else:
        actor.scram(name, mechanism, password=password_of(name))


@pytest.mark.parametrize("mechanism", [*BY_PASSWORD, "OAUTHBEARER"])
def test_rights_are_those_of_who_logged_in(
    brokers: SaslBrokers, gateway: ProxyProcess, issuer: Issuer, mechanism: str
) -> None:
    for name, errors in ((ALICE, [0]), (BOB, [29])):
        with WireClient(gateway.addresses()[RENEW]) as client:
            actor = Actor(client, issuer)
            log_in(actor, name, mechanism)
            actor.send(METADATA, 12, request_body(METADATA, 12, **metadata_fields([TOPIC])))
            answer = actor.hear(METADATA, 12)
        assert [int(topic.error_code) for topic in answer.topics] == errors
    expected = {(ALICE, "Allowed", "DESCRIBE", TOPIC), (BOB, "Denied", "DESCRIBE", TOPIC)}
    assert expected <= brokers.audited()


def test_quotas_are_those_of_who_logged_in(
    brokers: SaslBrokers, gateway: ProxyProcess, issuer: Issuer
) -> None:
    """The broker throttles alice's connections."""
    bootstrap = str(gateway.addresses()[RENEW])
    alice = User(name=ALICE, mechanism="SCRAM-SHA-256", issuer=issuer)
    assert told_by_librdkafka(alice, bootstrap, TOPIC, "unlimited", 100_000) == 0
    set_kafkas(brokers.kafka, PRODUCER, 10_000, "user", ALICE)
    try:
        assert told_by_librdkafka(alice, bootstrap, TOPIC, "limited", 200_000) > 0
    finally:
        set_kafkas(brokers.kafka, PRODUCER, None, "user", ALICE)
