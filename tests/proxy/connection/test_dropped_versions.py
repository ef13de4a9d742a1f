"""Requests in versions that Kafka 4.0 dropped (KIP-896): which pass unjudged, and what is known."""

from typing import Any

import pytest

from proxy.connection.frames import route_key
from proxy.connection.stages import DROPPED_BY_KAFKA_4
from proxy.quota.model import QuotaKey
from proxy.wire.apis import (
    APIS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    FETCH,
    FIRST_KEPT_BY_KAFKA_4,
    PRODUCE,
    Kind,
)
from tests.support.authorization import EVERYTHING, Judge, Rights
from tests.support.frames import name_of, request, response
from tests.support.playbook import Playbook, everything, logged_in
from tests.support.quotas import CONSUMER, PLAIN, RATE, Quoted

FORWARDED = [
    (key, version)
    for key, kept in FIRST_KEPT_BY_KAFKA_4.items()
    for version in range(kept)
    if APIS[key].kind is Kind.FORWARDED
]
ACKS_ALL, ACKS_0 = b"\xff\xff", b"\0\0"
NOT_BOUNDED = 50_000_000


def passing(**more: Any) -> Playbook:
    """A connection where ACLs are not enforced, before a broker that serves every version."""
    return logged_in(Playbook(offer=everything(rewritten=PLAIN, enforces_acls=False), **more))


def old(key: int, version: int, correlation_id: int, body: bytes = ACKS_ALL + b"rest") -> bytes:
    return request(key, version, correlation_id, body)


@pytest.mark.parametrize(("key", "version"), FORWARDED)
def test_every_one_passes_and_is_recorded(key: int, version: int) -> None:
    play = passing()
    play.client(old(key, version, 3), old(key, version, 4), old(key, version, 5))
    sent = [f"to broker: {name_of(key)} v{version} #{number}" for number in (3, 4, 5)]
    assert play.take() == ["connect", *sent]
    play.broker(response(3), response(4, b"answer"), response(5))
    assert play.take() == ["to client: #3", "to client: #4 answer", "to client: #5"]
    assert play.connection.stages.dropped_versions == {route_key(key, version)}


@pytest.mark.parametrize(("key", "version"), FORWARDED)
def test_none_passes_where_acls_are_enforced_but_is_recorded(key: int, version: int) -> None:
    for offer in (everything(), everything(enforces_acls=False)):
        judge = Judge(EVERYTHING)
        play = logged_in(Playbook(offer=offer, rights=judge))
        play.client(old(key, version, 3))
        assert play.take() == ["closed unsupported_api", "close"]
        assert not play.to_broker
        assert play.connection.stages.dropped_versions == {route_key(key, version)}
        assert judge.unjudged == []


def test_all_pass_where_acls_are_only_audited() -> None:
    """All that a connection used are recorded."""
    judge = Judge()
    judge.rights = Rights(frozenset(), auditing=True)
    play = passing(rights=judge)
    play.client(*(old(*each, number) for number, each in enumerate(FORWARDED, 3)))
    assert len(play.owed) == len(FORWARDED)
    assert play.connection.stages.dropped_versions == {route_key(*each) for each in FORWARDED}


def test_each_that_passes_unjudged_is_reported_once() -> None:
    """Of super users, too: where ACLs are enforced, it is offered to nobody."""
    judge = Judge()
    judge.admit = lambda *_: None  # type: ignore[assignment,method-assign]
    play = passing(rights=judge)
    for first in (3, 103):
        play.client(*(old(*each, number) for number, each in enumerate(FORWARDED, first)))
    play.client(request(FETCH, 4, 203))
    assert [key for _, key in judge.unjudged] == [route_key(*each) for each in FORWARDED]
    assert {principal for principal, _ in judge.unjudged} == {play.connection.principal}
    assert play.connection.stages.dropped_versions == {route_key(*each) for each in FORWARDED}


def test_what_the_proxy_answers_itself_is_recorded() -> None:
    """DescribeAcls v0, which is in the offer of any listener."""
    play = passing()
    play.client(request(29, 0, 3, b"\x01\xff\xff\xff\xff\xff\xff\x01\x01"))
    assert play.connection.stages.dropped_versions == {route_key(29, 0)} <= DROPPED_BY_KAFKA_4


class TestProduce:
    @pytest.mark.parametrize("version", [0, 1, 2])
    @pytest.mark.parametrize("pieces", [1, 5, 1_000])
    def test_without_acks_is_not_answered(self, version: int, pieces: int) -> None:
        play = passing()
        sent = old(PRODUCE, version, 3, ACKS_0 + b"records") + old(FETCH, 0, 4)
        for at in range(0, len(sent), pieces):
            play.client(sent[at : at + pieces])
        assert bytes(play.to_broker) == sent
        assert play.owed == [4]

    def test_counts_towards_its_quota(self) -> None:
        play = quoted({QuotaKey.PRODUCER_BYTE_RATE: RATE})
        play.client(old(PRODUCE, 2, 3, ACKS_ALL + b"r" * 11_000))
        assert play.connection.throttling is not None
        assert play.connection.throttling.holds(play.now)


def quoted(limits: dict[QuotaKey, float], mode: str = "enforce") -> Playbook:
    service = Quoted(limits, mode=mode).service
    offer = everything(rewritten=PLAIN, metered=True, enforces_acls=False)
    play = Playbook(quotas=service, offer=offer)
    play.now = float(int(play.now))
    return logged_in(play)


class TestFetchUnderAQuota:
    @pytest.mark.parametrize("version", [0, 1, 2])
    def test_without_a_limit_of_its_own_goes_one_by_one(self, version: int) -> None:
        play = quoted({CONSUMER: RATE})
        frames = [old(FETCH, version, number) for number in (3, 4)]
        play.client(*frames)
        assert bytes(play.to_broker) == frames[0]
        play.broker(response(3, b"f" * 100))
        assert bytes(play.to_broker) == b"".join(frames)

    def test_of_v3_asks_for_no_more_than_passes_at_once(self) -> None:
        play = quoted({CONSUMER: RATE})
        limits = b"\xff\xff\xff\xff" + bytes(8)
        play.client(request(FETCH, 3, 3, limits + NOT_BOUNDED.to_bytes(4) + b"topics"))
        expected = request(FETCH, 3, 3, limits + int(10 * RATE).to_bytes(4) + b"topics")
        assert bytes(play.to_broker) == expected


@pytest.mark.parametrize("key", [CREATE_TOPICS, DELETE_TOPICS])
def test_what_cannot_be_counted_is_refused_where_a_limit_is_enforced(key: int) -> None:
    limits = {QuotaKey.CONTROLLER_MUTATION_RATE: 1.0}
    play = quoted(limits)
    play.client(old(key, 0, 3))
    assert play.take() == ["closed unsupported_api", "close"]
    play = quoted(limits, mode="audit")
    play.client(old(key, 0, 3))
    assert bytes(play.to_broker) == old(key, 0, 3)
