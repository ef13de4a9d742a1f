"""Metadata and DescribeTopicPartitions: missing topics, ids, and pages that reveal nothing."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.static.primitive import i32

from proxy.acl.decision import FORWARD, Answer, Change, Inquiry, Judgement
from proxy.acl.guards import GUARDS
from proxy.acl.guards.metadata import metadata
from proxy.acl.model import Operation
from proxy.wire.error_codes import ErrorCode
from proxy.wire.primitives import Malformed
from tests.support.authorization import EVERYTHING, NOTHING, Right, judged, received, sent, topic
from tests.support.kio_messages import request_type, response_type
from tests.support.messages import TOPIC_ID as ID
from tests.support.messages import large
from tests.support.messages import metadata_request as asking
from tests.support.messages import metadata_response as with_throttle_time

SEEN = topic(Operation.DESCRIBE, "seen")


def metadata_before_brokers_that_make_none(asked: Inquiry) -> Judgement:
    return metadata(replace(asked, brokers_make_topics=False))


def shown(response: Any) -> list[tuple[str | None, int, int]]:
    return [(one.name, one.error_code.value, len(one.partitions)) for one in response.topics]


@pytest.mark.parametrize("version", range(14))
class TestEveryVersion:
    def test_what_may_not_be_made_is_not(self, version: int) -> None:
        """Versions before 4 lack that field: the broker is asked with version 4."""
        request = asking(version, "seen")
        judgement = judged(metadata, request, SEEN)
        assert isinstance(judgement, Change)
        asked_in = 4 if version < 4 else version
        assert judgement.api_version == (4 if version < 4 else None)
        assert not sent(judgement, asking(asked_in)).allow_auto_topic_creation
        missing = with_throttle_time(asked_in, ("seen", 3))
        assert shown(received(judgement, request, missing)) == [("seen", 29, 0)]
        assert shown(received(judgement, request, with_throttle_time(asked_in, ("seen", 0)))) == [
            ("seen", 0, 1)
        ]

    def test_what_has_no_valid_name_is_denied_alike(self, version: int) -> None:
        """Kafka asks for the right to create it before it looks at the name."""
        request = asking(version, "seen")
        judgement = judged(metadata, request, SEEN)
        invalid = with_throttle_time(max(version, 4), ("seen", 17))
        assert shown(received(judgement, request, invalid)) == [("seen", 29, 0)]

    @pytest.mark.parametrize("error", [3, 17])
    def test_where_brokers_make_no_topics_what_is_missing_is_not_denied(
        self, version: int, error: int
    ) -> None:
        """And still not made, should the setting be wrong."""
        request = asking(version, "seen", "other")
        judgement = judged(metadata_before_brokers_that_make_none, request, SEEN)
        asked_in = max(version, 4)
        asked = sent(judgement, asking(asked_in))
        assert [one.name for one in asked.topics] == ["seen"]
        assert asked.allow_auto_topic_creation is False
        response = received(judgement, request, with_throttle_time(asked_in, ("seen", error)))
        assert [one[:2] for one in shown(response)] == [("seen", error), ("other", 29)]


class TestIds:
    def test_a_version_without_them_refuses_them(self) -> None:
        request = asking(10, ids=(ID,))
        response = received(judged(metadata, request, EVERYTHING, {ID.bytes: "a"}), request)
        assert shown(response) == [("", 42, 0)]


def test_a_response_cut_short_is_malformed() -> None:
    judgement = judged(metadata, asking(12, None), SEEN)
    assert isinstance(judgement, Change)
    assert judgement.response is not None
    from tests.support.kio_messages import encode

    body = encode(with_throttle_time(12, ("seen", 0), ("other", 0)))
    for end in range(len(body) - 1):
        with pytest.raises(Malformed):
            judgement.response(body[:end])


@pytest.mark.parametrize("version", range(14))
def test_a_list_of_everything_passes_to_a_client_that_may_see_everything(version: int) -> None:
    """Nothing is read of it, however long it is; operations would be those of the broker."""
    asked = asking(version, None)
    assert judged(metadata, asked, EVERYTHING) is FORWARD
    assert judged(metadata, asked, NOTHING) is not FORWARD
    if version >= 8:
        with_operations = replace(asked, include_topic_authorized_operations=True)
        assert judged(metadata, with_operations, EVERYTHING) is not FORWARD


API = 75
REQUEST, RESPONSE = large(request_type(API, 0)), large(response_type(API, 0))
PARTITIONS = 3
VISIBLE = topic(Operation.DESCRIBE, "a", "c") | topic(Operation.READ, "a")


def asking_for(*names: str, cursor: str | None = None, partition: int = 3) -> Any:
    one = REQUEST.topics[0]
    return replace(
        REQUEST,
        topics=tuple(replace(one, name=name) for name in names),
        cursor=None
        if cursor is None
        else replace(REQUEST.cursor, topic_name=cursor, partition_index=partition),
    )


def answering(*names: str, cursor: str | None = None, partition: int = 3) -> Any:
    one = replace(RESPONSE.topics[0], error_code=ErrorCode.NONE, topic_authorized_operations=3064)
    return replace(
        RESPONSE,
        topics=tuple(replace(one, name=name) for name in names),
        next_cursor=cursor
        and replace(RESPONSE.next_cursor, topic_name=cursor, partition_index=partition),
    )


@pytest.mark.parametrize(
    ("request_", "passed", "denied"),
    [
        pytest.param(
            asking_for("a", "b", "c", cursor="a"), asking_for("a", "c", cursor="a"), ["b"], id="a"
        ),
        pytest.param(
            asking_for("a", "b", "c", cursor="b"), asking_for("c"), ["b"], id="at a hidden one"
        ),
        pytest.param(asking_for("a", "b", "c", cursor="c"), None, [], id="behind the hidden one"),
    ],
)
def test_the_cursor_skips_topics_as_in_kafka(request_: Any, passed: Any, denied: list[str]) -> None:
    judgement = judged(GUARDS[API], request_, VISIBLE)
    assert sent(judgement, request_) == (request_ if passed is None else passed)
    response = received(judgement, request_, answering("c"))
    assert [one.name for one in response.topics] == ["c", *denied]


def test_a_cursor_at_a_hidden_last_topic_ends_the_list() -> None:
    judgement = judged(GUARDS[API], asking_for("a", "b", cursor="b"), VISIBLE)
    assert isinstance(judgement, Answer)


@pytest.mark.parametrize("rights", [EVERYTHING, topic(Operation.DESCRIBE, "*")], ids=["root", "*"])
def test_who_may_describe_all_is_shown_what_the_broker_pages(rights: frozenset[Right]) -> None:
    request = asking_for(cursor="b", partition=-1)
    judgement = judged(GUARDS[API], request, rights)
    assert sent(judgement, request) == request
    broker = answering("b", "c", cursor="d")
    response = received(judgement, request, broker)
    assert ([one.name for one in response.topics], response.next_cursor) == (
        ["b", "c"],
        broker.next_cursor,
    )


def listing(visible: Collection[str], hidden: Collection[str], request: Any) -> Any:
    """Return the client's response from a broker with these topics, of three partitions each."""
    rights = topic(Operation.DESCRIBE, *visible)
    judgement = judged(GUARDS[API], request, rights, listed=sorted({*visible, *hidden}))
    if isinstance(judgement, Answer):
        return received(judgement, request)
    asked = sent(judgement, request)
    assert asked.topics, "none would be all"
    assert {one.name for one in asked.topics} <= {*visible}
    return received(judgement, request, broker_page(asked))


