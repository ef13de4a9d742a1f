"""The same SASL programs against Kafka's own listener and against the proxy."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.sasl_differential.comparison import (
    DELIBERATE,
    assert_alike,
    assert_documented,
    is_judged,
    kafka_world,
    run_all,
)
from tests.support.kafka.sasl_differential.transcript import PROGRAMS, USERS, Transcript, World
from tests.support.proxy_process import ProxyProcess, relaying_logins, sidecar_config
from tests.support.sasl import Issuer

pytestmark = pytest.mark.kafka

_AS_WITH_PROXY = (
    "A request between SaslHandshake and token",
    "An expired session is used",
    "A frame of a re-authentication above `sasl.server.max.receive.size`",
)
"""Differences that do not depend on which side authenticates."""
_MISROUTED = "ApiVersions v5 that means another broker, relayed"
_OF_RELAYED_LOGINS = {
    "ApiVersions v5 that means a cluster of 32,767 letters, and node -2": _MISROUTED,
    "ApiVersions v5 that means another cluster": _MISROUTED,
    "reauth unknown user": "A refused re-authentication, relayed",
    "reauth wrong password": "A refused re-authentication, relayed",
    **dict.fromkeys(
        (
            "reauth with a token that expired within the skew, then used",
            "token expired within the skew, then SaslAuthenticate",
            "token expired within the skew, then renewed",
            "token expired within the skew, then used",
        ),
        "A token that expired within the skew, relayed",
    ),
}
RELAYED = {name: what for name, what in DELIBERATE.items() if what in _AS_WITH_PROXY} | {
    name: what for name, what in _OF_RELAYED_LOGINS.items() if is_judged(PROGRAMS[name])
}
"""Row of docs/compatibility.md that explains the difference, by program."""


@pytest.fixture(scope="module")
def kafka_transcripts(kafka: KafkaCluster, issuer: Issuer) -> Mapping[str, Transcript]:
    return run_all(kafka_world(kafka, issuer))


@contextmanager
def serving(config: dict[str, Any], directory: Path, issuer: Issuer) -> Iterator[World]:
    """The proxy's listeners under the names of Kafka's, on the same broker and topic."""
    process = ProxyProcess(config, directory)
    for name, password, mechanism in USERS:
        process.add_user(name, password, mechanism)
    with process:
        yield World(addresses=process.addresses(), issuer=issuer)
    assert "Traceback" not in process.log()


@pytest.mark.parametrize("deliberate", [DELIBERATE, RELAYED], ids=["own", "relayed"])
def test_every_deliberate_difference_is_documented(deliberate: Mapping[str, str]) -> None:
    assert_documented(deliberate)


@pytest.mark.slow
def test_proxy_answers_as_kafka_does(
    kafka_transcripts: Mapping[str, Transcript],
    kafka: KafkaCluster,
    jwks: Path,
    issuer: Issuer,
    tmp_path: Path,
) -> None:
    with serving(sidecar_config(str(kafka.address()), jwks), tmp_path, issuer) as world:
        assert world.addresses.keys() == {one.listener for one in PROGRAMS.values()}
        assert_alike(kafka_transcripts, run_all(world), DELIBERATE)


@pytest.mark.slow
def test_proxy_that_relays_logins_answers_as_kafka_does(
    kafka_transcripts: Mapping[str, Transcript],
    kafka: KafkaCluster,
    jwks: Path,
    issuer: Issuer,
    tmp_path: Path,
) -> None:
    """Its listeners have the lifetimes of Kafka's, in front of one that announces no lifetime."""
    config = relaying_logins(sidecar_config(str(kafka.address(listener="NEVER")), jwks))
    with serving(config, tmp_path, issuer) as world:
        assert_alike(kafka_transcripts, run_all(world), RELAYED)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["observe", "probe"])
def test_proxy_that_only_observes_answers_as_kafka_without_reauthentication_does(
    kafka_transcripts: Mapping[str, Transcript],
    kafka: KafkaCluster,
    jwks: Path,
    issuer: Issuer,
    tmp_path: Path,
    mode: str,
) -> None:
    """Kafka announces and enforces the expiry of tokens even so (KAFKA-13848)."""
    max_reauth_ms = 3_600_000 if mode == "observe" else 0
    config = sidecar_config(str(kafka.address()), jwks, listeners={"NEVER": max_reauth_ms})
    config["listeners"][0]["reauth.enforcement"] = mode
    with serving(config, tmp_path, issuer) as world:
        observed = run_all(world)
    assert len(observed) >= 3
    at_kafka = {name: kafka_transcripts[name] for name in observed}
    assert_alike(at_kafka, observed, {})
