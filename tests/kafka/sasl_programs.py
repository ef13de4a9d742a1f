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
from tests.kafka.program_runs import differences, run_all
from tests.kafka.tokens import Issuer
from tests.kafka.transcript import PROGRAMS, TOPIC, USERS, Transcript, World

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

#: Where the proxy means to differ from Kafka, and the programs that show it. Each is the first
#: cell of a row of docs/compatibility.md, which says what Kafka does and why the proxy does not.
_PROGRAMS_BY_DIFFERENCE: dict[str, tuple[str, ...]] = {
    "An unknown user": (
        "SCRAM first: unknown user",
        "login SCRAM on mechanism without credential",
        "login SCRAM raw unknown user",
        "reauth unknown user",
    ),
    "`c=` of the last message": (
        "SCRAM last: c= says authzid added",
        "SCRAM last: c= says empty",
        "SCRAM last: c= says y,,",
    ),
    "`m=` in the first message": ("SCRAM first: reserved m=",),
    "An unknown extension in the last message": (
        "SCRAM last: unknown extension that the proof does not cover",
    ),
    "User names": ("SCRAM name 'jürgen'",),
    "Messages of more than 16 KiB": ("SCRAM first: 400,000 letters of nonce",),
    "Scheme other than Bearer": ("OAUTHBEARER message: scheme Basic",),
    "A proof of the wrong length": (
        "SCRAM last: empty proof",
        "SCRAM last: long proof",
        "SCRAM last: short proof",
        "SCRAM-SHA-512 proof for SCRAM-SHA-256",
    ),
    "A token that expired within the clock skew": (
        "token expired within the skew, then used",
        "token refused: expired within the skew",
    ),
    "A repeated `auth`": ("OAUTHBEARER message: auth twice",),
    "A repeated extension name": ("OAUTHBEARER message: extension twice",),
    "An escaped authzid": ("OAUTHBEARER message: authzid with escape",),
    "A second rejected token in one exchange": ("error round, then a bad token, then a good one",),
    "A request between SaslHandshake and token": (
        "between handshake and token: DescribeCluster",
        "between handshake and token: FindCoordinator",
        "between handshake and token: Metadata",
        "between two SCRAM messages: DescribeCluster",
        "between two SCRAM messages: FindCoordinator",
        "between two SCRAM messages: Metadata",
        "delay: Metadata between handshake and token",
        "error round, then Metadata",
        "expired: handshake answered, then Metadata",
        "reauth: Fetch between handshake and token",
        "reauth: FindCoordinator between handshake and token",
        "reauth: Metadata between handshake and token",
    ),
    "An expired session is used": ("expired: half a Metadata request",),
    "A frame of a re-authentication above `sasl.server.max.receive.size`": (
        "reauth handshake itself larger than sasl.server.max.receive.size",
    ),
    "A failure that has no answer": (
        "delay: raw token garbage",
        "delay: reauth unknown mechanism",
    ),
}

#: By program: the row of docs/compatibility.md that explains it.
DELIBERATE: dict[str, str] = {
    program: difference
    for difference, programs in _PROGRAMS_BY_DIFFERENCE.items()
    for program in programs
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
