"""Comparison of Kafka and the proxy without SASL, with client certificates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.x509 import Name, NameAttribute, RelativeDistinguishedName
from cryptography.x509.oid import NameOID, ObjectIdentifier

from tests.support.certificates import Authority
from tests.support.kafka.acl_differential.profiles import creation
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.sasl_differential.transcript import METADATA, Actor, read_programs
from tests.support.kafka.wire_client import Address, WireClient, ask, metadata_fields
from tests.support.messages import request_body
from tests.support.processes import free_port_range, free_ports
from tests.support.proxy_process import GATEWAY_BROKERS
from tests.support.sasl import Issuer

CREATE_ACLS = 30
ANONYMOUS = "User:ANONYMOUS"
RULES = "RULE:^CN=(a[^,]*),OU=dev,.*$/$1/U, RULE:^CN=(b[^,]*),OU=dev,.*$/$1/"
DEADLINE = 120.0
PLAINTEXT, NONE, REQUESTED, REQUIRED, MAPPED = (
    *("PLAINTEXT", "NONE", "REQUESTED"),
    *("REQUIRED", "MAPPED"),
)
CLIENT_AUTH = {NONE: "none", REQUESTED: "requested", REQUIRED: "required", MAPPED: "required"}
EMAIL = ObjectIdentifier("1.2.840.113549.1.9.1")

Relative = tuple[tuple[ObjectIdentifier, str], ...]


def dev(common_name: str) -> tuple[Relative, ...]:
    return (
        ((NameOID.COUNTRY_NAME, "DE"),),
        ((NameOID.ORGANIZATION_NAME, "Acme"),),
        ((NameOID.ORGANIZATIONAL_UNIT_NAME, "dev"),),
        ((NameOID.COMMON_NAME, common_name),),
    )


#: Certificates by name: subject, outermost first, and principal.
SUBJECTS: Mapping[str, tuple[tuple[Relative, ...], str]] = {
    "alice": (dev("alice"), "User:CN=alice,OU=dev,O=Acme,C=DE"),
    "bob": (dev("bob"), "User:CN=bob,OU=dev,O=Acme,C=DE"),
    "carol": ((((NameOID.COMMON_NAME, "carol"),),), "User:CN=carol"),
    "escapes": (
        dev('a,b+c"d\\e<f>g;h=i#'),
        'User:CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#,OU=dev,O=Acme,C=DE',
    ),
    "spaces": (dev(" #x "), "User:CN=\\ \\#x\\ ,OU=dev,O=Acme,C=DE"),
    "unicode": (dev("ünï😀"), "User:CN=ünï😀,OU=dev,O=Acme,C=DE"),
    "several": (
        (((NameOID.COMMON_NAME, "x"), (NameOID.USER_ID, "7")), ((NameOID.DOMAIN_COMPONENT, "d"),)),
        "User:DC=d,CN=x+UID=7",
    ),
    "email": (
        (((EMAIL, "a@b.c"),), ((NameOID.COMMON_NAME, "x"),)),
        "User:CN=x,1.2.840.113549.1.9.1=#16056140622e63",
    ),
    "imitation": (
        dev("alice,OU=dev,O=Acme"),
        "User:CN=alice\\,OU\\=dev\\,O\\=Acme,OU=dev,O=Acme,C=DE",
    ),
}


def write_certificates(directory: Path) -> None:
    """`ca.pem`, `server.pem`, and a file for each of `SUBJECTS`."""
    authority = Authority()
    authority.write(directory)
    (directory / "server.pem").write_bytes(authority.issue("server").pem)
    hostile = ((((NameOID.ORGANIZATION_NAME, "x\ny"),),), "")
    for name, (relatives, _) in {**SUBJECTS, "hostile": hostile}.items():
        subject = Name(
            RelativeDistinguishedName(NameAttribute(*each) for each in relative)
            for relative in relatives
        )
        (directory / f"{name}.pem").write_bytes(authority.issue(subject=subject).pem)


def kafka_properties(files: Path) -> dict[str, str]:
    """A node with a listener for each of `CLIENT_AUTH`, and one of PLAINTEXT."""
    protocols = dict.fromkeys(CLIENT_AUTH, "SSL") | dict.fromkeys(
        (PLAINTEXT, "CONTROLLER"), "PLAINTEXT"
    )
    properties = {
        "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ANONYMOUS,
        "ssl.principal.mapping.rules": "DEFAULT",
        f"listener.name.{MAPPED.lower()}.ssl.principal.mapping.rules": RULES,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files / "ca.pem"),
    }
    for name, client_auth in CLIENT_AUTH.items():
        properties[f"listener.name.{name.lower()}.ssl.client.auth"] = client_auth
    return properties


def proxy_config(cluster: KafkaCluster, files: Path) -> dict[str, Any]:
    listeners = []
    for name in (PLAINTEXT, *CLIENT_AUTH):
        port = free_port_range(GATEWAY_BROKERS + 2)
        listener = {
            "name": name.lower(),
            "address": f"127.0.0.1:{port}",
            "routing": "gateway",
            "advertised.host": "127.0.0.1",
            "broker.ports": f"{port + 1}-{port + 1 + GATEWAY_BROKERS}",
            "security.protocol": "PLAINTEXT",
        }
        if name in CLIENT_AUTH:
            listener |= {
                "security.protocol": "SSL",
                "ssl.keystore.location": str(files / "server.pem"),
                "ssl.truststore.location": str(files / "ca.pem"),
                "ssl.client.auth": CLIENT_AUTH[name],
            }
        if name == MAPPED:
            listener["ssl.principal.mapping.rules"] = RULES
        listeners.append(listener)
    return {
        "upstream": {"bootstrap.servers": str(cluster.address()), "metadata.max.age.ms": 1_000},
        "listeners": listeners,
        "authorizer": {"mode": "enforce", "super.users": [ANONYMOUS]},
        "quotas": {"mode": "enforce"},
        "events": {"directory": "events"},
        "http": {"address": f"127.0.0.1:{free_ports(1)[0]}"},
        "workers": 2,
    }


@dataclass(frozen=True, kw_only=True)
class Side:
    """Kafka or the proxy."""

    addresses: Mapping[str, Address]
    files: Path
    issuer: Issuer

    def run(self, listener: str, act: Callable[[Actor], object], shown: str | None = None) -> str:
        """The transcript of a conversation on one connection."""
        certificate = None if shown is None else str(self.files / f"{shown}.pem")
        address = self.addresses[listener]
        if listener in CLIENT_AUTH:
            address = address._replace(ca=str(self.files / "ca.pem"))
        with WireClient(address, certificate) as client:
            actor = Actor(client, self.issuer)
            act(actor)
            return "\n".join(actor.lines)

    def seen(self, listener: str, shown: str | None = None) -> list[str]:
        """Visible topics, or the last line of the transcript."""

        def look(actor: Actor) -> None:
            answer = actor.ask(
                METADATA, 12, request_body(METADATA, 12, **metadata_fields(topics()))
            )
            if answer is not None:
                found.extend(one.name for one in answer.topics if one.error_code == 0)

        found: list[str] = []
        transcript = self.run(listener, look, shown)
        return found or transcript.splitlines()[-1:]


def topics() -> list[str]:
    return [f"of-{name}" for name in (*SUBJECTS, "ALICE", "bob-mapped")]


def acls() -> list[Mapping[str, Any]]:
    """Each principal may write to its own topic, so visible topics identify the principal."""
    whose = {f"of-{name}": principal for name, (_, principal) in SUBJECTS.items()}
    whose |= {"of-ALICE": "User:ALICE", "of-bob-mapped": "User:bob"}
    return [
        creation(f"+topic:{topic}:WRITE", principal.removeprefix("User:"), str)
        for topic, principal in whose.items()
    ]


def with_acls(side: Side) -> Side:
    """Create the ACLs as ANONYMOUS, and wait until they apply."""
    answer = ask(side.addresses[PLAINTEXT], CREATE_ACLS, 3, {"creations": acls()})
    assert {result.error_code for result in answer.results} == {0}, answer
    last = [*SUBJECTS][-1]
    wait_until(lambda: side.seen(REQUIRED, last) == [f"of-{last}"], what="ACLs do not apply")
    return side


CONVERSATIONS = read_programs(Path(__file__).with_suffix(".jsonl"))
"""They try SASL on listeners without it."""
