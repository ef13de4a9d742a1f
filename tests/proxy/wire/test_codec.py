"""The codec against kio, and against bytes that lie."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.scheduling.steps import in_steps
from proxy.wire.apis import APIS
from proxy.wire.codec import Unwritable, decode, encode
from proxy.wire.items import Items
from proxy.wire.messages import (
    CreateAclsRequest,
    DescribeAclsRequest,
    DescribeTopicPartitionsResponse,
    ElectLeadersResponse,
    FetchRequest,
    ListGroupsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetFetchRequest,
    ShareFetchRequest,
    replace,
)
from proxy.wire.primitives import Malformed
from proxy.wire.schema import Field, Message
from tests.support import kio_messages
from tests.support.kio_messages import strict
from tests.support.messages import LARGE, large, request_kind, response_kind, small

EVERY_KIND = pytest.mark.parametrize(
    "kind", [kind(api.key) for api in APIS.values() for kind in (request_kind, response_kind)]
)


def versions(kind: type[Message]) -> range:
    """The versions that are known of it; a test of each of them would take longer to collect."""
    api = APIS[kind.HEAD.api_key]
    return range(api.min_version, api.max_version + 1)


def schema_of_kio(kind: type[Message], version: int) -> Any:
    is_request = kind.__name__.endswith("Request")
    of_kio = kio_messages.request_type if is_request else kio_messages.response_type
    return of_kio(kind.HEAD.api_key, version)


@EVERY_KIND
@pytest.mark.parametrize("make", [small, large])
def test_reads_and_writes_what_kio_does(kind: type[Message], make: Any) -> None:
    for version in versions(kind):
        schema = schema_of_kio(kind, version)
        entity = make(schema)
        assert strict.encode(entity) == kio_messages.encode(entity)
        assert strict.decode(schema, kio_messages.encode(entity)) == entity


@EVERY_KIND
def test_a_message_cut_anywhere_is_malformed(kind: type[Message]) -> None:
    """Only Malformed is raised: untrusted bytes must not reach any other handler."""
    for version in versions(kind):
        data = kio_messages.encode(large(schema_of_kio(kind, version)))
        step = max(1, len(data) // 150)
        for length in range(0, len(data), step):
            with pytest.raises(Malformed):
                decode(kind, version, data[:length])


@EVERY_KIND
def test_a_lying_byte_raises_nothing_but_malformed(kind: type[Message]) -> None:
    """Each lie is a length, a count, a tag or a value somewhere: what can be read is written."""
    for version in versions(kind):
        data = kio_messages.encode(large(schema_of_kio(kind, version)))
        step = max(1, len(data) // 60)
        for position in range(0, len(data), step):
            for lie in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x80"):
                lying = data[:position] + lie + data[position + len(lie) :]
                try:
                    again = encode(decode(kind, version, lying), version)
                except Malformed:
                    continue
                assert encode(decode(kind, version, again), version) == again


@EVERY_KIND
def test_null_is_refused_where_it_may_not_be(kind: type[Message]) -> None:
    """Read and written: what one side takes for empty, the other must not take for nothing."""
    for version in versions(kind):
        whole = decode(kind, version, kio_messages.encode(large(schema_of_kio(kind, version))))
        for field in kind.FIELDS:
            if field.versions.has(version) and _has_null(field) and not field.null.has(version):
                with pytest.raises(Unwritable):
                    encode(replace(whole, **{field.name: None}), version)  # type: ignore[type-var]


def _has_null(field: Field) -> bool:
    return field.tag is None and (field.is_array or field.kind in ("string", "bytes"))


LONG_NAME = LARGE["string"]


def test_begins_where_it_is_told_and_ignores_what_follows() -> None:
    """Kafka ignores bytes after a body, and a body follows a header."""
    entity = MetadataRequest(topics=(MetadataRequest.MetadataRequestTopic(name=LONG_NAME),))
    assert decode(MetadataRequest, 12, b"header" + encode(entity, 12) + b"more", 6) == entity


@pytest.mark.parametrize("version", [-1, 14, 32_767])
def test_a_version_that_a_message_does_not_have_is_malformed(version: int) -> None:
    with pytest.raises(Malformed, match=f"MetadataRequest has no version {version}"):
        decode(MetadataRequest, version, bytes(100))


@pytest.mark.parametrize(
    ("version", "data"),
    [
        pytest.param(4, b"\x7f\xff\xff\xff" + bytes(8), id="int32"),
        pytest.param(12, b"\xff\xff\xff\xff\x07" + bytes(8), id="varint"),
        pytest.param(12, b"\x06" + bytes(17 * 4), id="one item more than fits"),
        pytest.param(12, b"\xff\xff\xff\xff\xff" + bytes(8), id="varint without end"),
        pytest.param(12, b"\xff\xff\xff\xff\x0f" + bytes(8), id="varint below zero"),
    ],
)
def test_an_array_that_cannot_fit_is_refused_before_its_first_item(
    version: int, data: bytes
) -> None:
    with pytest.raises(Malformed, match=r"longer than|varint"):
        decode(MetadataRequest, version, data)


def test_unknown_tagged_fields_are_skipped() -> None:
    """A newer client may say more than this proxy knows (KIP-482)."""
    entity = MetadataRequest()
    data = encode(entity, 12)
    assert data.endswith(b"\x00")
    assert decode(MetadataRequest, 12, data[:-1] + b"\x02\x05\x03abc\xe8\x07\x00") == entity


@pytest.mark.parametrize(
    "tags",
    [
        pytest.param(b"\x01\x00\x04\x02ab", id="value shorter than claimed"),
        pytest.param(b"\x01\x00\x01\x03ab", id="value longer than claimed"),
        pytest.param(b"\x01\x05\x03ab", id="unknown tag that ends outside"),
        pytest.param(b"\x02\x05\x00", id="fewer tags than claimed"),
        pytest.param(b"\xff\xff\xff\xff\x07", id="very many tags"),
    ],
)
def test_tagged_fields_must_be_what_they_claim(tags: bytes) -> None:
    """Kafka goes by the value and forgets the size: two readers must not read two things."""
    data = encode(FetchRequest(), 17)
    assert data.endswith(b"\x00")
    with pytest.raises(Malformed):
        decode(FetchRequest, 17, data[:-1] + tags)


def test_a_tagged_field_at_its_default_is_not_written() -> None:
    plain_bytes = encode(FetchRequest(), 17)
    assert encode(FetchRequest(cluster_id="c"), 17) == plain_bytes[:-1] + b"\x01\x00\x02\x02c"


def test_null_and_text_that_is_not_utf8_are_refused() -> None:
    data = kio_messages.encode(large(kio_messages.request_type(3, 4)))
    assert data[4:6] == b"\x00\xaf"
    with pytest.raises(Malformed, match="null"):
        decode(MetadataRequest, 4, data[:4] + b"\xff\xff" + data[6:])
    with pytest.raises(Malformed, match="UTF-8"):
        decode(MetadataRequest, 4, data[:6] + b"\xff" + data[7:])


def test_a_field_that_the_version_lacks_holds_its_default() -> None:
    request = decode(MetadataRequest, 0, bytes(4))
    assert request.allow_auto_topic_creation
    acls = decode(DescribeAclsRequest, 0, b"\x02" + b"\xff\xff" * 3 + b"\x01\x01")
    assert acls.pattern_type_filter == 3


@pytest.mark.parametrize(
    ("entity", "version"),
    [
        (MetadataRequest(allow_auto_topic_creation=False), 3),
        (ElectLeadersResponse(error_code=31), 0),
        (OffsetFetchRequest(group_id="g"), 8),
        (CreateAclsRequest(creations=(CreateAclsRequest.AclCreation(resource_pattern_type=4),)), 0),
        (ShareFetchRequest(member_id="", is_renew_ack=True), 1),
    ],
)
def test_what_would_be_lost_is_not_written(entity: Message, version: int) -> None:
    """A request that was rewritten must not mean less than before."""
    with pytest.raises(Unwritable, match="this version has no "):
        encode(entity, version)


def test_what_kafka_lets_be_lost_is_left_out() -> None:
    response = MetadataResponse(throttle_time_ms=5, cluster_id="c", controller_id=1)
    assert decode(MetadataResponse, 0, encode(response, 0)) == MetadataResponse()


@pytest.mark.parametrize("value", [2**62, -5])
def test_numbers_are_numbers_whatever_they_mean(value: int) -> None:
    """A moment without a year, an error code of a later Kafka: neither must lose a response."""
    topic = MetadataResponse.MetadataResponseTopic(error_code=999)
    response = MetadataResponse(topics=(topic,))
    assert decode(MetadataResponse, 12, encode(response, 12)).topics[0].error_code == 999
    partition = FetchRequest.FetchPartition(fetch_offset=value)
    request = FetchRequest(topics=(FetchRequest.FetchTopic(partitions=(partition,)),))
    read = decode(FetchRequest, 9, encode(request, 9))
    assert read.topics[0].partitions[0].fetch_offset == value


def test_threads_that_need_a_type_first_get_the_same() -> None:
    """Requests are decoded in threads, too, and a type is completed when one first needs it."""
    program = """
import sys, threading
from proxy.wire import messages
sys.setswitchinterval(1e-6)
kinds = [messages.MetadataResponse, messages.FetchResponse, messages.StreamsGroupDescribeResponse]
found = []
together = threading.Barrier(8)
def use():
    together.wait()
    found.append([
        messages.MetadataResponse.MetadataResponseTopic,
        messages.FetchResponse.PartitionData,
        messages.StreamsGroupDescribeResponse.Member,
        *(id(kind.FIELDS) for kind in kinds),
    ])
threads = [threading.Thread(target=use) for _ in range(8)]
for one in threads: one.start()
for one in threads: one.join()
assert len(found) == 8 and all(one == found[0] for one in found), found
print("same")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "same\n", done.stderr


# --- items of large responses, found in the bytes, against the codec

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
def test_a_lying_byte_of_a_walk_raises_nothing_but_malformed(
    position: int, lie: bytes, version: int
) -> None:
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
