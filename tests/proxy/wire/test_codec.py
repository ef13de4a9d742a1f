"""The codec against kio, and against bytes that lie."""

import subprocess
import sys
from typing import Any

import pytest

from proxy.wire.apis import APIS
from proxy.wire.codec import Unwritable, decode, encode
from proxy.wire.messages import (
    CreateAclsRequest,
    DescribeAclsRequest,
    ElectLeadersResponse,
    FetchRequest,
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

VERSIONS = [
    pytest.param(kind(api.key), version, id=f"{kind(api.key).__name__}-v{version}")
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
    for kind in (request_kind, response_kind)
]


def schema_of_kio(kind: type[Message], version: int) -> Any:
    is_request = kind.__name__.endswith("Request")
    of_kio = kio_messages.request_type if is_request else kio_messages.response_type
    return of_kio(kind.HEAD.api_key, version)


@pytest.mark.parametrize(("kind", "version"), VERSIONS)
@pytest.mark.parametrize("make", [small, large])
def test_reads_and_writes_what_kio_does(kind: type[Message], version: int, make: Any) -> None:
    schema = schema_of_kio(kind, version)
    entity = make(schema)
    assert strict.encode(entity) == kio_messages.encode(entity)
    assert strict.decode(schema, kio_messages.encode(entity)) == entity


@pytest.mark.parametrize(("kind", "version"), VERSIONS)
def test_a_message_cut_anywhere_is_malformed(kind: type[Message], version: int) -> None:
    """Only Malformed is raised: untrusted bytes must not reach any other handler."""
    data = kio_messages.encode(large(schema_of_kio(kind, version)))
    step = max(1, len(data) // 150)
    for length in range(0, len(data), step):
        with pytest.raises(Malformed):
            decode(kind, version, data[:length])


@pytest.mark.parametrize(("kind", "version"), VERSIONS)
def test_a_lying_byte_raises_nothing_but_malformed(kind: type[Message], version: int) -> None:
    """Each lie is a length, a count, a tag or a value somewhere: what can be read is written."""
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


@pytest.mark.parametrize(("kind", "version"), VERSIONS)
def test_null_is_refused_where_it_may_not_be(kind: type[Message], version: int) -> None:
    """Read and written: what one side takes for empty, the other must not take for nothing."""
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
