"""Listeners of PLAINTEXT and SSL: Kafka's own and the proxy's answer alike, to the same principals.

Both judge by ACLs with `User:ANONYMOUS` for a super user: who else somebody is, shows by what it
may see.
"""

import json
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import kafka as python
import pytest
from cryptography.x509 import Name, NameAttribute, RelativeDistinguishedName
from cryptography.x509.oid import NameOID, ObjectIdentifier

from tests.certificates import Authority
from tests.kafka.clients import JavaClient
from tests.kafka.cluster import KafkaCluster, wait_until
from tests.kafka.java import RUN_SECONDS
from tests.kafka.proxied import GATEWAY_BROKERS, ProxyProcess
from tests.kafka.tokens import Issuer
from tests.kafka.transcript import METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE, Actor
from tests.kafka.wire_client import (
    API_VERSIONS,
    Address,
    WireClient,
    ask,
    metadata_fields,
    request_body,
)
from tests.ports import free_port_range, free_ports

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

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


#: Certificates by name: what is in the subject, the outermost first, and who that is.
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


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.pem`, `server.pem`, and a file for each of `SUBJECTS`."""
    directory = tmp_path_factory.mktemp("certificates")
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
    return directory


@pytest.fixture(scope="module")
def cluster(require_kafka: None, files: Path) -> Iterator[KafkaCluster]:  # noqa: ARG001 - skips
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
    with KafkaCluster(
        nodes=1, properties=properties, sasl_listeners=dict.fromkeys(CLIENT_AUTH, 0)
    ) as cluster:
        for name in topics():
            cluster.create_topic(name)
        yield cluster


def topics() -> list[str]:
    return [f"of-{name}" for name in (*SUBJECTS, "ALICE", "bob-mapped")]


def acls() -> list[Mapping[str, Any]]:
    """Everybody sees the topic of the own name; so a topic that is seen says who sees it."""
    whose = {f"of-{name}": principal for name, (_, principal) in SUBJECTS.items()}
    whose |= {"of-ALICE": "User:ALICE", "of-bob-mapped": "User:bob"}
    return [
        {
            "resource_type": 2,
            "resource_name": topic,
            "resource_pattern_type": 3,
            "principal": principal,
            "host": "*",
            "operation": 8,
            "permission_type": 3,
        }
        for topic, principal in whose.items()
    ]


@pytest.fixture(scope="module")
def proxy(
    cluster: KafkaCluster, files: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    process = ProxyProcess(proxy_config(cluster, files), tmp_path_factory.mktemp("proxy"))
    with process:
        yield process


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
        "events": {"directory": "events"},
        "http": {"address": f"127.0.0.1:{free_ports(1)[0]}"},
        "workers": 2,
    }


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two that are compared."""

    addresses: Mapping[str, Address]
    files: Path
    issuer: Issuer

    def run(self, listener: str, act: Callable[[Actor], None], shown: str | None = None) -> str:
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
        """The topics that a client sees, or what came instead."""

        def look(actor: Actor) -> None:
            answer = actor.ask(
                METADATA, 12, request_body(METADATA, 12, **metadata_fields(topics()))
            )
            if answer is not None:
                found.extend(one.name for one in answer.topics if one.error_code == 0)

        found: list[str] = []
        transcript = self.run(listener, look, shown)
        return found or transcript.splitlines()[-1:]


@pytest.fixture(scope="module")
def kafka_side(cluster: KafkaCluster, files: Path, issuer: Issuer) -> Side:
    names = (PLAINTEXT, *CLIENT_AUTH)
    side = Side(
        addresses={name: cluster.address(listener=name) for name in names},
        files=files,
        issuer=issuer,
    )
    return with_acls(side)


@pytest.fixture(scope="module")
def proxy_side(proxy: ProxyProcess, files: Path, issuer: Issuer) -> Side:
    side = with_acls(Side(addresses=proxy.addresses(), files=files, issuer=issuer))
    proxy.until_known()
    return side


def with_acls(side: Side) -> Side:
    """Make them as ANONYMOUS, and wait until they apply."""
    answer = ask(side.addresses[PLAINTEXT], CREATE_ACLS, 3, {"creations": acls()})
    assert {result.error_code for result in answer.results} == {0}, answer
    last = [*SUBJECTS][-1]
    wait_until(lambda: side.seen(REQUIRED, last) == [f"of-{last}"], what="ACLs do not apply")
    return side


# --- who is who


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_certificate_names_the_same_principal(
    kafka_side: Side, proxy_side: Side, name: str
) -> None:
    for listener in (REQUIRED, REQUESTED):
        assert kafka_side.seen(listener, name) == [f"of-{name}"]
        assert proxy_side.seen(listener, name) == [f"of-{name}"]


@pytest.mark.parametrize("listener", [PLAINTEXT, NONE, REQUESTED])
def test_who_shows_no_certificate_is_anonymous(
    kafka_side: Side, proxy_side: Side, listener: str
) -> None:
    assert sorted(kafka_side.seen(listener)) == sorted(topics())
    assert sorted(proxy_side.seen(listener)) == sorted(topics())


def test_a_certificate_that_is_not_asked_for_is_not_believed(
    kafka_side: Side, proxy_side: Side
) -> None:
    assert sorted(kafka_side.seen(NONE, "alice")) == sorted(topics())
    assert sorted(proxy_side.seen(NONE, "alice")) == sorted(topics())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("alice", "of-ALICE"),
        ("bob", "of-bob-mapped"),
        ("carol", "< closed"),  # no rule
        ("imitation", "< closed"),  # looks like alice, whom a sloppy pattern would see
    ],
)
def test_rules_map_alike(kafka_side: Side, proxy_side: Side, name: str, expected: str) -> None:
    assert kafka_side.seen(MAPPED, name) == [expected]
    assert proxy_side.seen(MAPPED, name) == [expected]


def test_control_characters_name_nobody_here(
    kafka_side: Side, proxy_side: Side, proxy: ProxyProcess
) -> None:
    """To Kafka they are a principal's like others: docs/compatibility.md says so."""
    assert kafka_side.seen(REQUIRED, "hostile") == ["< Metadata v12 errors=[29]"]
    assert proxy_side.seen(REQUIRED, "hostile") == ["< closed"]
    assert "is refused: its subject has control characters" in proxy.log()


def test_without_a_certificate_that_is_required_nobody_is_let_in(
    kafka_side: Side, proxy_side: Side
) -> None:
    for side in (kafka_side, proxy_side):
        answer = ["< closed"]
        with suppress(OSError):  # TLS 1.2 says so in the handshake
            answer = side.seen(REQUIRED)
        assert answer == ["< closed"]


# --- what is said


def _handshakes(actor: Actor) -> None:
    for mechanism in ("SCRAM-SHA-256", "OAUTHBEARER", "NO-SUCH", ""):
        for version in (0, 1):
            actor.handshake(mechanism, version)
    actor.metadata()


def _tokens(actor: Actor) -> None:
    for version in (0, 1, 2):
        actor.authenticate(b"n,,n=alice,r=nonce", version)
    actor.handshake("SCRAM-SHA-256")
    actor.authenticate(b"n,,n=alice,r=nonce")
    actor.metadata()


def _raw_token(actor: Actor) -> None:
    actor.handshake("SCRAM-SHA-256", 0)
    actor.token(b"n,,n=alice,r=nonce")
    actor.ends()


def _a_handshake_too_new(actor: Actor) -> None:
    actor.handshake("SCRAM-SHA-256", 2)
    actor.ends()


def _a_token_too_new(actor: Actor) -> None:
    actor.authenticate(b"n,,n=alice,r=nonce", 3)
    actor.ends()


def _a_handshake_cut_short(actor: Actor) -> None:
    actor.ask(SASL_HANDSHAKE, 1, b"\0\x20SCRAM")
    actor.ends()


def _a_token_cut_short(actor: Actor) -> None:
    actor.ask(SASL_AUTHENTICATE, 1, b"\0\0\0\x20n,,")
    actor.ends()


def _metadata_at_once(actor: Actor) -> None:
    actor.metadata()
    actor.api_versions(3)
    actor.metadata()


def _api_versions(actor: Actor) -> None:
    for version in (0, 1, 2, 3, 4, 0):
        actor.api_versions(version)
    actor.api_versions(99)
    actor.api_versions(3)
    for name in ("", "my client"):
        fields = {"client_software_name": name, "client_software_version": "1"}
        actor.api_versions(3, body=request_body(API_VERSIONS, 3, **fields))
    actor.metadata()


def _an_api_that_is_none(actor: Actor) -> None:
    actor.send(4_711, 0, b"", label="API 4711", flexible=False)
    actor.ends()


def _a_frame_too_long(actor: Actor) -> None:
    actor.raw(struct.pack(">i", 104_857_601) + b"\0\3\0\1", "a frame of 104,857,601 bytes")
    actor.ends()


def _half_a_frame(actor: Actor) -> None:
    actor.raw(struct.pack(">i", 100) + b"\0\3", "half a frame")
    actor.client.finish_sending()
    actor.ends()


CONVERSATIONS: Mapping[str, Callable[[Actor], None]] = {
    act.__name__.strip("_"): act
    for act in (
        *(_handshakes, _tokens, _raw_token, _a_handshake_too_new, _a_token_too_new),
        *(_a_handshake_cut_short, _a_token_cut_short, _metadata_at_once, _api_versions),
        *(_an_api_that_is_none, _a_frame_too_long, _half_a_frame),
    )
}


@pytest.mark.parametrize(("listener", "shown"), [(PLAINTEXT, None), (REQUIRED, "alice")])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_same_is_said(
    kafka_side: Side, proxy_side: Side, name: str, listener: str, shown: str | None
) -> None:
    act = CONVERSATIONS[name]
    expected = kafka_side.run(listener, act, shown)
    assert proxy_side.run(listener, act, shown) == expected


# --- three libraries


@dataclass(frozen=True, kw_only=True)
class Certified:
    """A client that shows a certificate."""

    files: Path
    name: str

    @property
    def _mine(self) -> str:
        return str(self.files / f"{self.name}.pem")

    def confluent(self, bootstrap: str, **more: Any) -> dict[str, Any]:
        """librdkafka's configuration."""
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.files / "ca.pem"),
            "ssl.certificate.location": self._mine,
            "ssl.key.location": self._mine,
            **{key.replace("_", "."): value for key, value in more.items()},
        }

    def python(self, bootstrap: str, **more: Any) -> dict[str, Any]:
        """kafka-python's keyword arguments."""
        return {
            "bootstrap_servers": bootstrap,
            "security_protocol": "SSL",
            "ssl_cafile": str(self.files / "ca.pem"),
            "ssl_certfile": self._mine,
            "ssl_keyfile": self._mine,
            "bootstrap_timeout_ms": int(1000 * DEADLINE),
            "request_timeout_ms": int(1000 * DEADLINE),
            **more,
        }

    def java(self, directory: Path) -> JavaClient:
        """A properties file for Java's clients."""
        settings = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.files / "ca.pem"),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._mine,
        }
        path = directory / f"{self.name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return JavaClient(properties=path, jvm_options=())


@pytest.fixture
def alice(files: Path) -> Certified:
    return Certified(files=files, name="alice")


@pytest.fixture
def allowed(proxy_side: Side) -> str:
    """A name for topics, groups and transactions with which ALICE may do everything."""
    name = f"mine-{uuid.uuid4()}"
    everything = {"principal": "User:ALICE", "host": "*", "operation": 2, "permission_type": 3}
    kinds = {2: (name, 4), 3: (name, 4), 5: (name, 4), 4: ("kafka-cluster", 3)}
    creations = [
        everything
        | {"resource_type": kind, "resource_name": resource, "resource_pattern_type": pattern}
        for kind, (resource, pattern) in kinds.items()
    ]
    answer = ask(proxy_side.addresses[PLAINTEXT], CREATE_ACLS, 3, {"creations": creations})
    assert {result.error_code for result in answer.results} == {0}
    return name


def test_librdkafka_shows_its_certificate(
    cluster: KafkaCluster, proxy: ProxyProcess, alice: Certified, allowed: str
) -> None:
    cluster.create_topic(allowed)
    proxy.until_known()
    bootstrap = str(proxy.addresses()[MAPPED])
    producer = confluent.Producer(alice.confluent(bootstrap, enable_idempotence=True))
    producer.produce(allowed, b"hello", partition=0)
    assert producer.flush(DEADLINE) == 0
    group = {"group_id": allowed, "auto_offset_reset": "earliest"}
    consumer = confluent.Consumer(alice.confluent(bootstrap, **group))
    try:
        consumer.subscribe([allowed])
        message = consumer.poll(DEADLINE)
        assert message is not None
        assert (message.error(), message.value()) == (None, b"hello")
    finally:
        consumer.close()


def test_kafka_python_shows_its_certificate(
    cluster: KafkaCluster, proxy: ProxyProcess, alice: Certified, allowed: str
) -> None:
    cluster.create_topic(allowed)
    proxy.until_known()
    bootstrap = str(proxy.addresses()[MAPPED])
    producer = python.KafkaProducer(**alice.python(bootstrap))
    producer.send(allowed, b"hello").get(DEADLINE)
    producer.close()
    consumer = python.KafkaConsumer(
        allowed,
        **alice.python(bootstrap),
        group_id=allowed,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(1000 * DEADLINE),
    )
    assert next(consumer).value == b"hello"
    consumer.close()


def test_java_shows_its_certificate(
    proxy: ProxyProcess, alice: Certified, allowed: str, tmp_path: Path
) -> None:
    """Topics, an idempotent producer, transactions and a group."""
    proxy.until_known()
    bootstrap = str(proxy.addresses()[MAPPED])
    done = alice.java(tmp_path).run(
        "RoundTrip", bootstrap, allowed, "20", timeout_seconds=2 * RUN_SECONDS
    )
    assert done.exit_status == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"step": "done"}


# --- what is told of them


def test_they_are_sessions_that_nothing_is_to_become_of(
    proxy_side: Side, proxy: ProxyProcess
) -> None:
    """Listed by their principals, without a mechanism, and counted by no metric of KIP-368."""
    told: list[dict[str, Any]] = []

    def look(actor: Actor) -> None:
        actor.metadata()
        told.extend(json.loads(proxy.command("sessions", "list", "--output", "json")))

    proxy_side.run(REQUIRED, look, "bob")
    (session,) = [one for one in told if one["principal"] == SUBJECTS["bob"][1]]
    assert session["state"] == "authenticated"
    assert session["mechanism"] is None
    assert session["told_of_lifetime"] is None
    assert (session["session_lifetime_ms"], session["lifetime_left_s"]) == (0, None)
    assert session["enforcement"] == "observe"
    for name in (
        "successful_authentication_total",
        "successful_authentication_no_reauth_total",
        "successful_reauthentication_total",
        "failed_authentication_total",
    ):
        assert proxy.labels(name) == []


def test_events_tell_of_denials_alone(proxy_side: Side, proxy: ProxyProcess) -> None:
    """There is no session to tell of; but whom ACLs stop, an operator must find."""
    principal = SUBJECTS["carol"][1]
    proxy_side.seen(REQUIRED, "carol")

    def theirs() -> list[dict[str, Any]]:
        return [event for event in proxy.events() if event.get("principal") == principal]

    wait_until(lambda: bool(theirs()), what="no event", details=proxy.log)
    assert {event["kind"] for event in proxy.events()} == {"denied"}
    for event in theirs():
        assert event["authentications"] == 0
        assert event["enforcement"] == "observe"
        assert not event.keys() & {"mechanism", "authenticate_version", "session_lifetime_ms"}
