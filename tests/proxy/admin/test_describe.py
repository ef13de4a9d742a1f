"""Many filters at once (KIP-888): in one request, or one by one where the broker is older."""

import asyncio

import pytest

from proxy.acl.model import AclFilter, Operation, PatternType
from proxy.admin import (
    ANY_NAME,
    DEFAULT,
    AuthorizationFailed,
    BrokerUnavailable,
    ClientQuotaEntity,
    ClientQuotaFilter,
    DescribedAcls,
    InvalidRequest,
    UnsupportedVersion,
)
from proxy.admin.connection import MAX_IN_FLIGHT
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.wire.apis import DESCRIBE_CLIENT_QUOTAS
from proxy.wire.error_codes import ErrorCode
from tests.support.acls import MemoryAclStore, acl
from tests.support.fake_broker import Peer, against
from tests.support.processes import turns, until

DESCRIBE = 29
NEW, OLD = (0, 4), (0, 3)
ALICE, BOB = AclFilter(principal="User:alice"), AclFilter(principal="User:bob")
NOBODY = AclFilter(principal="User:nobody")
UNKNOWN = AclFilter(operation=Operation.UNKNOWN)
ALICES, BOBS = acl("a"), acl("b", "User:bob")


def peer_of(versions: tuple[int, int], **fields: object) -> Peer:
    peer = Peer(acl_store=MemoryAclStore(ALICES, BOBS), **fields)  # type: ignore[arg-type]
    peer.versions[DESCRIBE] = versions
    return peer


@pytest.mark.parametrize(("versions", "requests"), [(NEW, 1), (OLD, 3), ((0, 0), 3)])
async def test_each_filter_has_its_result(versions: tuple[int, int], requests: int) -> None:
    """Whatever the broker can do; a filter that is given twice is asked once."""
    peer = peer_of(versions)
    async with against(peer) as client:
        result = await client.describe_acls([BOB, NOBODY, ALICE, BOB])
        assert result.all() == {BOB: (BOBS,), NOBODY: (), ALICE: (ALICES,)}
        assert [*result.all()] == [BOB, NOBODY, ALICE]
        assert result.all_values()[BOB] == DescribedAcls(acls=(BOBS,))
        with pytest.raises(ValueError, match="there are 3"):
            result.values()
    assert peer.seen(DESCRIBE) == requests
    assert {version for key, version in peer.requests if key == DESCRIBE} == {versions[1]}
    assert peer.connections == 1


@pytest.mark.parametrize("versions", [NEW, OLD])
async def test_one_filter_alone(versions: tuple[int, int]) -> None:
    async with against(peer_of(versions)) as client:
        assert (await client.describe_acls(BOB)).values() == (BOBS,)
        assert (await client.describe_acls([BOB])).values() == (BOBS,)
        assert (await client.describe_acls()).values() == (ALICES, BOBS)
        assert (await client.describe_acls()).all() == {AclFilter(): (ALICES, BOBS)}


async def test_no_filters_need_no_request() -> None:
    peer = peer_of(NEW)
    async with against(peer) as client:
        assert (await client.describe_acls([])).all() == {}
    assert peer.requests == []


@pytest.mark.parametrize("versions", [NEW, OLD])
async def test_an_error_does_not_spoil_the_others(versions: tuple[int, int]) -> None:
    async with against(peer_of(versions)) as client:
        result = await client.describe_acls([ALICE, UNKNOWN, BOB])
        assert result.all_values()[ALICE].values() == (ALICES,)
        assert result.all_values()[BOB].values() == (BOBS,)
        with pytest.raises(InvalidRequest):
            result.all_values()[UNKNOWN].values()
        with pytest.raises(InvalidRequest):
            result.all()


