"""Items of large responses, found in the bytes, against the codec."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.scheduling.steps import in_steps
from proxy.wire.codec import decode, encode
from proxy.wire.items import Items
from proxy.wire.messages import (
    DescribeTopicPartitionsResponse,
    ListGroupsResponse,
    MetadataResponse,
    replace,
)
from proxy.wire.primitives import Malformed
from proxy.wire.schema import Message

LISTS: list[tuple[type[Message], str, str]] = [
    (MetadataResponse, "topics", "name"),
    (DescribeTopicPartitionsResponse, "topics", "name"),
    (ListGroupsResponse, "groups", "group_id"),
]
EVERY_VERSION = [
    pytest.param(kind, array, name, version, id=f"{kind.__name__}-v{version}")
    for kind, array, name in LISTS
    for version in range(kind.HEAD.versions.first, kind.HEAD.versions.last + 1)
]

nodes = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40).map(tuple)
names = st.text(max_size=6) | st.integers(100, 300).map(lambda length: "n" * length)
partitions = st.builds(
    MetadataResponse.MetadataResponsePartition, leader_id=st.integers(0, 9), replica_nodes=nodes
)
topics = st.builds(
    MetadataResponse.MetadataResponseTopic,
    error_code=st.integers(-1, 200),
    name=names,
    topic_id=st.binary(min_size=16, max_size=16),
    partitions=st.lists(partitions, max_size=3).map(tuple)
    | st.builds(lambda one, count: (one,) * count, partitions, st.sampled_from([32, 33, 200])),
)


def contents(items: Items) -> list[bytes]:
    return [items.content(place) for place in range(len(items.names))]


def a_response(kind: type[Message], count: int) -> Message:
    name = "\N{LATIN SMALL LETTER U WITH DIAERESIS}-%d"
    if kind is ListGroupsResponse:
        group = ListGroupsResponse.ListedGroup
        listed = (group(group_id=name % one, protocol_type="consumer") for one in range(count))
        return ListGroupsResponse(groups=tuple(listed))
    if kind is MetadataResponse:
        topic = MetadataResponse.MetadataResponseTopic
        partition = MetadataResponse.MetadataResponsePartition(replica_nodes=(1, 2), isr_nodes=(1,))
        broker = MetadataResponse.MetadataResponseBroker(host="h", port=9092)
        shown = (topic(name=name % one, partitions=(partition,) * one) for one in range(count))
        return MetadataResponse(brokers=(broker,) * 3, topics=tuple(shown))
    described = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    elr = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
        replica_nodes=(1, 2, 3), eligible_leader_replicas=(1,), last_known_elr=None
    )
    whole = (described(name=name % one, partitions=(elr,) * one) for one in range(count))
    return DescribeTopicPartitionsResponse(topics=tuple(whole))


@pytest.mark.parametrize(("kind", "array", "name", "version"), EVERY_VERSION)
def test_items_are_those_of_the_codec(
    kind: type[Message], array: str, name: str, version: int
) -> None:
    response = a_response(kind, 40)
    body = encode(response, version)
    items = Items(kind, version, array, body)
    whole = getattr(response, array)
    assert items.names == [getattr(one, name) for one in whole]
    assert contents(items) == [encode(one, version) for one in whole]
    assert items.replaced(contents(items)) == body
    some = contents(items)[1::3]
    assert decode(kind, version, items.replaced(some)) == decode(
        kind,
        version,
        encode(replace(response, **{array: whole[1::3]}), version),  # type: ignore[type-var]
    )


@pytest.mark.parametrize(("kind", "array", "name", "version"), EVERY_VERSION)
def test_a_response_cut_inside_the_items_is_malformed(
    kind: type[Message], array: str, name: str, version: int
) -> None:
    del name
    body = encode(a_response(kind, 4), version)
    end = Items(kind, version, array, body).end
    for length in range(end):
        with pytest.raises(Malformed):
            Items(kind, version, array, body[:length])


@given(found=st.lists(topics, max_size=4).map(tuple), version=st.integers(0, 13))
@settings(max_examples=150, deadline=None)
def test_any_topics_are_found(
    found: tuple[MetadataResponse.MetadataResponseTopic, ...], version: int
) -> None:
    """Whether the pattern of an item matches or the codec reads it."""
    body = encode(MetadataResponse(topics=found), version)
    items = Items(MetadataResponse, version, "topics", body)
    assert items.names == [one.name for one in found]
    assert contents(items) == [encode(one, version) for one in found]
    for place, one in enumerate(found):
        assert items.content(place)[: items.name_end(place)].endswith((one.name or "").encode())


@given(
    position=st.integers(0, 400),
    lie=st.sampled_from([b"\xff", b"\x80", b"\x00", b"\x7f\xff\xff\xff", b"\x01"]),
    version=st.integers(0, 13),
)
@settings(max_examples=300, deadline=None)
def test_a_lying_byte_raises_nothing_but_malformed(position: int, lie: bytes, version: int) -> None:
    """The walk finds in such bytes what the codec reads, except text that is not a name."""
    body = encode(a_response(MetadataResponse, 6), version)
    lying = body[:position] + lie + body[position + len(lie) :]
    try:
        expected = [one.name for one in decode(MetadataResponse, version, lying).topics]
    except Malformed:
        expected = None
    try:
        found = Items(MetadataResponse, version, "topics", lying).names
    except Malformed:
        return
    assert expected is None or found == expected


def test_names_that_are_null_and_unknown_tags() -> None:
    topic = MetadataResponse.MetadataResponseTopic(error_code=100, name=None)
    body = encode(MetadataResponse(topics=(topic, topic)), 13)
    entry = encode(topic, 13)
    tagged = body.replace(entry, entry[:-1] + b"\x01\x63\x02hi", 1)
    items = Items(MetadataResponse, 13, "topics", tagged)
    assert items.names == [None, None]
    assert contents(items) == [entry, entry], "what is not known is not passed on"
    assert items.replaced(contents(items)) == body


def test_a_large_response_is_read_in_steps() -> None:
    body = encode(a_response(ListGroupsResponse, 2_000), 5)
    steps = in_steps(
        lambda: len(Items(ListGroupsResponse, 5, "groups", body).names), max_values=0, seconds=0
    )
    assert sum(1 for _ in steps) > 50


def test_a_count_that_no_message_can_have_ends_at_the_end() -> None:
    body = encode(ListGroupsResponse(), 2)[:-4] + b"\x7f\xff\xff\xff"
    with pytest.raises(Malformed, match="ends inside"):
        Items(ListGroupsResponse, 2, "groups", body)
