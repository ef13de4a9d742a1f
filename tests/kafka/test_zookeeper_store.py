"""Users, quotas and ACLs in ZooKeeper, shared by a broker of Kafka 3.9 and the proxy.

Stock tools make the changes: those of 3.9 through the broker, those of 2.8 in ZooKeeper.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.acl.model import Acl, AclFilter, PatternType
from proxy.admin import AdminClient, AuthenticationFailed, KafkaError, Scram
from proxy.quota.model import DEFAULT, QuotaEntity
from tests.support.acls import acl
from tests.support.kafka.cluster import wait_until
from tests.support.kafka.wire_client import Address
from tests.support.kafka.zookeeper import SCRAM, Ensemble, ZookeeperKafka
from tests.support.proxy_process import SUPER_USER, ProxyFailed, ProxyProcess, sidecar_config

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

MECHANISM = "SCRAM-SHA-256"
PASSWORD = "s3cret,=x"
KIP_55: dict[tuple[tuple[str, str | None], ...], tuple[float, float]] = {
    (("user", None),): (10_000.0, 20_000.0),
    (("user", "user1"),): (1_024.0, 2_048.0),
    (("user", "user2"),): (4_096.0, 8_192.0),
    (("user", "user2"), ("client-id", "clientA")): (10.0, 30.0),
    (("user", "user2"), ("client-id", "clientB")): (20.0, 40.0),
    (("client-id", "clientA"),): (100.0, 200.0),
}
"""The sample configuration of KIP-55: producer and consumer byte rate."""


@pytest.fixture(scope="module")
def ensemble() -> Iterator[Ensemble]:
    with Ensemble() as one:
        with one.client():
            pass  # creates the chroot
        yield one


@pytest.fixture(scope="module")
def broker(ensemble: Ensemble) -> Iterator[ZookeeperKafka]:
    with ZookeeperKafka(ensemble) as one:
        yield one


def config(url: str, upstream: Address, jwks: Path, **store: Any) -> dict[str, Any]:
    settings = sidecar_config(str(upstream), jwks, listeners={"LONG": 3_600_000})
    settings["store"] = {"url": url, "refresh.ms": 500, **store}
    settings["authorizer"]["mode"] = "enforce"
    settings["quotas"] = {"mode": "enforce"}
    return settings


@pytest.fixture(scope="module")
def proxy(
    ensemble: Ensemble,
    broker: ZookeeperKafka,
    jwks: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProxyProcess]:
    settings = config(ensemble.url, broker.address(), jwks) | {"workers": 2}
    process = ProxyProcess(settings, tmp_path_factory.mktemp("zookeeper"))
    process.add_user(SUPER_USER, PASSWORD, MECHANISM)
    with process:
        yield process
    assert "Traceback" not in process.log()
    assert PASSWORD not in process.log()


def of_proxy(proxy: ProxyProcess) -> Address:
    return proxy.addresses()["LONG"]


async def at(address: Address, ask: Callable[[AdminClient], Any], login: Scram | None) -> Any:
    async with AdminClient(str(address), login=login) as admin:
        return await ask(admin)


def asked(address: Address, ask: Callable[[AdminClient], Any], login: Scram | None = None) -> Any:
    return asyncio.run(at(address, ask, login))


ADMIN = Scram(username=SUPER_USER, password=PASSWORD)


def acls_at(address: Address, login: Scram | None = None) -> set[Acl]:
    return {*asked(address, lambda admin: admin.describe_acls(), login).values()}


def quotas_at(address: Address, login: Scram | None = None) -> dict[Any, dict[str, float]]:
    found = asked(address, lambda admin: admin.describe_client_quotas(), login).entities()
    return {entity.entries: dict(values) for entity, values in found.items()}


def may_log_in(address: Address, name: str, password: str) -> bool:
    """Whether the user can log in with SCRAM, whatever its rights."""
    try:
        acls_at(address, Scram(username=name, password=password))
    except AuthenticationFailed:
        return False
    except KafkaError:
        return True
    return True


def applies(condition: Callable[[], bool], proxy: ProxyProcess, what: str) -> None:
    wait_until(condition, what=what, details=proxy.log)


@pytest.fixture
def name() -> str:
    """A new name for each test, in ASCII because Kafka's SCRAM requires it."""
    return f"n {uuid.uuid4()}*,="


