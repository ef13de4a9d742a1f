"""Readers never leave the view, and agree with the writers."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire import primitives
from proxy.wire.primitives import Malformed


@given(value=st.integers(0, 2**31 - 1))
def test_a_varint_is_read_as_written(value: int) -> None:
    written = primitives.write_uvarint(value)
    assert primitives.uvarint(memoryview(written + b"\xff"), 0) == (value, len(written))
    for cut in range(len(written)):
        with pytest.raises(Malformed):
            primitives.uvarint(written[:cut], 0)


@pytest.mark.parametrize("written", ["8080808080", "808080808001", "ffffffff0f", "8080808008"])
def test_a_varint_that_no_java_int_holds_is_refused(written: str) -> None:
    with pytest.raises(Malformed):
        primitives.uvarint(bytes.fromhex(written), 0)


@pytest.mark.parametrize("flexible", [True, False])
@given(text=st.text(max_size=300))
def test_a_string_is_read_as_written(flexible: bool, text: str) -> None:
    written = primitives.write_string(text, flexible)
    assert primitives.string(written, 0, flexible) == (text, len(written))
    assert primitives.skip_string(written, 0, flexible) == len(written)
    with pytest.raises(Malformed):
        primitives.string(written[:-1], 0, flexible)


@pytest.mark.parametrize("flexible", [True, False])
def test_null_is_not_a_string(flexible: bool) -> None:
    null = primitives.write_null_string(flexible)
    assert primitives.nullable_string(null, 0, flexible) == (None, len(null))
    with pytest.raises(Malformed):
        primitives.string(null, 0, flexible)


def test_a_null_array_is_empty() -> None:
    assert primitives.array_length(b"\x00", 0, flexible=True) == (0, 1)
    assert primitives.array_length(b"\xff\xff\xff\xff", 0, flexible=False) == (0, 4)


@pytest.mark.parametrize(
    ("read", "size"),
    [(primitives.int8, 1), (primitives.int16, 2), (primitives.int32, 4), (primitives.int64, 8)],
)
def test_a_number_is_signed_and_whole(
    read: Callable[[bytes, int], tuple[int, int]], size: int
) -> None:
    assert read(b"\xff" * size, 0) == (-1, size)
    with pytest.raises(Malformed):
        read(b"\xff" * size, 1)
