"""Offsets of groups and of share groups."""

from typing import Any
from uuid import UUID

import pytest

from proxy.acl.decision import FORWARD, Answer, Change, TopicsUnknown
from proxy.acl.guards import GUARDS
from proxy.acl.model import Operation
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import (
    Right,
    group,
    judged,
    received,
    sent,
    topic,
    transactional_id,
)
from tests.support.messages import request, response, versions

GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_ID
IDS = {"a": UUID(int=1), "secret": UUID(int=2), "b": UUID(int=3), "gone": UUID(int=4)}
NAMES = {
    IDS["a"].bytes: "a",
    IDS["secret"].bytes: "secret",
    IDS["b"].bytes: "b",
    IDS["gone"].bytes: None,
}

COMMITS = [(8, version) for version in versions(8)] + [(28, version) for version in versions(28)]
READS = (
    group(Operation.READ, "g")
    | transactional_id(Operation.WRITE, "t")
    | topic(Operation.READ, "a", "b")
)


def topics(*names: str, **each: Any) -> list[dict[str, Any]]:
    """Topics under their name and their id, each with the partitions 0 and 7."""
    return [
        {
            "name": name,
            "topic_name": name,
            "topic_id": IDS[name],
            "partitions": [{"partition_index": index, **each} for index in (0, 7)],
        }
        for name in names
    ]


def commit(api_key: int, version: int, *names: str) -> Any:
    return request(api_key, version, group_id="g", transactional_id="t", topics=topics(*names))


def errors(found: Any) -> list[tuple[str, list[ErrorCode]]]:
    by_id = {topic_id: name for name, topic_id in IDS.items()}
    return [
        (
            one.name if hasattr(one, "name") else by_id[one.topic_id],
            [partition.error_code for partition in one.partitions],
        )
        for one in found
    ]


@pytest.mark.parametrize(("api_key", "version"), COMMITS)
def test_commits_topic_by_topic(api_key: int, version: int) -> None:
    guard, asked = GUARDS[api_key], commit(api_key, version, "a", "secret", "b")
    assert judged(guard, commit(api_key, version, "a", "b"), READS, NAMES) is FORWARD
    judgement = judged(guard, asked, READS, NAMES)
    assert sent(judgement, asked) == commit(api_key, version, "a", "b")
    broker = response(api_key, version, topics=topics("a", "b"))
    merged = received(judgement, asked, broker)
    none = ErrorCode.NONE
    assert errors(merged.topics) == [
        ("secret", [TOPIC_DENIED] * 2),
        ("a", [none] * 2),
        ("b", [none] * 2),
    ]
    nothing = judged(guard, commit(api_key, version, "secret"), READS, NAMES)
    assert errors(received(nothing, asked).topics) == [("secret", [TOPIC_DENIED] * 2)]


@pytest.mark.parametrize(("api_key", "version"), COMMITS)
def test_a_denied_group_fails_each_partition(api_key: int, version: int) -> None:
    asked = commit(api_key, version, "a", "secret")
    denied = judged(GUARDS[api_key], asked, READS - group(Operation.READ, "g"), NAMES)
    assert isinstance(denied, Answer)
    assert errors(received(denied, asked).topics) == [
        ("a", [GROUP_DENIED] * 2),
        ("secret", [GROUP_DENIED] * 2),
    ]