def test_users_of_the_broker_log_in(broker: ZookeeperKafka, proxy: ProxyProcess, name: str) -> None:
    add = f"SCRAM-SHA-256=[iterations=4096,password={name}],SCRAM-SHA-512=[password=other]"
    broker.configs("--add-config", add, "--entity-type", "users", "--entity-name", name)
    applies(lambda: may_log_in(of_proxy(proxy), name, name), proxy, "the user is unknown")
    assert not may_log_in(of_proxy(proxy), name, "wrong")
    assert {(name, "SCRAM-SHA-256"), (name, "SCRAM-SHA-512")} <= proxy.users()
    delete = ("--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512")
    broker.configs(*delete, "--entity-type", "users", "--entity-name", name)
    applies(lambda: not may_log_in(of_proxy(proxy), name, name), proxy, "the user is known yet")


def test_users_of_the_proxy_log_in_at_the_broker(
    broker: ZookeeperKafka, proxy: ProxyProcess, name: str
) -> None:
    proxy.add_user(name, PASSWORD, MECHANISM)
    applies(lambda: may_log_in(broker.address(SCRAM), name, PASSWORD), proxy, "unknown there")
    assert may_log_in(of_proxy(proxy), name, PASSWORD)
    proxy.command("users", "remove", name)
    applies(lambda: not may_log_in(broker.address(SCRAM), name, PASSWORD), proxy, "known yet")


def test_acls_of_the_broker_apply(broker: ZookeeperKafka, proxy: ProxyProcess) -> None:
    name = f"t-{uuid.uuid4()}"
    rule = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", name)
    prefixed = ("--resource-pattern-type", "prefixed")
    wanted = {acl(name), acl(name, pattern_type=PatternType.PREFIXED)}
    for is_old in (False, True):
        tool = broker.old_acls if is_old else broker.acls
        tool("--add", *rule)
        broker.acls("--add", *rule, *prefixed)
        applies(lambda: wanted <= acls_at(of_proxy(proxy), ADMIN), proxy, "an ACL is unknown")
        tool("--remove", "--force", *rule)
        broker.acls("--remove", "--force", *rule, *prefixed)
        applies(lambda: not wanted & acls_at(of_proxy(proxy), ADMIN), proxy, "an ACL is known yet")


def test_acls_of_the_proxy_apply_at_the_broker(broker: ZookeeperKafka, proxy: ProxyProcess) -> None:
    name = f"t-{uuid.uuid4()}"
    wanted = {acl(name), acl(name, pattern_type=PatternType.PREFIXED)}
    created = asked(of_proxy(proxy), lambda admin: admin.create_acls(wanted), ADMIN)
    assert set(created.values().values()) == {None}
    assert wanted <= acls_at(of_proxy(proxy), ADMIN), "at once, for who made them"
    applies(lambda: wanted <= acls_at(broker.address()), proxy, "unknown to the broker")
    found = AclFilter(name=name)
    deleted = asked(of_proxy(proxy), lambda admin: admin.delete_acls([found]), ADMIN)
    assert {*deleted.all()} == wanted
    assert not wanted & acls_at(of_proxy(proxy), ADMIN)
    applies(lambda: not wanted & acls_at(broker.address()), proxy, "known to the broker yet")
    rule = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", name)
    proxy.command("acls", "add", *rule)
    applies(lambda: acl(name) in acls_at(broker.address()), proxy, "unknown to the broker")
    proxy.command("acls", "remove", *rule, "--force")


