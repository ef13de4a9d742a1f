"""Brokers see the clients of a proxy that terminates SASL: they answer as if connected directly."""

import base64
import json
import re
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from proxy.brokers.signed_tokens import read_jwks
from tests.support.kafka.acl_differential.profiles import creation
from tests.support.kafka.clients import OAUTHBEARER, User
from tests.support.kafka.cluster import KafkaCluster, StartCluster, wait_until
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.traffic import PARTITIONS, confluent_traffic
from tests.support.kafka.upstream import (
    BUSY,
    LITTLE,
    add_proxys_users,
    by_password,
    sasl_cluster,
    sasl_properties,
    sidecar_of,
)
from tests.support.kafka.wire_client import Address, WireClient, metadata_fields, record_batch
from tests.support.messages import produce_body, request_body
from tests.support.proxy_process import ProxyProcess, gateway_config
from tests.support.sasl import AUDIENCE, ISSUER, Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PRODUCE, METADATA, CREATE_TOPICS, DESCRIBE_ACLS, CREATE_ACLS = 0, 3, 19, 29, 30
CREATE_TOKEN, EXPIRE_TOKEN, DESCRIBE_TOKENS = 38, 40, 41
DESCRIBE_QUOTAS, ALTER_QUOTAS = 48, 49
NOT_ALLOWED = 64
"""DELEGATION_TOKEN_REQUEST_NOT_ALLOWED."""
SCRAM = "SCRAM-SHA-256"
LITERAL, ANY, TOPIC = 3, 1, 2
TOKENS, TOKENS_SECRET = "tokens", "tokens-secret"
"""The user of a proxy that may create delegation tokens, and that is no super user."""
RUN = uuid.uuid4().hex
CAROL, DAVE = f"carol-{RUN}", f"dave,={RUN}"
"""Users of the brokers and of the proxy; SCRAM must escape Dave's name."""
FRANK = f"frank-{RUN}"
"""Brokers do not let the proxy create tokens for him."""


def secret_of(name: str) -> str:
    return f"at brokers: {name}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("identity")


@pytest.fixture(scope="module")
def sasl_kafka(issuer: Issuer, files: Path) -> Iterator[KafkaCluster]:
    """Brokers that trust the clients' issuer, for direct connections, and the proxy's key."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (files / "key.pem").write_bytes(pem)
    trusted = issuer.jwks()["keys"] + read_jwks([files / "key.pem"])["keys"]
    jwks = files / "brokers.json"
    jwks.write_text(json.dumps({"keys": trusted}))
    with sasl_cluster(jwks, files) as cluster:
        add_proxys_users(cluster)
        cluster.add_scram_user(TOKENS, TOKENS_SECRET, SCRAM)
        yield cluster


@pytest.fixture(scope="module")
def brokers(sasl_kafka: KafkaCluster) -> KafkaCluster:
    """Carol may create topics, Dave may read one of them; the proxy may create tokens for them."""
    for name in (CAROL, DAVE):
        sasl_kafka.add_scram_user(name, secret_of(name), SCRAM)
    sasl_kafka.create_topic(f"{RUN}-topic")
    rules = [
        (CAROL, f"+topic:{RUN}-^:ALL"),
        (DAVE, f"+topic:{RUN}-topic:ALL"),
        (TOKENS, "+user:User:^:CREATE_TOKENS"),
        (TOKENS, f"-user:User:{FRANK}:CREATE_TOKENS"),
    ]
    create_acls(sasl_kafka, rules)
    return sasl_kafka


def create_acls(brokers: KafkaCluster, rules: Iterable[tuple[str, str]]) -> None:
    creations = [creation(acl, user, str) for user, acl in rules]
    brokers.ask(CREATE_ACLS, 3, creations=creations)


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mapped")
    for name, encoded in ((CAROL, CAROL), (DAVE, f"dave%2C%3D{RUN}")):
        (directory / encoded).mkdir()
        (directory / encoded / "username").write_text(name)
        (directory / encoded / "password").write_text(secret_of(name))
    return directory


DELEGATED, MINTED, MAPPED = "delegation-token", "minted-token", "mapped"
WAYS = DELEGATED, MINTED, MAPPED


@contextmanager
def serving(
    brokers: KafkaCluster, listener: str, jwks: Path, directory: Path, way: dict[str, Any]
) -> Iterator[ProxyProcess]:
    """Run a proxy in front of a listener of the brokers."""
    login = by_password(SCRAM, directory)
    if way["upstream.identity"] == DELEGATED:
        login = by_password(SCRAM, directory, name=TOKENS, password=TOKENS_SECRET)
    config = sidecar_of(brokers, listener, jwks, login)
    config["listeners"][0] |= way | {
        "upstream.identity.allow.prefixes": ["User:"],
        "upstream.identity.super.users": [],
    }
    with ProxyProcess(config, directory) as process:
        yield process
    log = process.log()
    assert "Traceback" not in log
    assert "at brokers: " not in log, "a password was logged"


@pytest.fixture(scope="module")
def ways(files: Path, entries: Path) -> dict[str, dict[str, Any]]:
    """Settings by `upstream.identity`."""
    mapped = {"directory": str(entries), "mechanism": SCRAM}
    minted = {
        "signing.key.files": str(files / "key.pem"),
        "token.issuer": ISSUER,
        "token.audience": AUDIENCE,
    }
    return {
        way: {"upstream.identity": way, **{f"upstream.identity.{k}": v for k, v in given.items()}}
        for way, given in zip(WAYS, ({"mechanism": SCRAM}, minted, mapped), strict=True)
    }


@pytest.fixture(scope="module")
def proxies(
    brokers: KafkaCluster,
    jwks: Path,
    ways: dict[str, dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, ProxyProcess]]:
    """A proxy for each way."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                serving(brokers, LITTLE, jwks, tmp_path_factory.mktemp("proxy"), way)
            )
            for name, way in ways.items()
        }


