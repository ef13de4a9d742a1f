"""The client against a broker that speaks the bytes that kio writes."""

import asyncio
import socket
from contextlib import closing

import pytest

from proxy.acl.model import AclFilter, PatternType
from proxy.admin import (
    AdminClient,
    AuthorizationFailed,
    BrokerUnavailable,
    InvalidRequest,
    UnsupportedVersion,
)
from proxy.admin.client import parse_servers
from proxy.errors import ConfigError
from proxy.wire.error_codes import ErrorCode
from tests.support.acls import MemoryAclStore, acl
from tests.support.fake_broker import CREATE, DELETE, DESCRIBE, Peer, against
from tests.support.processes import PATIENCE_SECONDS, turns


@pytest.mark.parametrize("version", range(4))
async def test_acls_go_there_and_back(version: int) -> None:
    """In the highest version that both sides know, v0 included."""
    peer = Peer()
    peer.versions |= dict.fromkeys((DESCRIBE, CREATE, DELETE), (0, version))
    both = [acl("a"), acl("b", "User:bob", host="10.0.0.0/8")]
    async with against(peer) as client:
        (await client.create_acls(both)).all()
        assert (await client.describe_acls()).values() == tuple(both)
        assert (await client.describe_acls(AclFilter(principal="User:bob"))).values() == (both[1],)
        result = await client.delete_acls([AclFilter(name="a"), AclFilter(name="none")])
        assert result.all() == (both[0],)
        assert [one.values() for one in result.values().values()] == [(both[0],), ()]
    assert peer.acl_store.acls == {both[1]}
    assert {(DESCRIBE, version), (CREATE, version), (DELETE, version)} <= {*peer.requests}
    assert peer.connections == 1


async def test_each_item_has_its_own_result() -> None:
    good, bad = acl("a"), acl("")
    peer = Peer()
    async with against(peer) as client:
        result = await client.create_acls([good, bad])
        assert result.values()[good] is None
        error = result.values()[bad]
        assert isinstance(error, InvalidRequest)
        assert error.code == ErrorCode.INVALID_REQUEST
        assert error.message == "Invalid empty resource name"
        with pytest.raises(InvalidRequest, match="Invalid empty resource name"):
            result.all()
    assert peer.acl_store.acls == {good}


async def test_what_is_denied() -> None:
    async with against(Peer(rights=False)) as client:
        described = await client.describe_acls()
        with pytest.raises(AuthorizationFailed, match="CLUSTER_AUTHORIZATION_FAILED"):
            described.values()
        created = await client.create_acls([acl()])
        with pytest.raises(AuthorizationFailed):
            created.all()
        deleted = await client.delete_acls([AclFilter()])
        with pytest.raises(AuthorizationFailed):
            deleted.all()


async def test_many_go_in_several_requests() -> None:
    """Kafka refuses more than 10,000 at once."""
    many = [acl(str(number)) for number in range(2_500)]
    peer = Peer()
    async with against(peer) as client:
        result = await client.create_acls(many)
        result.all()
        assert [*result.values()] == many
    assert peer.seen(CREATE) == 3
    assert peer.acl_store.acls == {*many}


async def test_version_0_has_no_prefixed_patterns() -> None:
    """As Java's client: better an error than another ACL than was meant."""
    peer = Peer()
    peer.versions |= dict.fromkeys((DESCRIBE, CREATE, DELETE), (0, 0))
    prefixed = acl(pattern_type=PatternType.PREFIXED)
    async with against(peer) as client:
        with pytest.raises(UnsupportedVersion):
            await client.create_acls([prefixed])
        described = await client.describe_acls(AclFilter(pattern_type=PatternType.MATCH, name="t"))
        with pytest.raises(UnsupportedVersion):
            described.values()
    assert peer.acl_store.acls == set()


