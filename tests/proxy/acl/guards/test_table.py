"""The table as a whole: every API has its guard, and no guard fears any bytes."""

from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from proxy.acl.decision import FORWARD, Answer, Change, Close, Forward, TopicsUnknown
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.errors import ClientFault
from proxy.wire.apis import APIS, SCRAM_APIS, Kind
from proxy.wire.primitives import Malformed
from tests.support.authorization import (
    EVERYTHING,
    NOTHING,
    cluster,
    group,
    inquiry,
    judged,
    transactional_id,
)
from tests.support.kio_messages import encode, request_type, response_type
from tests.support.messages import LARGE, large, request, small, versions

BY_ITEMS = {2, 19, 20, 21, 23, 32, 33, 37, 44, 61}
ALL_OR_NOTHING = {27, 34, 35, 43, 45, 46, 50, 51, 55, 57, 64, 74, 80, 81, 94}
TOPIC_NAMES = {LARGE["uuid"].bytes: "by-id"}


def every_version(api_keys: set[int]) -> list[Any]:
    return [
        pytest.param(api_key, version, id=f"{APIS[api_key].name}-v{version}")
        for api_key in sorted(api_keys)
        for version in range(APIS[api_key].min_version, APIS[api_key].max_version + 1)
    ]


def test_every_forwarded_api_has_a_guard() -> None:
    """An API without a guard must not be offered: each new API needs a guard."""
    forwarded = {api.key for api in APIS.values() if api.kind is Kind.FORWARDED}
    assert forwarded <= GUARDS.keys()
    answered = {api_key for api_key in GUARDS if APIS[api_key].kind is Kind.ANSWERED}
    assert answered == SCRAM_APIS, "forwarded where brokers authenticate the clients"


@pytest.mark.parametrize(("api_key", "version"), every_version(ALL_OR_NOTHING))
def test_a_null_list_is_denied_like_a_list(api_key: int, version: int) -> None:
    """Null is "all of them" in ElectLeaders and others."""
    request = small(request_type(api_key, version))
    assert isinstance(judged(GUARDS[api_key], request, NOTHING), Answer)


@pytest.mark.parametrize(("api_key", "version"), every_version(set(GUARDS)))
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


@pytest.mark.parametrize(("api_key", "version"), every_version(BY_ITEMS | ALL_OR_NOTHING | {75}))
def test_a_body_that_is_cut_off_is_malformed_without_rights(api_key: int, version: int) -> None:
    """A request that cannot be read gets no response; one that is denied reaches no broker."""
    request = large(request_type(api_key, version))
    assert isinstance(judged(GUARDS[api_key], request, NOTHING, TOPIC_NAMES), Answer)
    asked = inquiry(request, NOTHING, TOPIC_NAMES)
    with pytest.raises(Malformed):
        GUARDS[api_key](replace(asked, body=asked.body[: len(asked.body) // 2]))


def by_ids(api_key: int, version: int) -> Any:
    topics = [{"name": None, "topic_id": UUID(int=number)} for number in (1, 2)]
    return request(api_key, version, group_id="g", transactional_id="t", topics=topics)


MEMBER = group(Operation.READ, "g") | transactional_id(Operation.WRITE, "t")


@pytest.mark.parametrize(
    ("api_key", "version"), [(3, 12), (8, 10), (20, 6), (28, 6), (78, 1), (79, 1)]
)
def test_ids_are_looked_up_all_at_once(api_key: int, version: int) -> None:
    with pytest.raises(TopicsUnknown) as unknown:
        judged(GUARDS[api_key], by_ids(api_key, version), MEMBER, {})
    assert unknown.value.ids == {UUID(int=number).bytes for number in (1, 2)}


@pytest.mark.parametrize(("api_key", "version"), [(8, 10), (28, 6)])
def test_no_id_is_looked_up_for_a_denied_group(api_key: int, version: int) -> None:
    rights = MEMBER - group(Operation.READ, "g")
    assert isinstance(judged(GUARDS[api_key], by_ids(api_key, version), rights, {}), Answer)


def test_no_id_is_looked_up_for_who_may_delete_all() -> None:
    assert judged(GUARDS[20], by_ids(20, 6), cluster(Operation.DELETE), {}) is FORWARD


NAMES = {LARGE["uuid"].bytes: "secret"}
RIGHTS = group(Operation.READ, "*") | group(Operation.DESCRIBE, "*") | group(Operation.DELETE, "*")
RIGHTS |= transactional_id(Operation.DESCRIBE, "*")
CUT = [
    (api_key, version)
    for api_key in (9, 16, 47, 65, 66, 69, 77, 78, 79, 89, 90, 91)
    for version in versions(api_key)
]


@pytest.mark.parametrize(("api_key", "version"), CUT)
def test_a_cut_fears_no_bytes(api_key: int, version: int) -> None:
    """What cannot be read is Malformed: it must not pass uncut, nor end anything else."""
    rights = NOTHING if api_key == 16 else RIGHTS
    judgement = judged(GUARDS[api_key], large(request_type(api_key, version)), rights, NAMES)
    assert isinstance(judgement, Change)
    assert judgement.response is not None
    body = encode(large(response_type(api_key, version)))
    judgement.response(body)
    step = max(1, len(body) // 25)
    for position in range(0, len(body), step):
        for hostile in (
            body[:position],
            body[:position] + b"\xff\xff\xff\xff\x07" + body[position + 5 :],
        ):
            with suppress(Malformed):
                judgement.response(hostile)
    with pytest.raises(Malformed):
        judgement.response(body[: len(body) // 2])