def broker_page(request: Any) -> Any:
    """What Kafka's `DescribeTopicPartitionsRequestHandler` says to a list of topics that exist."""
    cursor, partition = request.cursor, RESPONSE.topics[0].partitions[0]
    names = sorted(one.name for one in request.topics)
    if cursor is not None:
        assert cursor.topic_name in names
        assert cursor.partition_index >= 0
        names = names[names.index(cursor.topic_name) :]
    left = max(request.response_partition_limit, 1)
    topics: list[Any] = []
    for name in names:
        if not left:
            return paged(topics, name, 0)
        start = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        indexes = range(start, min(PARTITIONS, start + left))
        left -= len(indexes)
        entries = tuple(replace(partition, partition_index=i32(index)) for index in indexes)
        topics.append(replace(answering(name).topics[0], partitions=entries))
        if indexes.stop < PARTITIONS:
            return paged(topics, name, indexes.stop)
    return paged(topics)


def paged(topics: list[Any], name: str | None = None, index: int = 0) -> Any:
    cursor = name and replace(RESPONSE.next_cursor, topic_name=name, partition_index=i32(index))
    return replace(RESPONSE, topics=tuple(topics), next_cursor=cursor)


NAMES = st.sets(st.text("-.Zaz", min_size=1, max_size=3), max_size=12)


