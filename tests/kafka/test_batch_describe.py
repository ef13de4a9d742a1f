"""KIP-888 on real programs: through the proxy, which has it, and on Kafka, which has not."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka as python
import kafka.admin as python_admin
import pytest

from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.admin import (
    AdminClient,
    ClientQuotaEntity,
    ClientQuotaFilter,
    InvalidRequest,
    Scram,
)
from proxy.admin.client import authenticate
from proxy.admin.connection import AdminConnection
from proxy.net.dialler import Dialler
from tests.support.kafka import go
from tests.support.kafka.clients import add_users, confluent_admin, password_of, user
from tests.support.kafka.cluster import KafkaCluster, StartCluster
from tests.support.kafka.wire_client import Address, api_versions_fields, ask
from tests.support.kio_messages import decode
from tests.support.kio_messages.batch_describe import DescribeAclsResponse
from tests.support.proxy_process import SUPER_USER, ProxyProcess, enforcing_acls, gateway_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SCRAM = "SCRAM-SHA-256"
DESCRIBE_ACLS, API_VERSIONS, CLIENT_QUOTAS = 29, 18, 48
ADMIN = Scram(username=SUPER_USER, password=password_of(SUPER_USER))
DEADLINE = 120.0
ERIN = "User:erin"


def rule(name: str, principal: str = ERIN) -> Acl:
    return Acl(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        name,
        principal,
        "*",
        Operation.READ,
        Permission.ALLOW,
    )


@pytest.fixture(scope="module")
def proxy(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    config = gateway_config(str(kafka.address()), jwks, listeners={"LONG": 3_600_000})
    process = ProxyProcess(enforcing_acls(config), tmp_path_factory.mktemp("batch"))
    add_users(process)
    with process:
        yield process


@pytest.fixture(scope="module")
def address(proxy: ProxyProcess) -> Address:
    return proxy.addresses()["LONG"]


@pytest.fixture(scope="module")
def topic(address: Address) -> str:
    """Erin may read it, as all the clients below shall find out."""
    name = f"batch-{uuid.uuid4()}"

    async def create() -> None:
        async with asyncio.timeout(2 * DEADLINE), AdminClient(str(address), login=ADMIN) as client:
            (await client.create_acls([rule(name), rule("other", "User:other")])).all()

    asyncio.run(create())
    return name


def test_many_filters_in_one_request(address: Address, topic: str) -> None:
    offered = ask(address, API_VERSIONS, 3, api_versions_fields())
    [versions] = [one for one in offered.api_keys if one.api_key == DESCRIBE_ACLS]
    assert (versions.min_version, versions.max_version) == (0, 4)
    nobody = AclFilter(principal="User:nobody")
    filters = [AclFilter(principal=ERIN), nobody, AclFilter(name="other")]

    async def work() -> None:
        async with asyncio.timeout(2 * DEADLINE), AdminClient(str(address), login=ADMIN) as client:
            found = await client.describe_acls(filters)
        assert [*found.all().values()] == [(rule(topic),), (), (rule("other", "User:other"),)]

    asyncio.run(work())


def test_quotas_of_many_users_in_one_request(address: Address, proxy: ProxyProcess) -> None:
    proxy.command("quotas", "set", "--user", "erin", "producer_byte_rate=1024")
    offered = ask(address, API_VERSIONS, 3, api_versions_fields())
    [versions] = [one for one in offered.api_keys if one.api_key == CLIENT_QUOTAS]
    assert (versions.min_version, versions.max_version) == (0, 2)

    async def work() -> None:
        async with asyncio.timeout(2 * DEADLINE), AdminClient(str(address), login=ADMIN) as client:
            await _quotas_are_described(client)

    asyncio.run(work())


async def _quotas_are_described(client: AdminClient) -> None:
    """Of erin, who has one; of nobody; and by a filter that no broker applies."""
    erin, nobody = ClientQuotaFilter(user="erin"), ClientQuotaFilter(user="nobody", strict=True)
    wrong = ClientQuotaFilter(user="erin", ip="192.0.2.1")
    found = (await client.describe_client_quotas([erin, wrong, nobody])).values()
    entity = ClientQuotaEntity((("user", "erin"),))
    assert found[erin].values() == {entity: {"producer_byte_rate": 1024.0}}
    assert found[nobody].values() == {}
    assert isinstance(found[wrong].error, InvalidRequest)


def test_what_cannot_be_read_harms_no_other_request(address: Address, topic: str) -> None:
    """Null filters, and a list that ends too early, on a connection that goes on."""

    async def work() -> None:
        async with asyncio.timeout(2 * DEADLINE):
            connection = await AdminConnection.open(
                address.host,
                address.port,
                tls=None,
                client_id="harness",
                timeout_s=DEADLINE,
                dialler=Dialler(),
            )
            await authenticate(connection, ADMIN, await connection.api_versions())
            for body in (b"\x00\x00", b"\x03\x01\x00\x01", b""):
                answer = await connection.exchange(DESCRIBE_ACLS, 4, body)
                [result] = decode(DescribeAclsResponse, answer).filter_results
                assert result.error_code.name == "invalid_request"
            one = b"\x02\x01\x00\x01\x0aUser:erin\x00\x01\x01\x00\x00"
            answer = await connection.exchange(DESCRIBE_ACLS, 4, one)
            [result] = decode(DescribeAclsResponse, answer).filter_results
            assert [each.resource_name for each in result.resources] == [topic]
            await connection.close()

    asyncio.run(work())


# --- clients that know nothing of it


def test_librdkafka_is_unaffected(address: Address, topic: str, issuer: Issuer) -> None:
    settings = user(issuer, SCRAM, SUPER_USER).confluent(str(address))
    wanted = confluent_admin.AclBindingFilter(
        confluent_admin.ResourceType.ANY,
        None,
        confluent_admin.ResourcePatternType.ANY,
        ERIN,
        None,
        confluent_admin.AclOperation.ANY,
        confluent_admin.AclPermissionType.ANY,
    )
    client = confluent_admin.AdminClient(settings)
    found = client.describe_acls(wanted).result(DEADLINE)
    assert [(one.name, one.principal) for one in found] == [(topic, ERIN)]


def test_kafka_python_is_unaffected(address: Address, topic: str, issuer: Issuer) -> None:
    client = python.KafkaAdminClient(**user(issuer, SCRAM, SUPER_USER).python(str(address)))
    wanted = python_admin.ACLFilter(
        principal=ERIN,
        host=None,
        operation=python_admin.ACLOperation.ANY,
        permission_type=python_admin.ACLPermissionType.ANY,
        resource_pattern=python_admin.ResourcePatternFilter(
            python_admin.ResourceType.ANY, None, python_admin.ACLResourcePatternType.ANY
        ),
    )
    found: Any = client.describe_acls(wanted)[0]
    client.close()
    assert [(one.resource_pattern.resource_name, one.principal) for one in found] == [(topic, ERIN)]


def test_java_is_unaffected(address: Address, topic: str, issuer: Issuer, tmp_path: Path) -> None:
    client = user(issuer, SCRAM, SUPER_USER).java(tmp_path)
    listed = client.run_tool("kafka-acls", str(address), "--list", "--principal", ERIN)
    assert listed.exit_status == 0, listed
    assert f"resourceType=TOPIC, name={topic}, patternType=LITERAL" in listed.stdout, listed
    assert f"principal={ERIN}, host=*, operation=READ, permissionType=ALLOW" in listed.stdout


def test_franz_go_is_unaffected(address: Address, topic: str) -> None:
    login = (SUPER_USER, password_of(SUPER_USER))
    printed = go.run("describe_acls", [str(address), *login, ERIN])
    assert printed.split() == ["TOPIC", topic, "LITERAL", ERIN, "*", "READ", "ALLOW"]


# --- a broker that knows nothing of it


def test_on_kafka_each_filter_is_asked_alone(start_cluster: StartCluster) -> None:
    """More filters than are on their way at once; one that is wrong spoils no other."""
    cluster = start_cluster(
        nodes=1,
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{SUPER_USER}",
        },
        sasl_listeners={"LONG": 3_600_000},
    )
    cluster.add_scram_user(SUPER_USER, password_of(SUPER_USER))
    acls = [rule(f"t{number}", f"User:{number}") for number in range(100)]
    wrong = AclFilter(operation=Operation.UNKNOWN)
    filters = [AclFilter(principal=one.principal) for one in acls]
    servers = str(cluster.address(listener="LONG"))

    async def work() -> None:
        async with asyncio.timeout(2 * DEADLINE), AdminClient(servers, login=ADMIN) as client:
            (await client.create_acls(acls)).all()
            while len((await client.describe_acls()).values()) < len(acls):  # noqa: ASYNC110 - no such event
                await asyncio.sleep(0.1)  # the broker learns of them from the controller
            result = await client.describe_acls([*filters, wrong])
        found = result.all_values()
        assert isinstance(found[wrong].error, InvalidRequest)
        assert [found[one].values() for one in filters] == [(one,) for one in acls]

    asyncio.run(work())
    quota = {"key": "producer_byte_rate", "value": 1024.0, "remove": False}
    entry = {"entity": [{"entity_type": "user", "entity_name": "erin"}], "ops": [quota]}
    altered = cluster.ask(49, 1, entries=[entry], validate_only=False)
    assert [one.error_code for one in altered.entries] == [0]

    async def describe_quotas() -> None:
        async with asyncio.timeout(2 * DEADLINE), AdminClient(servers, login=ADMIN) as client:
            everything = ClientQuotaFilter()
            while not (await client.describe_client_quotas(everything)).entities():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await _quotas_are_described(client)

    asyncio.run(describe_quotas())
