"""Produce and Fetch requests: walking through one gives the same result as decoding it."""

import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.static.primitive import i32

from proxy.wire import commit_requests, fetch_requests, produce_requests
from proxy.wire.apis import OFFSET_COMMIT
from proxy.wire.primitives import Malformed, write_string
from tests.support.kio_messages import encode, request_type
from tests.support.kio_messages.strict import decode
from tests.support.messages import fetch_body, produce_body, request_body, topic_id

NAMES = st.text(st.sampled_from("abcdé.-"), min_size=0, max_size=40)
TOPICS = st.lists(st.tuples(NAMES, st.lists(st.integers(0, 2**31 - 1), max_size=4)), max_size=4)


def is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_name(field: bytes) -> bool:
    """Whether a compact string is a name: neither null nor invalid UTF-8."""
    return field != b"\0" and is_text(field[1:])


@pytest.mark.parametrize("version", range(3, 14))
@settings(max_examples=20, deadline=None)
@given(topics=TOPICS, acks=st.sampled_from([-1, 0, 1]), transaction=st.none() | NAMES)
def test_a_produce_is_walked_through(
    version: int, topics: list[tuple[str, list[int]]], acks: int, transaction: str | None
) -> None:
    body = produce_body(version, topics, transactional_id=transaction, acks=acks)
    request = produce_requests.parse(version, body)
    assert (request.acks, request.transactional_id) == (acks, transaction)
    named = [one.name for one in request.topics]
    ids = [one.topic_id for one in request.topics]
    assert named == ([None] * len(topics) if version >= 13 else [name for name, _ in topics])
    assert ids == [topic_id(name).bytes if version >= 13 else None for name, _ in topics]
    assert [list(one.partitions) for one in request.topics] == [indexes for _, indexes in topics]
    if topics:
        assert produce_requests.keep(version, body, request, list(request.topics)) == body
        half = produce_requests.keep(version, body, request, list(request.topics[1:]))
        assert half == produce_body(version, topics[1:], transactional_id=transaction, acks=acks)


@pytest.mark.parametrize("version", range(4, 19))
@settings(max_examples=20, deadline=None)
@given(topics=TOPICS)
def test_a_fetch_is_walked_through(version: int, topics: list[tuple[str, list[int]]]) -> None:
    body = fetch_body(version, topics)
    request = fetch_requests.parse(version, body)
    assert request.replica_id == -1
    assert (request.session_id, request.session_epoch) == ((5, 6) if version >= 7 else (0, -1))
    assert [list(one.partitions) for one in request.topics] == [indexes for _, indexes in topics]
    kept = list(request.topics[1:])
    for most, limit in ((1, 1), (2, 2), (99, 2)):
        assert fetch_requests.keep(
            version, body, request, kept, epoch=-1, max_bytes=most
        ) == fetch_body(version, topics[1:], session_epoch=i32(-1), max_bytes=i32(limit))


@pytest.mark.parametrize(
    ("parse", "body_of", "version"),
    [
        *((produce_requests.parse, produce_body, version) for version in range(3, 14)),
        *((fetch_requests.parse, fetch_body, version) for version in range(12, 19)),
    ],
)
def test_one_that_ends_early_is_malformed(
    parse: Callable[..., object], body_of: Callable[..., bytes], version: int
) -> None:
    body = body_of(version, [("abc", [1, 2]), ("d", [3])])
    for end in range(len(body) - (body_of is produce_body)):  # its last tags are not looked at
        with pytest.raises(Malformed):
            parse(version, body[:end])


REPLICA = {"replica_id": 4, "replica_epoch": 1}


@pytest.mark.parametrize("version", range(4, 19))
def test_a_replica_is_seen(version: int) -> None:
    """From v15 on in a tag."""
    body = fetch_body(version, [("a", [0])], replica_id=4, replica_state=REPLICA)
    assert fetch_requests.parse(version, body).replica_id == 4


def test_a_tag_that_claims_another_size_than_kafka_reads_is_malformed() -> None:
    """Kafka reads a tag that it knows by its content: what follows a lie, two read differently."""
    body = fetch_body(17, [("a", [0])], replica_state=REPLICA)
    at = body.rindex(b"\x01\x0d")
    for size in (0, 5, 12, 14):
        lie = body[:at] + bytes([1, size]) + body[at + 2 :] + bytes(2)
        with pytest.raises(Malformed):
            fetch_requests.parse(17, lie)