@settings(max_examples=60, deadline=None)
@example(visible=set(), hidden={"a", "b"}, limit=12, cursor=None, partition=0)
@given(
    visible=NAMES,
    hidden=NAMES,
    limit=st.integers(-1, 12),
    cursor=st.none() | st.text("!-.Zaz~\u00e9", max_size=4),
    partition=st.integers(-2, 4),
)
def test_nothing_tells_of_hidden_topics(
    visible: set[str], hidden: set[str], limit: int, cursor: str | None, partition: int
) -> None:
    """The topics shown, the pages and the cursors stay the same."""
    request = replace(
        asking_for(cursor=cursor, partition=partition), response_partition_limit=i32(limit)
    )
    reported = listing(visible, hidden - visible, request)
    assert reported == listing(visible, (), request)
    after = [one for one in sorted(visible) if cursor is None or one >= cursor]
    if not after or (cursor is not None and partition < 0):
        assert (reported.topics, reported.next_cursor) == ((), None)
        return
    kept = request.cursor if cursor == after[0] else None
    asked = replace(request, topics=asking_for(*after).topics, cursor=kept)
    page = broker_page(asked)
    assert reported.next_cursor == page.next_cursor
    assert [(one.name, one.partitions) for one in reported.topics] == [
        (one.name, one.partitions) for one in page.topics
    ]


def test_no_more_topics_are_named_than_a_page_can_hold() -> None:
    """However much the client allows; the next page begins behind them."""
    names = [f"t{number:04}" for number in range(2_002)]
    request = replace(asking_for(), response_partition_limit=i32(1_000_000))
    rights = topic(Operation.DESCRIBE, *names)
    judgement = judged(GUARDS[API], request, rights, listed=["hidden", *names])
    assert [one.name for one in sent(judgement, request).topics] == names[:-1]
    assert received(judgement, request, answering("t2000")).next_cursor == replace(
        RESPONSE.next_cursor, topic_name="t2001", partition_index=i32(0)
    )
    full = answering("t0000", cursor="t0001")
    assert received(judgement, request, full).next_cursor == full.next_cursor


def test_a_topic_that_is_deleted_meanwhile_is_not_on_the_list() -> None:
    request = asking_for()
    judgement = judged(GUARDS[API], request, VISIBLE, listed=["a", "b", "c"])
    page = answering("a", "c")
    gone = replace(
        page.topics[1],
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        partitions=(),
        topic_id=None,
    )
    reported = received(judgement, request, replace(page, topics=(page.topics[0], gone)))
    assert [one.name for one in reported.topics] == ["a"]


@pytest.mark.parametrize("rights", [EVERYTHING, VISIBLE, NOTHING], ids=["all", "some", "none"])
@pytest.mark.parametrize(("cursor", "partition"), [("x", 0), ("a", -1), ("b", -1)])
def test_a_senseless_cursor_is_refused_for_each_topic_that_was_named(
    cursor: str, partition: int, rights: frozenset[Right]
) -> None:
    """As in Kafka, which checks no permission before that: the error reveals none either."""
    request = asking_for("b", "a", "b", cursor=cursor, partition=partition)
    judgement = judged(GUARDS[API], request, rights)
    assert isinstance(judgement, Answer)
    response = received(judgement, request)
    assert response.next_cursor is None
    assert [
        (one.name, one.error_code, one.topic_id, one.topic_authorized_operations)
        for one in response.topics
    ] == [(name, ErrorCode.INVALID_REQUEST, None, -(2**31)) for name in ("b", "a", "b")]
