"""The same SASL programs against Kafka's own listener and against the proxy."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.sasl_differential.comparison import (
    DELIBERATE,
    assert_alike,
    assert_documented,
    run_all,
)
from tests.support.kafka.sasl_differential.transcript import PROGRAMS, USERS, Transcript, World
from tests.support.proxy_process import ProxyProcess, sidecar_config
from tests.support.sasl import Issuer

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def kafka_transcripts(kafka_programs_world: World) -> Mapping[str, Transcript]:
    return run_all(kafka_programs_world)


def test_every_deliberate_difference_names_a_program() -> None:
    """Entries for renamed programs must be removed."""
    assert DELIBERATE.keys() <= PROGRAMS.keys()


def test_every_deliberate_difference_is_documented() -> None:
    assert_documented(DELIBERATE)


@pytest.mark.slow
def test_proxy_answers_as_kafka_does(
    kafka_transcripts: Mapping[str, Transcript], proxied_world: World
) -> None:
    assert_alike(kafka_transcripts, run_all(proxied_world), DELIBERATE)


@pytest.mark.slow
def test_gateway_of_two_workers_answers_as_kafka_does(
    kafka_transcripts: Mapping[str, Transcript], gateway_world: World
) -> None:
    assert_alike(kafka_transcripts, run_all(gateway_world), DELIBERATE)


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
    process = ProxyProcess(config, tmp_path)
    for name, password, mechanism in USERS:
        process.add_user(name, password, mechanism)
    with process:
        observed = run_all(World(addresses=process.addresses(), issuer=issuer))
    assert len(observed) >= 3
    at_kafka = {name: kafka_transcripts[name] for name in observed}
    assert_alike(at_kafka, observed, {})