async def test_an_older_broker_is_asked_as_it_says() -> None:
    peer = Peer()
    peer.versions[18] = (0, 2)
    async with against(peer) as client:
        assert (await client.describe_acls()).values() == ()
    assert [version for key, version in peer.requests if key == 18] == [5, 2]


async def test_a_broker_without_acls() -> None:
    peer = Peer()
    del peer.versions[DESCRIBE]
    async with against(peer) as client:
        with pytest.raises(UnsupportedVersion):
            await client.describe_acls()


# ---------------------------------------------------------------------- brokers that fail


async def test_a_broken_connection_is_replaced() -> None:
    peer = Peer()
    async with against(peer) as client:
        await client.describe_acls()
        peer.drop_connections()
        await turns()
        await client.describe_acls()
    assert peer.connections == 2


async def test_the_next_server_is_tried() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), Peer() as peer:
        servers = ["127.0.0.1:1", peer.address]
        async with AdminClient(servers, request_timeout_s=PATIENCE_SECONDS) as client:
            assert (await client.describe_acls()).values() == ()


async def test_a_server_that_was_silent_is_not_waited_for_again() -> None:
    """While there is one that answered last."""
    async with asyncio.timeout(PATIENCE_SECONDS), Peer() as peer:
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            silent.settimeout(0)
            servers = [f"127.0.0.1:{silent.getsockname()[1]}", peer.address]
            client = AdminClient(servers, request_timeout_s=3)
            for _ in range(3):
                assert (await client.describe_acls()).values() == ()
                await client.close()
            silent.accept()[0].close()
            with pytest.raises(BlockingIOError):
                silent.accept()


async def test_no_server_at_all() -> None:
    async with AdminClient("127.0.0.1:1,127.0.0.1:2") as client:
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: "):
            await client.describe_acls()


async def test_silence_ends() -> None:
    """And a late answer is not taken for that to the next request: the connection is given up."""

    peer = Peer(silent={DESCRIBE})
    async with against(peer, timeout_s=3) as client:
        with pytest.raises(BrokerUnavailable, match=r"no answer within 3 s"):
            await client.describe_acls()
        peer.silent.clear()
        assert (await client.describe_acls()).values() == ()
    assert peer.connections == 2


async def test_answers_that_cannot_be() -> None:
    billions = bytes(4) + bytes(2) + b"\x00" + b"\xff\xff\xff\xff\x07"
    for peer in (
        Peer(handlers={DESCRIBE: lambda _version, _body: None}),
        Peer(handlers={DESCRIBE: lambda _version, _body: b""}),
        Peer(handlers={DESCRIBE: lambda _version, _body: billions}),
        Peer(handlers={18: lambda _version, _body: b"\x00"}),
        Peer(correlation_shift=1),
    ):
        async with against(peer) as client:
            with pytest.raises(BrokerUnavailable):
                await client.describe_acls()


async def test_fewer_results_than_items() -> None:
    """It would be unknown which ACL is missing."""
    async with against(
        Peer(handlers={CREATE: lambda _version, _body: bytes(4) + b"\x01\x00"}),
    ) as client:
        with pytest.raises(BrokerUnavailable, match="the response has 0 results for 1 items"):
            await client.create_acls([acl()])


async def test_several_tasks_share_a_client() -> None:
    peer = Peer(acl_store=MemoryAclStore(acl()))
    async with against(peer) as client:
        found = await asyncio.gather(*(client.describe_acls() for _ in range(20)))
        assert [one.values() for one in found] == [(acl(),)] * 20
    assert peer.connections == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", (("a", 1),)),
        (" a:1 , b:65535", (("a", 1), ("b", 65535))),
        ("[::1]:9092", (("::1", 9092),)),
        (["a:1", "b:2"], (("a", 1), ("b", 2))),
    ],
)
def test_servers(text: str | list[str], expected: object) -> None:
    assert parse_servers(text) == expected


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:1,", "::1:9", "a b:1", []]
)
def test_servers_that_are_none(text: str | list[str]) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        parse_servers(text)
