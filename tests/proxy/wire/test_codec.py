"""The codec against kio's own reader and writer, and against bytes that lie."""

from dataclasses import replace
from typing import Any

import pytest
from kio.serial import entity_reader

from proxy.wire.apis import APIS, Kind
from proxy.wire.codec import decode, encode, request_type, response_type
from proxy.wire.primitives import Malformed
from tests.support.messages import large, small, written

SCHEMAS = [
    pytest.param(schema(api.key, version), id=f"{api.name}-{schema.__name__}-v{version}")
    for api in APIS.values()
    if api.kind is not Kind.NOT_OFFERED
    for version in range(api.min_version, api.max_version + 1)
    for schema in (request_type, response_type)
]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("make", [small, large])
def test_reads_and_writes_what_kio_does(schema: type[Any], make: Any) -> None:
    entity = make(schema)
    data = written(entity)
    assert encode(entity) == data
    assert decode(schema, data) == entity == entity_reader(schema)(data, 0)[0]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_message_cut_anywhere_is_malformed(schema: type[Any]) -> None:
    """And nothing but Malformed comes out: untrusted bytes must not reach any other handler."""
    data = written(large(schema))
    step = max(1, len(data) // 150)
    for length in range(0, len(data), step):
        with pytest.raises(Malformed):
            decode(schema, data[:length])


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_lying_byte_raises_nothing_but_malformed(schema: type[Any]) -> None:
    """Each lie is a length, a count, a tag or a value somewhere: what can be read is written."""
    data = written(large(schema))
    step = max(1, len(data) // 60)
    for position in range(0, len(data), step):
        for lie in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x80"):
            lying = data[:position] + lie + data[position + len(lie) :]
            try:
                again = encode(decode(schema, lying))
            except Malformed:
                continue
            assert encode(decode(schema, again)) == again


METADATA = request_type(3, 12)
OLD_METADATA = request_type(3, 4)
FETCH = request_type(1, 17)


def test_begins_where_it_is_told_and_ignores_what_follows() -> None:
    """Kafka ignores bytes behind a body, and a body stands behind a header."""
    entity = large(METADATA)
    assert decode(METADATA, b"header" + encode(entity) + b"more", 6) == entity


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        pytest.param(OLD_METADATA, b"\x7f\xff\xff\xff" + bytes(8), id="int32"),
        pytest.param(METADATA, b"\xff\xff\xff\xff\x07" + bytes(8), id="varint"),
        pytest.param(METADATA, b"\x06" + bytes(17 * 4), id="one item more than fits"),
        pytest.param(METADATA, b"\xff\xff\xff\xff\xff" + bytes(8), id="varint without end"),
        pytest.param(METADATA, b"\xff\xff\xff\xff\x0f" + bytes(8), id="varint below zero"),
    ],
)
def test_an_array_that_cannot_fit_is_refused_before_its_first_item(
    schema: type[Any], data: bytes
) -> None:
    with pytest.raises(Malformed, match=r"longer than|varint"):
        decode(schema, data)


def test_unknown_tagged_fields_are_skipped() -> None:
    """A newer client may say more than this proxy knows (KIP-482)."""
    entity = small(METADATA)
    data = encode(entity)
    assert data.endswith(b"\x00")
    assert decode(METADATA, data[:-1] + b"\x02\x05\x03abc\xe8\x07\x00") == entity


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
    data = encode(small(FETCH))
    assert data.endswith(b"\x00")
    with pytest.raises(Malformed):
        decode(FETCH, data[:-1] + tags)


def test_a_tagged_field_at_its_default_is_not_written() -> None:
    entity = replace(small(FETCH), cluster_id="c")
    assert encode(entity) == encode(small(FETCH))[:-1] + b"\x01\x00\x02\x02c"


@pytest.mark.parametrize(
    ("api_key", "version", "name", "value"),
    [
        pytest.param(0, 8, "log_append_time", 2**62, id="a moment without a year"),
        pytest.param(0, 8, "log_append_time", -5, id="a moment before the epoch"),
        pytest.param(0, 8, "error_code", 999, id="an error code of a later Kafka"),
    ],
)
def test_what_python_cannot_express_stays_a_number(
    api_key: int, version: int, name: str, value: int
) -> None:
    """A response must not be lost because of one odd record's timestamp."""
    schema = response_type(api_key, version)
    entity = large(schema)
    topic = entity.responses[0]
    partition = replace(topic.partition_responses[0], **{name: value})
    entity = replace(entity, responses=(replace(topic, partition_responses=(partition,)),))
    read = decode(schema, encode(entity))
    assert getattr(read.responses[0].partition_responses[0], name) == value
    assert read == entity


def test_an_endless_duration_stays_a_number() -> None:
    """A retention of Long.MAX_VALUE is a legal wish of old clients."""
    entity = replace(large(request_type(8, 2)), retention_time=2**63 - 1)
    assert decode(type(entity), encode(entity)) == entity


def test_null_and_text_that_is_not_utf8_are_refused() -> None:
    data = encode(large(OLD_METADATA))
    assert data[4:6] == b"\x00\xaf"
    with pytest.raises(Malformed, match="null"):
        decode(OLD_METADATA, data[:4] + b"\xff\xff" + data[6:])
    with pytest.raises(Malformed, match="UTF-8"):
        decode(OLD_METADATA, data[:6] + b"\xff" + data[7:])