async def test_an_error_that_the_broker_tells_of_one_filter() -> None:
    body = bytes(4) + b"\x03" + b"\x00\x2a\x03no\x01\x00" + b"\x00\x00\x01\x01\x00" + b"\x00"
    async with against(peer_of(NEW, handlers={DESCRIBE: lambda _version, _body: body})) as client:
        result = await client.describe_acls([ALICE, BOB])
        error = result.all_values()[ALICE].error
        assert isinstance(error, InvalidRequest)
        assert error.message == "no"
        assert result.all_values()[BOB].values() == ()


async def test_what_an_old_broker_cannot_be_asked_is_an_error_of_that_filter() -> None:
    """Version 0 has no pattern types."""
    prefixed = AclFilter(pattern_type=PatternType.PREFIXED, name="a")
    async with against(peer_of((0, 0))) as client:
        result = await client.describe_acls([prefixed, BOB])
        assert [*result.all_values()] == [prefixed, BOB]
        assert isinstance(result.all_values()[prefixed].error, UnsupportedVersion)
        assert result.all_values()[BOB].values() == (BOBS,)


@pytest.mark.parametrize("versions", [NEW, OLD])
async def test_what_is_denied_is_denied_for_each(versions: tuple[int, int]) -> None:
    async with against(peer_of(versions, rights=False)) as client:
        result = await client.describe_acls([ALICE, BOB])
        assert [type(one.error) for one in result.all_values().values()] == [
            AuthorizationFailed
        ] * 2
        assert {one.error and one.error.code for one in result.all_values().values()} == {
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        }


async def test_so_many_are_on_their_way_and_no_more() -> None:
    """A broker that answers nothing is sent a bounded number of requests."""
    peer = peer_of(OLD)
    peer.silent.add(DESCRIBE)
    async with against(peer) as client:
        filters = [AclFilter(principal=f"User:{number}") for number in range(100)]
        asking = asyncio.create_task(client.describe_acls(filters))
        await until(lambda: peer.seen(DESCRIBE) >= MAX_IN_FLIGHT)
        await turns()
        assert not asking.done()
        asking.cancel()
    assert peer.seen(DESCRIBE) == MAX_IN_FLIGHT


async def test_one_by_one_for_many() -> None:
    """More than are on their way at once, and more than one turn of the client."""
    filters = [AclFilter(name=str(number)) for number in range(1_100)]
    peer = peer_of(OLD)
    async with against(peer) as client:
        found = (await client.describe_acls([*filters, ALICE])).all()
        assert [*found] == [*filters, ALICE]
        assert found[ALICE] == (ALICES,)
    assert peer.seen(DESCRIBE) == 1_101


@pytest.mark.parametrize(
    "body",
    [
        bytes(4) + b"\x01\x00",
        bytes(4) + b"\x02" + bytes(2) + b"\x01\x01\x00\x00",
        bytes(4) + b"\x02",
        b"",
    ],
    ids=["no results", "one result", "truncated", "empty"],
)
async def test_a_broker_that_answers_something_else(body: bytes) -> None:
    """Two results are due: whose one would be, cannot be known."""
    async with against(peer_of(NEW, handlers={DESCRIBE: lambda _version, _body: body})) as client:
        with pytest.raises(BrokerUnavailable):
            await client.describe_acls([ALICE, BOB])


async def test_answers_in_the_wrong_order() -> None:
    peer = peer_of(OLD)
    async with against(peer) as client:
        await client.describe_acls()
        peer.correlation_shift = 1
        with pytest.raises(BrokerUnavailable, match="a response to another request"):
            await client.describe_acls([ALICE, BOB])
        peer.correlation_shift = 0
        assert (await client.describe_acls(BOB)).values() == (BOBS,)
    assert peer.connections == 2


# --- client quotas by many filters

VERSIONS = pytest.mark.parametrize("version", [0, 1, 2])
RATE = {"producer_byte_rate": 1024.0}
OF_ALICE = ClientQuotaEntity((("user", "alice"),))
DEFAULT_USER = ClientQuotaEntity((("user", None),))
ALICE_ETL = ClientQuotaEntity((("user", "alice"), ("client-id", "etl")))