@pytest.mark.parametrize("version", range(3, 14))
@given(cut=st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_one_topic_in_sight(version: int, cut: int) -> None:
    tags = b"\0" if version >= 9 else b""
    body = tags + produce_body(version, [("abc", [1, 2])])
    stop = produce_requests.only_topic(version, body, 0, len(body))
    start = produce_requests.topics_start(0)
    said = topic_id("abc").bytes if version >= 13 else b"abc"
    assert body[start:stop].endswith(said)
    assert produce_requests.only_topic(version, body, 0, cut) in (0, stop)
    assert produce_requests.only_topic(version, body, 0, stop - 1) == 0
    for other in (
        produce_body(version, [("abc", [1]), ("d", [2])]),
        produce_body(version, []),
        produce_body(version, [("abc", [1])], transactional_id="t"),
    ):
        assert produce_requests.only_topic(version, tags + other, 0, len(tags + other)) == 0


@pytest.mark.parametrize(
    ("attributes", "transactional"), [(0, False), (0x10, True), (0x30, True), (0x20, False)]
)
def test_records_of_a_transaction_are_known(attributes: int, transactional: bool) -> None:
    batch = bytearray(80)
    batch[16], batch[22] = 2, attributes
    (topic,) = produce_requests.parse(9, produce_body(9, [("a", [0])], records=bytes(batch))).topics
    assert topic.transactional is transactional


def seen(walk: Callable[..., Any], version: int, body: bytes) -> Any:
    """Return what the walk sees of it, whatever bytes follow."""
    found = [
        walk(version, b"\0" + body + behind, 0, 1 + len(body))
        for behind in (b"", bytes(200), b"\1" * 200)
    ]
    assert found == found[:1] * 3
    return found[0]


NUMBERS = {
    *("partition", "current_leader_epoch", "fetch_offset", "last_fetched_epoch"),
    *("log_start_offset", "partition_max_bytes"),
    *("partition_index", "committed_offset", "committed_leader_epoch"),
}


def without_numbers(message: Any, items: str) -> Any:
    """A request in which every number of a partition is -1."""
    return replace(
        message,
        **{
            items: tuple(
                replace(
                    topic,
                    partitions=tuple(
                        replace(partition, **dict.fromkeys(NUMBERS & asdict(partition).keys(), -1))
                        for partition in topic.partitions
                    ),
                )
                for topic in getattr(message, items)
            )
        },
    )


@pytest.mark.parametrize("version", range(12, 19))
@settings(max_examples=60, deadline=None)
@given(topics=TOPICS, changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255))))
def test_a_plain_fetch_is_what_the_whole_message_says(
    version: int, topics: list[tuple[str, list[int]]], changes: list[tuple[int, int]]
) -> None:
    """Whatever bytes a client sends: the quick look agrees with the whole one, or gives up."""
    body = bytearray(fetch_body(version, topics))
    if not changes:
        assert seen(fetch_requests.plain, version, bytes(body)) is not None
    for at, byte in changes:
        body[at % len(body)] = byte
    plain = seen(fetch_requests.plain, version, bytes(body))
    if plain is None or (version < 13 and not all(map(is_text, plain.topics))):
        return  # invalid text is never allowed
    message: Any = decode(request_type(1, version), bytes(body))
    if version < 15:
        assert message.replica_id == -1
    else:
        assert message.replica_state.replica_id == -1
    assert plain[:2] == (message.session_id, message.session_epoch)
    assert plain.max_bytes == message.max_bytes
    assert int.from_bytes(body[plain.epoch_at - 1 :][:4], signed=True) == plain.epoch
    said = [
        one.topic.encode() if version < 13 else (one.topic_id or uuid.UUID(int=0)).bytes
        for one in message.topics
    ]
    assert plain.topics == said
    for start, end in plain.numbers:
        body[start - 1 : end - 1] = b"\xff" * (end - start)
    assert bytes(body) == encode(without_numbers(message, "topics"))


@pytest.mark.parametrize("version", range(9, 14))
@settings(max_examples=60, deadline=None)
@given(topics=TOPICS, changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255))))
def test_a_plain_produce_is_what_the_whole_message_says(
    version: int, topics: list[tuple[str, list[int]]], changes: list[tuple[int, int]]
) -> None:
    body = bytearray(produce_body(version, topics))
    if not changes:
        assert seen(produce_requests.plain_topics, version, bytes(body)) is not None
    for at, byte in changes:
        body[at % len(body)] = byte
    plain = seen(produce_requests.plain_topics, version, bytes(body))
    if plain is None or (version < 13 and not all(map(is_name, plain))):
        return
    request = produce_requests.parse(version, bytes(body))
    assert request.transactional_id is None
    said = [
        one.topic_id or (write_string(one.name, True) if one.name is not None else b"")
        for one in request.topics
    ]
    assert plain == said


def test_a_produce_of_hundreds_of_partitions_is_not_plain() -> None:
    """To look at so many each time would keep others waiting."""
    each = produce_requests.MAX_PLAIN_PARTITIONS // 4
    for more, is_plain in ((0, True), (1, False)):
        topics = [(f"t{number}", list(range(each))) for number in range(3)]
        topics.append(("last", list(range(each + more))))
        plain = seen(produce_requests.plain_topics, 12, produce_body(12, topics))
        assert (plain is not None) is is_plain


@pytest.mark.parametrize("version", range(8, 11))
@settings(max_examples=60, deadline=None)
@given(topics=TOPICS, changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255))))
def test_the_numbers_of_a_commit_are_nothing_else(
    version: int, topics: list[tuple[str, list[int]]], changes: list[tuple[int, int]]
) -> None:
    """Whatever bytes a client sends: what is passed over says nothing that matters."""
    numbers = {"committed_offset": 9, "committed_leader_epoch": 2}
    entries = [
        {
            "name": name,
            "topic_id": topic_id(name),
            "partitions": [
                {"partition_index": index, "committed_metadata": name} | numbers
                for index in partitions
            ],
        }
        for name, partitions in topics
    ]
    body = bytearray(
        request_body(
            OFFSET_COMMIT,
            version,
            group_id="group",
            member_id="member",
            generation_id_or_member_epoch=3,
            topics=entries,
        )
    )
    whole = seen(commit_requests.numbers, version, bytes(body))
    if not changes:
        assert whole is not None
        assert len(whole) == sum(len(partitions) for _, partitions in topics)
    for at, byte in changes:
        body[at % len(body)] = byte
    found = seen(commit_requests.numbers, version, bytes(body))
    if found is None:
        return
    try:
        message = decode(request_type(OFFSET_COMMIT, version), bytes(body))
    except Malformed:
        return  # invalid text
    for start, end in found:
        body[start - 1 : end - 1] = b"\xff" * (end - start)
    assert bytes(body) == encode(without_numbers(message, "topics"))
