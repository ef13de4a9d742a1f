"""Client quotas by many filters (KIP-888): in one request, or one by one on an older broker."""

import pytest

from proxy.admin import (
    ANY_NAME,
    DEFAULT,
    AuthorizationFailed,
    ClientQuotaEntity,
    ClientQuotaFilter,
    InvalidRequest,
    UnsupportedVersion,
)
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.wire.apis import DESCRIBE_CLIENT_QUOTAS
from tests.support.fake_broker import Peer, against

VERSIONS = pytest.mark.parametrize("version", [0, 1, 2])
RATE = {"producer_byte_rate": 1024.0}
ALICE = ClientQuotaEntity((("user", "alice"),))
DEFAULT_USER = ClientQuotaEntity((("user", None),))
ALICE_ETL = ClientQuotaEntity((("user", "alice"), ("client-id", "etl")))


def peer_of(version: int) -> Peer:
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
        (ClientQuotaFilter(), {ALICE, DEFAULT_USER, ALICE_ETL}),
        (ClientQuotaFilter(user="alice"), {ALICE, ALICE_ETL}),
        (ClientQuotaFilter(user="alice", strict=True), {ALICE}),
        (ClientQuotaFilter(user=DEFAULT), {DEFAULT_USER}),
        (ClientQuotaFilter(user=ANY_NAME, strict=True), {ALICE, DEFAULT_USER}),
        (ClientQuotaFilter(user=ANY_NAME, client_id="etl"), {ALICE_ETL}),
        (ClientQuotaFilter(ip=ANY_NAME), set()),
    ],
)
async def test_one_filter(
    version: int, wanted: ClientQuotaFilter, entities: set[ClientQuotaEntity]
) -> None:
    async with against(peer_of(version)) as client:
        found = (await client.describe_client_quotas(wanted)).entities()
        assert found == dict.fromkeys(entities, RATE)


@pytest.mark.parametrize(("version", "requests"), [(0, 4), (1, 4), (2, 2)])
async def test_each_filter_has_its_result(version: int, requests: int) -> None:
    """`strict` counts for a whole request: filters of both kinds go in two."""
    alone = ClientQuotaFilter(user="alice", strict=True)
    filters = [
        ClientQuotaFilter(user="alice"),
        alone,
        ClientQuotaFilter(user=DEFAULT),
        ClientQuotaFilter(user="nobody"),
        alone,
    ]
    peer = peer_of(version)
    async with against(peer) as client:
        result = await client.describe_client_quotas(filters)
        assert [*result.all()] == filters[:4]
        assert [{*found} for found in result.all().values()] == [
            {ALICE, ALICE_ETL},
            {ALICE},
            {DEFAULT_USER},
            set(),
        ]
        with pytest.raises(ValueError, match="there are 4"):
            result.entities()
    assert peer.seen(DESCRIBE_CLIENT_QUOTAS) == requests


@VERSIONS
async def test_an_error_does_not_spoil_the_others(version: int) -> None:
    wrong = ClientQuotaFilter(user="alice", ip="192.0.2.1")
    right = ClientQuotaFilter(user=DEFAULT)
    async with against(peer_of(version)) as client:
        result = await client.describe_client_quotas([wrong, right])
        assert result.values()[right].values() == {DEFAULT_USER: RATE}
        with pytest.raises(InvalidRequest):
            result.values()[wrong].values()
        with pytest.raises(InvalidRequest):
            result.all()


@VERSIONS
async def test_what_is_denied(version: int) -> None:
    peer = peer_of(version)
    peer.rights = False
    async with against(peer) as client:
        result = await client.describe_client_quotas()
        with pytest.raises(AuthorizationFailed):
            result.entities()


async def test_a_broker_without_client_quotas() -> None:
    peer = peer_of(1)
    del peer.versions[DESCRIBE_CLIENT_QUOTAS]
    async with against(peer) as client:
        with pytest.raises(UnsupportedVersion):
            await client.describe_client_quotas()