def peer_with_quotas(version: int) -> Peer:
    peer = Peer()
    peer.versions[DESCRIBE_CLIENT_QUOTAS] = (0, version)
    peer.quotas.quotas = {
        entity: {QuotaKey.PRODUCER_BYTE_RATE: 1024.0}
        for entity in (
            QuotaEntity(user="alice"),
            QuotaEntity(user=DEFAULT),
            QuotaEntity(user="alice", client_id="etl"),
        )
    }
    return peer


@VERSIONS
@pytest.mark.parametrize(
    ("wanted", "entities"),
    [
        (ClientQuotaFilter(), {OF_ALICE, DEFAULT_USER, ALICE_ETL}),
        (ClientQuotaFilter(user="alice"), {OF_ALICE, ALICE_ETL}),
        (ClientQuotaFilter(user="alice", strict=True), {OF_ALICE}),
        (ClientQuotaFilter(user=DEFAULT), {DEFAULT_USER}),
        (ClientQuotaFilter(user=ANY_NAME, strict=True), {OF_ALICE, DEFAULT_USER}),
        (ClientQuotaFilter(user=ANY_NAME, client_id="etl"), {ALICE_ETL}),
        (ClientQuotaFilter(ip=ANY_NAME), set()),
    ],
)
async def test_one_filter(
    version: int, wanted: ClientQuotaFilter, entities: set[ClientQuotaEntity]
) -> None:
    async with against(peer_with_quotas(version)) as client:
        found = (await client.describe_client_quotas(wanted)).entities()
        assert found == dict.fromkeys(entities, RATE)


@pytest.mark.parametrize(("version", "requests"), [(0, 4), (1, 4), (2, 2)])
async def test_each_filter_of_quotas_has_its_result(version: int, requests: int) -> None:
    """`strict` counts for a whole request: filters of both kinds go in two."""
    alone = ClientQuotaFilter(user="alice", strict=True)
    filters = [
        ClientQuotaFilter(user="alice"),
        alone,
        ClientQuotaFilter(user=DEFAULT),
        ClientQuotaFilter(user="nobody"),
        alone,
    ]
    peer = peer_with_quotas(version)
    async with against(peer) as client:
        result = await client.describe_client_quotas(filters)
        assert [*result.all()] == filters[:4]
        assert [{*found} for found in result.all().values()] == [
            {OF_ALICE, ALICE_ETL},
            {OF_ALICE},
            {DEFAULT_USER},
            set(),
        ]
        with pytest.raises(ValueError, match="there are 4"):
            result.entities()
    assert peer.seen(DESCRIBE_CLIENT_QUOTAS) == requests


@VERSIONS
async def test_an_error_does_not_spoil_other_quotas(version: int) -> None:
    wrong = ClientQuotaFilter(user="alice", ip="192.0.2.1")
    right = ClientQuotaFilter(user=DEFAULT)
    async with against(peer_with_quotas(version)) as client:
        result = await client.describe_client_quotas([wrong, right])
        assert result.values()[right].values() == {DEFAULT_USER: RATE}
        with pytest.raises(InvalidRequest):
            result.values()[wrong].values()
        with pytest.raises(InvalidRequest):
            result.all()


@VERSIONS
async def test_what_is_denied(version: int) -> None:
    peer = peer_with_quotas(version)
    peer.rights = False
    async with against(peer) as client:
        result = await client.describe_client_quotas()
        with pytest.raises(AuthorizationFailed):
            result.entities()


async def test_a_broker_without_client_quotas() -> None:
    peer = peer_with_quotas(1)
    del peer.versions[DESCRIBE_CLIENT_QUOTAS]
    async with against(peer) as client:
        with pytest.raises(UnsupportedVersion):
            await client.describe_client_quotas()