@pytest.mark.parametrize("version", versions(28))
def test_a_denied_transactional_id_comes_before_the_group(version: int) -> None:
    asked = commit(28, version, "a")
    denied = received(judged(GUARDS[28], asked, topic(Operation.READ, "a")), asked)
    assert errors(denied.topics) == [("a", [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2)]


COMMITS_BY_ID = [(8, 10), (28, 6)]


@pytest.mark.parametrize(("api_key", "version"), COMMITS_BY_ID)
def test_ids_are_looked_up_all_at_once(api_key: int, version: int) -> None:
    with pytest.raises(TopicsUnknown) as unknown:
        judged(GUARDS[api_key], commit(api_key, version, "a", "b"), READS, {})
    assert unknown.value.ids == {IDS["a"].bytes, IDS["b"].bytes}


@pytest.mark.parametrize(("api_key", "version"), COMMITS_BY_ID)
def test_no_id_is_looked_up_for_a_denied_group(api_key: int, version: int) -> None:
    asked = commit(api_key, version, "a", "b")
    rights = READS - group(Operation.READ, "g")
    assert isinstance(judged(GUARDS[api_key], asked, rights, {}), Answer)


@pytest.mark.parametrize(("api_key", "version"), COMMITS_BY_ID)
def test_an_id_of_no_topic_never_reaches_the_broker(api_key: int, version: int) -> None:
    """By then it could be that of a topic nobody was asked about."""
    asked = commit(api_key, version, "gone", "secret", "a")
    judgement = judged(GUARDS[api_key], asked, READS, NAMES)
    assert sent(judgement, asked) == commit(api_key, version, "a")
    merged = received(judgement, asked, response(api_key, version, topics=topics("a")))
    assert errors(merged.topics)[:2] == [("gone", [UNKNOWN] * 2), ("secret", [TOPIC_DENIED] * 2)]


def test_offset_delete() -> None:
    rights = group(Operation.DELETE, "g") | topic(Operation.READ, "a")
    asked = request(47, 0, group_id="g", topics=topics("secret", "a"))
    judgement = judged(GUARDS[47], asked, rights)
    assert [one.name for one in sent(judgement, asked).topics] == ["a"]
    merged = received(judgement, asked, response(47, 0, topics=topics("a")))
    assert [one.name for one in merged.topics] == ["secret", "a"]
    failed = response(47, 0, error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    assert received(judgement, asked, failed) == failed
    denied = received(judged(GUARDS[47], asked, topic(Operation.READ, "*")), asked)
    assert (denied.error_code, denied.topics) == (GROUP_DENIED, ())
    assert isinstance(judged(GUARDS[47], asked, group(Operation.DELETE, "g")), Change)
    assert (
        judged(GUARDS[47], asked, group(Operation.DELETE, "*") | topic(Operation.READ, "*"))
        is FORWARD
    )


# ---------------------------------------------------------------------- OffsetFetch

SEES = group(Operation.DESCRIBE, "g", "h") | topic(Operation.DESCRIBE, "a", "b")


def wanted(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "topic_id": IDS[name], "partition_indexes": [0, 7]} for name in names]


def of(found: Any) -> list[tuple[str, list[ErrorCode]]]:
    return errors(found.topics)


@pytest.mark.parametrize("version", range(1, 8))
def test_fetch_of_one_group(version: int) -> None:
    asked = request(9, version, group_id="g", topics=wanted("secret", "a"))
    judgement = judged(GUARDS[9], asked, SEES)
    assert sent(judgement, asked) == request(9, version, group_id="g", topics=wanted("a"))
    merged = received(judgement, asked, response(9, version, topics=topics("a")))
    assert of(merged) == [("a", [ErrorCode.NONE] * 2), ("secret", [TOPIC_DENIED] * 2)]
    assert merged.topics[1].partitions[0].committed_offset == -1
    nothing = judged(GUARDS[9], request(9, version, group_id="g", topics=wanted("secret")), SEES)
    assert sent(nothing, asked).topics == ()
    allowed = request(9, version, group_id="g", topics=wanted("a"))
    assert judged(GUARDS[9], allowed, SEES) is FORWARD


@pytest.mark.parametrize("version", range(1, 8))
def test_where_the_error_of_one_group_stands(version: int) -> None:
    asked = request(9, version, group_id="x", topics=wanted("a"))
    denied = received(judged(GUARDS[9], asked, SEES), asked)
    if version == 1:
        assert of(denied) == [("a", [GROUP_DENIED] * 2)]
    else:
        assert (denied.error_code, denied.topics) == (GROUP_DENIED, ())


@pytest.mark.parametrize("version", range(2, 8))
def test_everything_is_what_may_be_seen(version: int) -> None:
    asked = request(9, version, group_id="g", topics=None)
    judgement = judged(GUARDS[9], asked, SEES)
    assert sent(judgement, asked) == asked
    cut = received(judgement, asked, response(9, version, topics=topics("a", "secret")))
    assert [one.name for one in cut.topics] == ["a"]


@pytest.mark.parametrize("version", [8, 9, 10])
def test_fetch_of_several_groups(version: int) -> None:
    asked = request(
        9,
        version,
        groups=[
            {"group_id": "x", "topics": wanted("a")},
            {"group_id": "g", "topics": wanted("secret", "a")},
            {"group_id": "y", "topics": None},
            {"group_id": "h", "topics": None},
        ],
    )
    judgement = judged(GUARDS[9], asked, SEES, NAMES)
    assert sent(judgement, asked) == request(
        9,
        version,
        groups=[{"group_id": "g", "topics": wanted("a")}, {"group_id": "h", "topics": None}],
    )
    broker = response(
        9,
        version,
        groups=[
            {"group_id": "g", "topics": topics("a")},
            {"group_id": "h", "topics": topics("secret", "b")},
        ],
    )
    groups = received(judgement, asked, broker).groups
    assert [(one.group_id, one.error_code) for one in groups] == [
        ("x", GROUP_DENIED),
        ("g", ErrorCode.NONE),
        ("y", GROUP_DENIED),
        ("h", ErrorCode.NONE),
    ]
    assert of(groups[1]) == [("a", [ErrorCode.NONE] * 2), ("secret", [TOPIC_DENIED] * 2)]
    assert of(groups[3]) == [("b", [ErrorCode.NONE] * 2)]
    failed = response(
        9,
        version,
        groups=[{"group_id": "g", "error_code": ErrorCode.NOT_COORDINATOR}, {"group_id": "h"}],
    )
    assert received(judgement, asked, failed).groups[1].topics == ()


@pytest.mark.parametrize("version", [8, 9, 10])
def test_several_groups_allowed_or_denied_as_a_whole(version: int) -> None:
    groups = [{"group_id": "g", "topics": wanted("a")}, {"group_id": "h", "topics": wanted("b")}]
    asked = request(9, version, groups=groups)
    assert judged(GUARDS[9], asked, SEES, NAMES) is FORWARD
    denied = judged(GUARDS[9], asked, topic(Operation.DESCRIBE, "*"), NAMES)
    assert isinstance(denied, Answer)
    assert {one.error_code for one in received(denied, asked).groups} == {GROUP_DENIED}


def test_everything_by_id_fails_if_a_name_is_not_known() -> None:
    """It can be neither shown nor left out: no offset would read as nothing committed."""
    asked = request(9, 10, groups=[{"group_id": "g", "topics": None}])
    judgement = judged(GUARDS[9], asked, SEES, {IDS["a"].bytes: "a"})
    broker = response(9, 10, groups=[{"group_id": "g", "topics": topics("a", "b")}])
    (found,) = received(judgement, asked, broker).groups
    assert (found.error_code, found.topics) == (UNKNOWN, ())


# ---------------------------------------------------------------------- share groups


@pytest.mark.parametrize("version", versions(90))
def test_describe_share_group_offsets(version: int) -> None:
    def one_of(name: str) -> dict[str, Any]:
        return {"topic_name": name, "partitions": [0, 7]}

    asked = request(
        90,
        version,
        groups=[
            {"group_id": "x", "topics": None},
            {"group_id": "g", "topics": [one_of("secret"), one_of("a")]},
            {"group_id": "h", "topics": None},
        ],
    )
    judgement = judged(GUARDS[90], asked, SEES)
    assert [one.group_id for one in sent(judgement, asked).groups] == ["g", "h"]
    broker = response(
        90,
        version,
        groups=[
            {"group_id": "g", "topics": topics("a")},
            {"group_id": "h", "topics": topics("b", "secret")},
        ],
    )
    denied, explicit, everything = received(judgement, asked, broker).groups
    assert (denied.group_id, denied.error_code) == ("x", GROUP_DENIED)
    assert [one.topic_name for one in explicit.topics] == ["a", "secret"]
    hidden = explicit.topics[1]
    assert hidden.topic_id is None
    assert [(one.start_offset, one.error_code) for one in hidden.partitions] == [
        (-1, TOPIC_DENIED)
    ] * 2
    assert [one.topic_name for one in everything.topics] == ["b"]
    plain = request(90, version, groups=[{"group_id": "g", "topics": [one_of("a")]}])
    assert judged(GUARDS[90], plain, SEES) is FORWARD
    assert isinstance(judged(GUARDS[90], plain), Answer)


@pytest.mark.parametrize(
    ("api_key", "rights"),
    [(91, group(Operation.READ, "g")), (92, group(Operation.DELETE, "g"))],
)
def test_changing_share_group_offsets(api_key: int, rights: frozenset[Right]) -> None:
    guard = GUARDS[api_key]
    asked = request(api_key, 0, group_id="g", topics=topics("a", "secret"))
    denied = received(judged(guard, asked, topic(Operation.READ, "*")), asked)
    assert (denied.error_code, denied.error_message) == (
        GROUP_DENIED,
        "Group authorization failed.",
    )
    judgement = judged(guard, asked, rights | topic(Operation.READ, "a"))
    assert [one.topic_name for one in sent(judgement, asked).topics] == ["a"]
    merged = received(judgement, asked, response(api_key, 0, responses=topics("a")))
    assert [one.topic_name for one in merged.responses] == ["secret", "a"]
    assert merged.responses[0].topic_id is None
    failed = response(api_key, 0, error_code=ErrorCode.NON_EMPTY_GROUP)
    assert received(judgement, asked, failed) == failed
    assert judged(guard, asked, rights | topic(Operation.READ, "*")) is FORWARD
    nothing = judged(guard, asked, rights)
    assert sent(nothing, asked).topics == ()
    assert received(nothing, asked, failed) == failed, "an error of the group comes first"