def quota(user: str, rate: float) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": "user", "entity_name": user}],
        "ops": [{"key": "producer_byte_rate", "value": rate, "remove": False}],
    }


def answers(address: Address, issuer: Issuer, user: str) -> list[Any]:
    """The broker's answers to one user, case by case."""
    topics = [
        {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        for name in (f"{RUN}-new", f"other-{RUN}")
    ]
    acls = {
        "resource_type_filter": TOPIC,
        "resource_name_filter": f"{RUN}-topic",
        "pattern_type_filter": LITERAL,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    cases: list[tuple[int, int, dict[str, Any]]] = [
        (METADATA, 12, metadata_fields([f"{RUN}-topic", f"other-{RUN}"])),
        (CREATE_TOPICS, 6, {"topics": topics, "timeout": 60_000, "validate_only": True}),
        (DESCRIBE_ACLS, 3, acls),
        (DESCRIBE_QUOTAS, 1, {"components": [], "strict": False}),
        (ALTER_QUOTAS, 1, {"entries": [quota(user, 1e6)], "validate_only": True}),
    ]
    with WireClient(address) as client:
        actor = Actor(client, issuer)
        actor.oauth(issuer.mint(user))
        return [
            actor.ask(key, version, request_body(key, version, **fields))
            for key, version, fields in cases
        ]


def shown(answer: Any) -> str:
    """An answer without the number of the connection, which Kafka's messages name."""
    return re.sub(r"Request\(processor=.*?\) needs", "it needs", repr(answer))


@pytest.mark.parametrize("way", WAYS)
def test_the_broker_answers_as_if_the_client_were_connected_directly(
    brokers: KafkaCluster, proxies: dict[str, ProxyProcess], issuer: Issuer, way: str
) -> None:
    for user, expected in ((CAROL, [0, 29]), (DAVE, [29, 29])):
        behind = answers(proxies[way].addresses()["LONG"], issuer, user)
        directly = answers(brokers.address(listener=LITTLE), issuer, user)
        assert [*map(shown, behind)] == [*map(shown, directly)]
        assert None not in behind
        assert [topic.error_code for topic in behind[1].topics] == expected
        assert behind[2].error_code == 31  # which is not the answer to the proxy's own login


def test_the_brokers_quotas_and_authorizer_log_are_about_the_client(
    brokers: KafkaCluster, proxies: dict[str, ProxyProcess], issuer: Issuer
) -> None:
    brokers.ask(ALTER_QUOTAS, 1, entries=[quota(CAROL, 1.0)], validate_only=False)
    topics = [(f"{RUN}-topic", [0])]
    body = produce_body(9, topics, records=record_batch(b"x" * 1_000))
    denied = f"Principal = User:{DAVE} is Denied"
    before = brokers.log().count(denied)

    def throttled(user: str) -> float:
        with WireClient(proxies[DELEGATED].addresses()["LONG"]) as client:
            actor = Actor(client, issuer)
            actor.oauth(issuer.mint(user))
            produced = actor.ask(PRODUCE, 9, body)
            actor.ask(METADATA, 12, request_body(METADATA, 12, **metadata_fields(["other"])))
        return float(produced.throttle_time.total_seconds())

    wait_until(lambda: throttled(CAROL) > 0, what="not throttled", details=proxies[DELEGATED].log)
    assert throttled(DAVE) == 0
    wait_until(lambda: brokers.log().count(denied) > before, what="not logged")
    assert f"Principal = User:{TOKENS} is Denied" not in brokers.log()


def test_a_login_that_brokers_refuse_closes_the_connection(
    proxies: dict[str, ProxyProcess], issuer: Issuer, entries: Path
) -> None:
    """The files are read again; a wrong password is not made up for by the proxy's identity."""
    proxy, password = proxies[MAPPED], entries / CAROL / "password"
    password.write_text("wrong")
    try:

        def is_refused() -> bool:
            return answers(proxy.addresses()["LONG"], issuer, CAROL)[0] is None

        wait_until(is_refused, what="let in by an old password", details=proxy.log)
        line = f"login of client 'User:{CAROL}' failed: "
        proxy.until_logged(line)
    finally:
        password.write_text(secret_of(CAROL))


def test_the_published_keys_are_those_that_sign(
    proxies: dict[str, ProxyProcess], files: Path
) -> None:
    status, body = proxies[MINTED].page("/jwks.json")
    assert (status, json.loads(body)) == (200, read_jwks([files / "key.pem"]))
    assert proxies[MAPPED].page("/jwks.json")[0] == 404


@pytest.mark.parametrize("way", WAYS)
def test_sessions_are_renewed_in_place_as_the_client(
    brokers: KafkaCluster,
    jwks: Path,
    issuer: Issuer,
    ways: dict[str, dict[str, Any]],
    tmp_path: Path,
    way: str,
) -> None:
    """A machine that stalls may cost a session its renewal: then the client connects again."""
    body = request_body(METADATA, 12, **metadata_fields([f"other-{RUN}"]))
    with serving(brokers, BUSY, jwks, tmp_path, ways[way]) as proxy:

        def is_renewed() -> bool:
            with WireClient(proxy.addresses()["LONG"]) as client:
                actor = Actor(client, issuer)
                actor.oauth(issuer.mint(CAROL))
                while (answer := actor.ask(METADATA, 12, body)) is not None:
                    assert [topic.error_code for topic in answer.topics] == [29]
                    actor.wait(0.2)
                    if proxy.metric("upstream_successful_reauthentication_total", listener="long"):
                        return True
            return False

        wait_until(is_renewed, what="not renewed", details=proxy.log)


def is_let_in(proxy: ProxyProcess, issuer: Issuer, user: str) -> bool:
    return answers(proxy.addresses()["LONG"], issuer, user)[0] is not None


def tokens_of(brokers: KafkaCluster, user: str) -> list[Any]:
    """The tokens that the proxy can see."""
    with WireClient(brokers.address(listener=LITTLE)) as client:
        actor = Actor(client, Issuer())
        actor.scram(TOKENS, password=TOKENS_SECRET)
        owners = [{"principal_type": "User", "principal_name": user}]
        answer = actor.ask(DESCRIBE_TOKENS, 3, request_body(DESCRIBE_TOKENS, 3, owners=owners))
    assert answer.error_code == 0
    return list(answer.tokens)


def test_who_may_not_have_a_token_gets_no_other_identity(
    proxies: dict[str, ProxyProcess], issuer: Issuer
) -> None:
    proxy = proxies[DELEGATED]
    assert not is_let_in(proxy, issuer, FRANK)
    line = f"User:{TOKENS} needs the operation CreateTokens on the user User:{FRANK}"
    proxy.until_logged(line)


def test_a_restarted_proxy_finds_its_tokens_and_keeps_no_secret(
    brokers: KafkaCluster,
    jwks: Path,
    issuer: Issuer,
    proxies: dict[str, ProxyProcess],
    ways: dict[str, dict[str, Any]],
    tmp_path: Path,
) -> None:
    assert is_let_in(proxies[DELEGATED], issuer, DAVE)
    before = {token.token_id for token in tokens_of(brokers, DAVE)}
    with serving(brokers, LITTLE, jwks, tmp_path, ways[DELEGATED]) as proxy:
        assert is_let_in(proxy, issuer, DAVE)
    after = tokens_of(brokers, DAVE)
    assert {token.token_id for token in after} == before
    secrets = [base64.b64encode(token.hmac) for token in after] + [token.hmac for token in after]
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [secret for secret in secrets for content in kept if secret in content]


def test_a_token_that_somebody_expired_is_replaced(
    brokers: KafkaCluster, proxies: dict[str, ProxyProcess], issuer: Issuer
) -> None:
    """The login that finds it out may be refused; it never gets another identity."""
    proxy = proxies[DELEGATED]
    assert is_let_in(proxy, issuer, CAROL)
    expired = tokens_of(brokers, CAROL)
    with WireClient(brokers.address(listener=LITTLE)) as client:
        actor = Actor(client, issuer)
        actor.scram(TOKENS, password=TOKENS_SECRET)
        for token in expired:
            fields = {"hmac": token.hmac, "expiry_time_period": -1}
            answer = actor.ask(EXPIRE_TOKEN, 2, request_body(EXPIRE_TOKEN, 2, **fields))
            assert answer.error_code == 0, "the proxy is its tokens' renewer"
    wait_until(lambda: not tokens_of(brokers, CAROL), what="still known")
    wait_until(lambda: is_let_in(proxy, issuer, CAROL), what="refused", details=proxy.log)
    assert tokens_of(brokers, CAROL)


def test_clients_cannot_create_tokens(proxies: dict[str, ProxyProcess], issuer: Issuer) -> None:
    """As in every session that began with a delegation token."""
    with WireClient(proxies[DELEGATED].addresses()["LONG"]) as client:
        actor = Actor(client, issuer)
        actor.oauth(issuer.mint(CAROL))
        create = request_body(CREATE_TOKEN, 2, renewers=[], max_lifetime=-1)
        actor.send(CREATE_TOKEN, 2, create)
        answer = client.receive()  # kio cannot read it, because its times are -1
        assert isinstance(answer, bytes), proxies[DELEGATED].log()
        assert int.from_bytes(answer[5:7]) == NOT_ALLOWED
        describe = request_body(DESCRIBE_TOKENS, 2, owners=None)
        assert actor.ask(DESCRIBE_TOKENS, 2, describe).error_code == NOT_ALLOWED


# --- killed brokers

TOPICS = {CAROL: f"{RUN}-carol", DAVE: f"{RUN}-dave"}
"""The topic of each user, who may do nothing else; also the user's group."""
SEEN = re.compile(r"Principal = User:(\S+) is Allowed operation = WRITE .* Topic:LITERAL:(\S+)")
SHORT = 12_000
"""Lifetime of sessions at the brokers in ms: they are renewed under traffic."""


def test_no_record_is_lost_or_written_under_another_name_while_brokers_are_killed(
    start_cluster: StartCluster, issuer: Issuer, jwks: Path, tmp_path: Path
) -> None:
    """Three brokers, all of them controllers, are killed in turn under the traffic of two users."""
    listeners = {BUSY: SHORT}
    brokers = start_cluster(
        nodes=3,
        sasl_listeners=listeners,
        jvm_options=("-Dauthorizer.log.level=debug",),
        properties={
            **sasl_properties(listeners, jwks),
            "delegation.token.secret.key": "secret-of-all-brokers",
        },
    )
    add_proxys_users(brokers)
    for topic in TOPICS.values():
        brokers.create_topic(topic, replicas=dict.fromkeys(range(PARTITIONS), (1, 2, 3)))
    for kind in ("topic", "group"):
        create_acls(brokers, [(user, f"+{kind}:{name}:ALL") for user, name in TOPICS.items()])
    config = gateway_config(
        ",".join(str(brokers.address(node, BUSY)) for node in brokers.node_ids),
        jwks,
        listeners={"LONG": 3_600_000},
    )
    config["upstream"] |= by_password(SCRAM, tmp_path)
    config["listeners"][0] |= {
        "upstream.identity": DELEGATED,
        "upstream.identity.mechanism": SCRAM,
        "upstream.identity.allow.prefixes": ["User:"],
        "upstream.identity.super.users": [],
    }
    enough = tmp_path / "enough"
    with ProxyProcess(config, tmp_path) as proxy, ThreadPoolExecutor(len(TOPICS)) as pool:
        bootstrap = str(proxy.addresses()["LONG"])

        def produced() -> float:
            return proxy.metric("requests_total", api="Produce")

        def goes_on() -> None:
            before = produced()
            wait_until(lambda: produced() > before + 100, what="no traffic", details=proxy.log)

        running = [
            pool.submit(
                confluent_traffic,
                User(name=name, mechanism=OAUTHBEARER, issuer=issuer),
                bootstrap,
                topic,
                1,
                pause_seconds=0.01,
                until=enough,
            )
            for name, topic in TOPICS.items()
        ]
        try:
            goes_on()
            for node in brokers.node_ids:
                brokers.kill_node(node)
                goes_on()
                brokers.start_node(node)
                goes_on()
        finally:
            enough.touch()
        assert all(sum(one.result()) for one in running)
        assert "Traceback" not in proxy.log()
    seen = {found for node in brokers.node_ids for found in SEEN.findall(brokers.log(node))}
    assert {(user, topic) for user, topic in seen if topic in TOPICS.values()} == {*TOPICS.items()}
