"""Untrusted request headers: what Kafka accepts is accepted, and kept bytes are bounded."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ClientFault
from proxy.wire.request import MAX_CHARACTERS_KEPT, parse_request


def content(length: int, rest: bytes) -> bytes:
    return struct.pack(">hhih", 17, 1, 7, length) + rest


def test_a_client_id_that_is_not_utf_8_is_replaced() -> None:
    assert parse_request(content(3, b"a\xffb")).client_id == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize("length", [-1, -2, -32768])
def test_any_negative_length_is_null(length: int) -> None:
    request = parse_request(content(length, b"body"))
    assert request.client_id is None
    assert request.body == b"body"


@given(client_id=st.binary(max_size=3000) | st.text(max_size=3000).map(str.encode))
def test_what_is_kept_of_a_client_id_is_bounded(client_id: bytes) -> None:
    request = parse_request(content(len(client_id), client_id + b"body"))
    assert request.client_id == client_id.decode(errors="replace")[:MAX_CHARACTERS_KEPT]
    assert request.body == b"body"


@pytest.mark.parametrize("bad", [b"", b"\0" * 9, content(5, b"four"), content(32767, b"")])
def test_a_header_beyond_the_frame_is_the_clients_fault(bad: bytes) -> None:
    with pytest.raises(ClientFault):
        parse_request(bad)
