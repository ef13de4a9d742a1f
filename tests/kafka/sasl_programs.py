"""All the programs of the differential test, and where the proxy means to differ from Kafka."""

from tests.kafka import (
    programs_api_versions,
    programs_expiry,
    programs_frames,
    programs_login,
    programs_oauthbearer,
    programs_scram,
    programs_sessions,
)
from tests.kafka.cluster import KafkaCluster
from tests.kafka.tokens import Issuer
from tests.kafka.transcript import PROGRAMS, TOPIC, USERS, Transcript, World, differences, run_all

__all__ = [
    "DELIBERATE",
    "PROGRAMS",
    "USERS",
    "Transcript",
    "World",
    "differences",
    "kafka_world",
    "programs_api_versions",
    "programs_expiry",
    "programs_frames",
    "programs_login",
    "programs_oauthbearer",
    "programs_scram",
    "programs_sessions",
    "run_all",
]

#: By program: why the proxy's answer is another than Kafka's, on purpose.
DELIBERATE: dict[str, str] = {
    **dict.fromkeys(
        (
            "SCRAM first: unknown user",
            "login SCRAM on mechanism without credential",
            "login SCRAM raw unknown user",
            "reauth unknown user",
        ),
        "Kafka fails an unknown user at the first message, which tells strangers who exists.",
    ),
    **dict.fromkeys(
        (
            "SCRAM last: c= says authzid added",
            "SCRAM last: c= says empty",
            "SCRAM last: c= says y,,",
        ),
        "Kafka does not compare c= with the GS2 header; RFC 5802 section 7 wants it compared.",
    ),
    **dict.fromkeys(
        (
            "token expired within the skew, then used",
            "token refused: expired within the skew",
        ),
        "Kafka lets it in with lifetime 0, which means no expiry, and closes on the next request.",
    ),
    **dict.fromkeys(
        (
            "OAUTHBEARER message: scheme Basic",
            "SCRAM last: empty proof",
            "SCRAM last: long proof",
            "SCRAM last: short proof",
            "SCRAM-SHA-512 proof for SCRAM-SHA-256",
        ),
        "An exception in Kafka's Java closes without an answer; 58 is the fitting one.",
    ),
    "SCRAM first: reserved m=": "RFC 5802 section 5.1: an unsupported mandatory extension fails.",
    "SCRAM last: unknown extension that the proof does not cover": (
        "RFC 5802 section 3: the proof covers the whole message; Kafka drops what it cannot read."
    ),
}


def kafka_world(cluster: KafkaCluster, issuer: Issuer) -> World:
    """Kafka's own SASL listeners, with the users and the topic of the programs."""
    for name, password, mechanism in USERS:
        cluster.add_scram_user(name, password, mechanism)
    world = World(
        addresses={name: cluster.address(listener=name) for name in cluster.sasl_listeners},
        issuer=issuer,
    )
    cluster.create_topic(TOPIC)
    return world
