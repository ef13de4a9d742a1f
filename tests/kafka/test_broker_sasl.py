"""Kafka authenticates the clients, and the proxy adds sessions (`sasl.termination: broker`)."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.sasl_differential.comparison import (
    DELIBERATE,
    World,
    differences,
    run_all,
)
from tests.support.proxy_process import ProxyProcess, relaying_logins, sidecar_config
from tests.support.sasl import Issuer

_AS_WITH_PROXY = (
    "A request between SaslHandshake and token",
    "An expired session is used",
    "A frame of a re-authentication above `sasl.server.max.receive.size`",
)
"""Differences that do not depend on who authenticates: no other byte reaches a broker."""
DIFFERENT = {name: what for name, what in DELIBERATE.items() if what in _AS_WITH_PROXY} | {
    "reauth unknown user": "A refused re-authentication, relayed",
    "reauth wrong password": "A refused re-authentication, relayed",
    "token expired within the skew, then used": "A token that expired within the skew, relayed",
    "token refused: expired within the skew": "A token that expired within the skew, relayed",
}
"""By program: the row of docs/compatibility.md that explains the difference."""

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def relay(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """Listeners with the lifetimes of Kafka's own, in front of the one that announces none."""
    upstream = str(kafka.address(listener="NEVER"))
    config = relaying_logins(sidecar_config(upstream, jwks))
    with ProxyProcess(config, tmp_path_factory.mktemp("relay")) as process:
        yield process


def test_programs_are_answered_as_by_kafka(
    kafka_programs_world: World, relay: ProxyProcess, issuer: Issuer
) -> None:
    kafka_transcripts = run_all(kafka_programs_world)
    world = World(addresses=relay.addresses(), issuer=issuer)
    found = differences(kafka_transcripts, run_all(world), ("Kafka", "proxy"))
    unexpected = {name: text for name, text in found.items() if name not in DIFFERENT}
    assert not unexpected, f"{len(unexpected)} programs differ:\n{_report(unexpected)}"
    vanished = DIFFERENT.keys() - found.keys()
    assert not vanished, f"no longer different: {sorted(vanished)}"
    assert "Traceback" not in relay.log()


def test_every_difference_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    assert not {what for what in DIFFERENT.values() if f"\n| {what} | " not in text}


def _report(found: Mapping[str, str]) -> str:
    return "\n".join(f"\n{name}\n{text}" for name, text in found.items())