QUOTAS: list[tuple[tuple[tuple[str, str | None], ...], str, float]] = [
    ((("user", "us er*"),), "producer_byte_rate", 1_024.0),
    ((("user", "us er*"), ("client-id", "c/d")), "request_percentage", 12.5),
    ((("user", "us er*"), ("client-id", None)), "consumer_byte_rate", 7.0),
    ((("user", None), ("client-id", "c/d")), "consumer_byte_rate", 8.0),
    ((("user", None), ("client-id", None)), "controller_mutation_rate", 0.5),
    ((("client-id", "c/d"),), "producer_byte_rate", 9.0),
    ((("client-id", None),), "producer_byte_rate", 10.0),
    ((("user", "<default>"),), "producer_byte_rate", 11.0),
    ((("ip", "10.0.0.1"),), "connection_creation_rate", 12.0),
    ((("ip", None),), "connection_creation_rate", 13.0),
]
"""All kinds of entities, and a user called `<default>`."""


def entity_of(parts: tuple[tuple[str, str | None], ...]) -> QuotaEntity:
    names: dict[str, Any] = {
        kind.replace("-", "_"): DEFAULT if name is None else name for kind, name in parts
    }
    return QuotaEntity(**names)


def test_quotas_apply_on_both_sides(broker: ZookeeperKafka, proxy: ProxyProcess) -> None:
    """Quotas set on one side apply on the other, in both directions."""
    wanted = {parts: {key: limit} for parts, key, limit in QUOTAS}
    changes = {entity_of(parts): values for parts, values in wanted.items()}
    removal = {entity_of(parts): {key: None} for parts, key, _ in QUOTAS}
    here, there = (of_proxy(proxy), ADMIN), (broker.address(), None)
    for (makes, login), (sees, other_login) in ((here, there), (there, here)):
        asked(makes, lambda admin: admin.alter_client_quotas(changes), login).all()
        applies(
            lambda s=sees, o=other_login: wanted.items() <= quotas_at(s, o).items(),  # type: ignore[misc]
            proxy,
            f"not all of {wanted}",
        )
        asked(makes, lambda admin: admin.alter_client_quotas(removal), login).all()
        applies(
            lambda s=sees, o=other_login: not wanted.keys() & quotas_at(s, o).keys(),  # type: ignore[misc]
            proxy,
            "some are there yet",
        )


def test_quotas_of_the_old_tool_apply(broker: ZookeeperKafka, proxy: ProxyProcess) -> None:
    """It writes KIP-55's sample to ZooKeeper itself."""
    wanted = {
        parts: {"producer_byte_rate": producer, "consumer_byte_rate": consumer}
        for parts, (producer, consumer) in KIP_55.items()
    }
    for parts, values in wanted.items():
        options = ["--add-config", ",".join(f"{key}={rate:.0f}" for key, rate in values.items())]
        for kind, name in reversed(parts):
            options += ["--entity-type", {"user": "users", "client-id": "clients"}[kind]]
            options += ["--entity-default"] if name is None else ["--entity-name", name]
        broker.old_configs(*options)
    applies(lambda: wanted.items() <= quotas_at(of_proxy(proxy), ADMIN).items(), proxy, "not all")
    removal = {entity_of(parts): dict.fromkeys(values) for parts, values in wanted.items()}
    asked(broker.address(), lambda admin: admin.alter_client_quotas(removal)).all()


def test_a_chroot_that_is_missing_lets_nobody_in(
    ensemble: Ensemble, broker: ZookeeperKafka, jwks: Path, tmp_path: Path
) -> None:
    settings = config(f"{ensemble.url}/missing", broker.address(), jwks)
    process = ProxyProcess(settings, tmp_path)
    try:
        process.start_unready()
        applies(
            lambda: any("zookeeper.connect, with its chroot" in one for one in process.reasons()),
            process,
            "no reason",
        )
        with pytest.raises(ProxyFailed, match="with its chroot"):
            process.users()
    finally:
        process.stop()
