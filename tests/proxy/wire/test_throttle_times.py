"""kio's schemas as judge: no API or version with a throttle time is missed, no other byte moves."""

import sys
from contextlib import suppress
from dataclasses import fields, replace
from datetime import timedelta
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.static.primitive import i32Timedelta

from proxy.errors import BrokerFault
from proxy.wire.apis import APIS, PRODUCE, Kind
from proxy.wire.primitives import INT32
from proxy.wire.throttle_times import (
    HEAD,
    has_throttle_time,
    is_first,
    patch,
    patch_in_place,
    place,
)
from tests.support.kio_messages import response_type
from tests.support.responses import decode, encode, responses

OFFERED = [
    (api.key, version)
    for api in APIS.values()
    if api.kind is not Kind.NOT_OFFERED
    for version in range(api.min_version, api.max_version + 1)
]
TELLING = [one for one in OFFERED if has_throttle_time(*one)]
ALL = [(api.key, v) for api in APIS.values() for v in range(api.min_version, api.max_version + 1)]


def in_schema(api_key: int, version: int) -> int | None:
    """The field's number in the schema."""
    names = [field.name for field in fields(response_type(api_key, version))]
    return names.index("throttle_time") if "throttle_time" in names else None


def test_no_version_is_missed_and_where_it_is_first_is_known() -> None:
    """Only there is the head of a long response enough."""
    for one in ALL:
        assert has_throttle_time(*one) is (in_schema(*one) is not None), one
    for one in OFFERED:
        assert is_first(*one) is (in_schema(*one) == 0), one
    assert len(TELLING) > 150


@pytest.mark.parametrize(("api_key", "version"), TELLING)
@settings(max_examples=3, deadline=None)
@given(data=st.data(), ours=st.integers(1, 2**31 - 1))
def test_the_greater_throttle_time_is_told(
    api_key: int, version: int, data: st.DataObject, ours: int
) -> None:
    entity = data.draw(responses(api_key, version))
    whole = encode(entity)
    theirs = entity.throttle_time // timedelta(milliseconds=1)
    reported = i32Timedelta.parse(timedelta(milliseconds=max(theirs, ours)))

    patched = patch(api_key, version, whole, ours)

    assert decode(api_key, version, patched) == replace(entity, throttle_time=reported)
    assert patch(api_key, version, whole, 0) == whole
    if is_first(api_key, version):
        head = bytearray(whole[:HEAD])
        patch_in_place(api_key, version, memoryview(head), ours)
        assert head == patched[:HEAD]


@pytest.mark.parametrize(("api_key", "version"), [one for one in OFFERED if one not in TELLING])
def test_what_has_no_such_field_is_left_alone(api_key: int, version: int) -> None:
    assert place(api_key, version, b"") is None
    assert patch(api_key, version, b"whatever", 7) == b"whatever"


@settings(max_examples=30, deadline=None)
@given(content=st.binary(max_size=60))
def test_garbage_is_the_brokers_fault(content: bytes) -> None:
    for api_key, version in TELLING:
        with suppress(BrokerFault):
            assert len(patch(api_key, version, content, 7)) == len(content)


def test_tags_in_the_header_are_passed_over() -> None:
    """KIP-482: a newer broker may have something to say there."""
    content = b"\x00\x00\x00\x01" + b"\x01\x05\x02ab" + b"\x00\x00\x00\x00" + b"\x00" * 20
    patched = patch(1, 12, content, 258)
    assert patched == content[:9] + b"\x00\x00\x01\x02" + content[13:]


CORRELATION_ID = b"\x00" * 4
ONE_TOPIC = b"\x00\x00\x00\x01" + b"\x00\x01t"


@pytest.mark.parametrize("claim", [b"\x7f\xff\xff\xff", b"\x00\x0f\x00\x00"])
@pytest.mark.parametrize(
    ("api_key", "version", "before"),
    [
        (0, 3, b""),
        (0, 8, b""),
        (0, 1, ONE_TOPIC),
        (0, 7, ONE_TOPIC),
        (0, 8, ONE_TOPIC),
        (18, 1, b"\x00\x00"),
    ],
)
def test_an_array_that_claims_billions_ends_at_once(
    api_key: int, version: int, before: bytes, claim: bytes
) -> None:
    """No step is taken for an item that is not there."""
    content = CORRELATION_ID + before + claim + bytes(9)
    steps = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal steps
        # a garbage collection in between calls functions of others
        steps += event == "call" and frame.f_globals["__name__"].startswith("proxy.")

    sys.setprofile(count)
    try:
        with pytest.raises(BrokerFault):
            patch(api_key, version, content, 1)
    finally:
        sys.setprofile(None)
    assert steps < 50


@pytest.mark.parametrize(("version", "partition"), [(1, 4 + 2 + 8), (2, 4 + 2 + 8 + 8)])
def test_produce_of_versions_that_only_old_brokers_have(version: int, partition: int) -> None:
    topic = INT32.pack(1) + b"\0\x01t" + INT32.pack(3) + b"p" * 3 * partition
    content = INT32.pack(9) + topic + INT32.pack(5)
    assert patch(PRODUCE, version, content, 70) == content[:-4] + INT32.pack(70)
    assert patch(PRODUCE, 0, content, 70) == content
