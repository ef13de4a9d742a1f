"""A broker with all of Kafka's SASL mechanisms, on which only alice has rights.

Its SASL listeners differ in `connections.max.reauth.ms`; one of them also uses TLS.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.certificates import Authority
from tests.support.kafka import properties
from tests.support.kafka.acl_differential.profiles import creation
from tests.support.kafka.clients import password_of
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.kerberos import SERVICE, Realm
from tests.support.kafka.properties import BEHIND, CONTROLLER, PLAINTEXT
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.wire_client import WireClient
from tests.support.messages import request_body
from tests.support.processes import free_ports
from tests.support.sasl import Issuer

ALICE, BOB = "alice", "bob"
ZERO, TEN, SECURE = "ZERO", "TEN", "SECURE"
TEN_MS = 10_000
LISTENERS: Mapping[str, int] = {ZERO: 0, TEN: TEN_MS, SECURE: 0}
"""`SECURE` is like `ZERO`, but speaks TLS. `BEHIND` is like `TEN`, but names a sidecar's port to
clients."""

_CREATE_ACLS, _CREATE_TOKEN = 30, 38
_AUDITED = re.compile(
    r"Principal = User:(\S+) is (Allowed|Denied) operation = (\S+) from host = \S+"
    r" on resource = Topic:LITERAL:(\S+) "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslBrokers:
    """The cluster and alice's credentials."""

    kafka: KafkaCluster
    realm: Realm
    issuer: Issuer
    token_id: str
    """Id of the delegation token, used as user name."""
    token_hmac: str
    """HMAC of the delegation token, used as password."""
    ca: Path
    """Certificate of the authority of both certificates."""
    certificate: Path
    """Certificate and key of a proxy on this machine."""

    def audited(self) -> set[tuple[str, ...]]:
        """Users, verdicts, operations and topics of kafka-authorizer.log."""
        return set(_AUDITED.findall(self.kafka.log()))


@contextmanager
def sasl_brokers(directory: Path, issuer: Issuer) -> Iterator[SaslBrokers]:
    """One node and its KDC; the issuer's JWKS file is in the directory."""
    jwks = issuer.write_jwks(directory / "jwks.json")
    authority = Authority()
    ca, broker, proxy = (
        authority.write(directory),
        directory / "broker.pem",
        directory / "proxy.pem",
    )
    for file in (broker, proxy):
        file.write_bytes(authority.issue(file.stem).pem)
    with Realm(directory, (ALICE, BOB)) as realm, _cluster(jwks, realm, broker) as kafka:
        for name in (ALICE, BOB):
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                kafka.add_scram_user(name, password_of(name), mechanism)
        _permit_everything(kafka, ALICE)
        token_id, token_hmac = _delegation_token(kafka, issuer)
        yield SaslBrokers(
            kafka=kafka,
            realm=realm,
            issuer=issuer,
            token_id=token_id,
            token_hmac=token_hmac,
            ca=ca,
            certificate=proxy,
        )


def _cluster(jwks: Path, realm: Realm, certificate: Path) -> KafkaCluster:
    listeners = {**LISTENERS, BEHIND: TEN_MS}
    protocols = dict.fromkeys((PLAINTEXT, CONTROLLER), "PLAINTEXT")
    protocols |= dict.fromkeys(listeners, "SASL_PLAINTEXT") | {SECURE: "SASL_SSL"}
    keystore = f"listener.name.{SECURE.lower()}.ssl.keystore"
    passwords = {name: password_of(name) for name in (ALICE, BOB)}
    return KafkaCluster(
        jwks=jwks,
        sasl_listeners=LISTENERS,
        sidecar_port=free_ports(1)[0],
        jvm_options=(*realm.jvm_options, "-Dauthorizer.log.level=debug"),
        properties={
            **properties.sasl(listeners, jwks, passwords, realm.broker_jaas()),
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
            f"{keystore}.type": "PEM",
            f"{keystore}.location": str(certificate),
            "sasl.kerberos.service.name": SERVICE,
            "delegation.token.secret.key": "secret-of-all-brokers",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
    )


def _permit_everything(kafka: KafkaCluster, name: str) -> None:
    acls = ("+topic:*:ALL", "+group:*:ALL", "+txn:*:ALL")
    creations = [creation(acl, name, str) for acl in acls]
    kafka.ask(_CREATE_ACLS, 3, creations=creations)


def _delegation_token(kafka: KafkaCluster, issuer: Issuer) -> tuple[str, str]:
    """Create a delegation token as alice; return its id and HMAC."""
    with WireClient(kafka.address(listener=ZERO)) as client:
        actor = Actor(client, issuer)
        actor.scram(ALICE, password=password_of(ALICE))
        answer = actor.ask(
            _CREATE_TOKEN, 2, request_body(_CREATE_TOKEN, 2, renewers=[], max_lifetime=-1)
        )
    assert answer.error_code == 0, answer
    return answer.token_id, base64.b64encode(answer.hmac).decode()
