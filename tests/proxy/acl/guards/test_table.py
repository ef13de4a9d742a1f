"""The table as a whole: every API has its guard, and no guard fears any bytes."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from proxy.acl.decision import FORWARD, Answer, Change, Close, Forward, TopicsUnknown
from proxy.acl.guards import GUARDS, cluster
from proxy.errors import ClientFault
from proxy.wire.apis import APIS, SCRAM_APIS, Kind
from proxy.wire.primitives import Malformed
from tests.support.authorization import EVERYTHING, NOTHING, inquiry, judged
from tests.support.kio_messages import encode, request_type
from tests.support.messages import LARGE, large, small

NO_RIGHT_NEEDED = {60, 71, 72}
"""DescribeCluster and telemetry: shown to everybody who is authenticated."""
CHANGED_FOR_ALL = {60, 75}
"""Responses that tell what one may do are changed even for those who may do everything."""
BY_ITEMS = {2, 19, 20, 21, 23, 32, 33, 37, 44, 61}
ALL_OR_NOTHING = {27, 34, 35, 43, 45, 46, 50, 51, 55, 57, 64, 74, 80, 81, 94}
TOPIC_NAMES = {LARGE["uuid"].bytes: "by-id"}


def versions(api_keys: set[int]) -> list[Any]:
    return [
        pytest.param(api_key, version, id=f"{APIS[api_key].name}-v{version}")
        for api_key in sorted(api_keys)
        for version in range(APIS[api_key].min_version, APIS[api_key].max_version + 1)
    ]


def test_every_forwarded_api_has_a_guard() -> None:
    """An API without a guard must not be offered: whoever adds one must say what it asks for."""
    forwarded = {api.key for api in APIS.values() if api.kind is Kind.FORWARDED}
    assert forwarded <= GUARDS.keys()
    answered = {api_key for api_key in GUARDS if APIS[api_key].kind is Kind.ANSWERED}
    assert answered == SCRAM_APIS, "forwarded where brokers authenticate the clients"


@pytest.mark.parametrize(("api_key", "version"), versions(BY_ITEMS | ALL_OR_NOTHING))
def test_what_is_allowed_passes_as_it_came(api_key: int, version: int) -> None:
    for make in (small, large):
        request = make(request_type(api_key, version))
        if make is large and api_key in (32, 33, 44):
            continue  # made-up resource types: see test_configs
        if make is large and api_key == 20:
            continue  # a name and an id at once: see test_topics
        judgement = judged(GUARDS[api_key], request, EVERYTHING, TOPIC_NAMES)
        assert judgement is FORWARD


@pytest.mark.parametrize(("api_key", "version"), versions(BY_ITEMS | ALL_OR_NOTHING | {75}))
def test_what_is_denied_never_reaches_the_broker(api_key: int, version: int) -> None:
    request = large(request_type(api_key, version))
    assert isinstance(judged(GUARDS[api_key], request, NOTHING, TOPIC_NAMES), Answer)


@pytest.mark.parametrize(("api_key", "version"), versions(BY_ITEMS))
def test_nothing_asked_is_nothing_denied(api_key: int, version: int) -> None:
    """An empty list of topics is answered by the broker, as in Kafka."""
    assert judged(GUARDS[api_key], small(request_type(api_key, version)), NOTHING) is FORWARD


@pytest.mark.parametrize(("api_key", "version"), versions(ALL_OR_NOTHING))
def test_a_null_list_is_denied_like_a_list(api_key: int, version: int) -> None:
    """Null is "all of them" in ElectLeaders and others."""
    request = small(request_type(api_key, version))
    assert isinstance(judged(GUARDS[api_key], request, NOTHING), Answer)


@pytest.mark.parametrize(("api_key", "version"), versions(NO_RIGHT_NEEDED))
def test_what_needs_no_right_is_never_answered_by_the_proxy(api_key: int, version: int) -> None:
    for make in (small, large):
        judgement = judged(GUARDS[api_key], make(request_type(api_key, version)), NOTHING)
        assert judgement is FORWARD or isinstance(judgement, Change)
        assert GUARDS[api_key] is cluster.open_to_all or api_key == 60


@pytest.mark.parametrize(("api_key", "version"), versions(set(GUARDS)))
@pytest.mark.parametrize("allowed", [NOTHING, EVERYTHING], ids=["nobody", "root"])
def test_a_guard_fears_no_bytes(api_key: int, version: int, allowed: Any) -> None:
    """A hostile body is judged, or Malformed: no other exception may reach the connection."""
    asked = inquiry(large(request_type(api_key, version)), allowed, TOPIC_NAMES)
    body = asked.body
    step = max(1, len(body) // 25)
    bodies = [body[:length] for length in range(0, len(body), step)]
    bodies += [
        body[:position] + lie + body[position + len(lie) :]
        for position in range(0, len(body), step)
        for lie in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x80")
    ]
    for hostile in bodies:
        with suppress(Malformed, ClientFault, TopicsUnknown):
            judgement = GUARDS[api_key](replace(asked, body=hostile))
            assert isinstance(judgement, Forward | Answer | Change | Close)


@pytest.mark.parametrize(("api_key", "version"), versions(BY_ITEMS | ALL_OR_NOTHING | {75}))
def test_a_body_that_is_cut_off_is_malformed_without_rights(api_key: int, version: int) -> None:
    """Nobody is told anything about a request that cannot be read."""
    body = encode(large(request_type(api_key, version)))
    asked = inquiry(large(request_type(api_key, version)), NOTHING, TOPIC_NAMES)
    with pytest.raises(Malformed):
        GUARDS[api_key](replace(asked, body=body[: len(body) // 2]))
