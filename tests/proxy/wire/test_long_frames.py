"""Responses cut through as they arrive: the same length, and no endpoint that a client sees."""

import struct
from contextlib import suppress
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema

from proxy.errors import BrokerFault
from proxy.wire.apis import APIS, FETCH, PRODUCE, SHARE_ACKNOWLEDGE, SHARE_FETCH, carries_addresses
from proxy.wire.primitives import uvarint
from proxy.wire.walks import APIS_CUT_THROUGH, UNKNOWN_TAG, LongFrameEndpoints
from tests.support.responses import Entity, encode, entities, judge, pass_through, responses

CUT_THROUGH = [
    (api_key, version)
    for api_key in sorted(APIS_CUT_THROUGH)
    for version in range(APIS[api_key].max_version + 1)
    if carries_addresses(api_key, version)
]


@pytest.mark.parametrize(("api_key", "version"), CUT_THROUGH)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_end_points_vanish_and_all_else_stays(
    api_key: int, version: int, data: st.DataObject
) -> None:
    entity = data.draw(responses(api_key, version))
    body = encode(entity)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    judge(entity, body, pass_through(api_key, version, body, cuts))


@cache
def _endpoint(api_key: int, version: int) -> Entity:
    """A response with one endpoint and no other content."""
    schema = load_response_schema(api_key, version)
    entity = entities(schema).filter(lambda one: one.node_endpoints).example()
    endpoint = replace(entity.node_endpoints[0], host="broker.example", rack=None)
    return replace(entity, responses=(), node_endpoints=(endpoint,))


@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 126, 127, 200])
@pytest.mark.parametrize("api_key", [FETCH, PRODUCE, SHARE_FETCH, SHARE_ACKNOWLEDGE])
def test_any_number_of_end_points_byte_by_byte(api_key: int, count: int) -> None:
    """The count is a varint of one or two bytes, and may itself be cut in two."""
    version = APIS[api_key].max_version
    entity = _endpoint(api_key, version)
    entity = replace(entity, node_endpoints=entity.node_endpoints * count)
    body = encode(entity)
    judge(entity, body, pass_through(api_key, version, body, list(range(1, len(body)))))


def test_every_size_of_a_swallowed_array() -> None:
    """Sizes around 128 and 16,384 need a padded varint: its own width changes the rest."""
    head = struct.pack(">ixihxi", 0x01020304, 0, 0, 0) + b"\x01"
    for size in (*range(11, 300), *range(16_380, 16_400)):
        received = pass_through(SHARE_FETCH, 1, head + b"\x02" + bytes(size), [])
        assert received.startswith(head + bytes((1, 1, UNKNOWN_TAG)))
        length, start = uvarint(received, len(head) + 3)
        assert start + length == len(head) + 1 + size


@pytest.mark.parametrize(("api_key", "version"), CUT_THROUGH)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_garbage_is_the_brokers_fault(api_key: int, version: int, data: st.DataObject) -> None:
    """Nothing a broker sends raises anything else, and a frame never changes its length."""
    body = bytearray(encode(data.draw(responses(api_key, version))))
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(4, len(body) - 1))] = data.draw(st.integers(0, 255))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=4)))
    with suppress(BrokerFault):
        assert len(pass_through(api_key, version, bytes(body), cuts)) == len(body)


def test_a_body_that_ends_inside_a_structure_is_noticed_with_its_last_byte() -> None:
    """Bytes that were sent on cannot be taken back, but the connection must end."""
    head = struct.pack(">ixihi", 0x01020304, 0, 0, 0)
    with pytest.raises(BrokerFault):
        pass_through(FETCH, 16, head + b"\x02" + bytes(10), [])


def test_more_bytes_than_the_frame_has_are_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        LongFrameEndpoints(FETCH, 16, 3).feed(memoryview(bytearray(4)))
