"""kio's schemas as judge: max_bytes is found in every version, and an answer without topics reads
as the one it stands for."""

from dataclasses import replace

import pytest
from kio.static.primitive import i32

from proxy.wire.apis import APIS, FETCH, SHARE_FETCH, response_header_version
from proxy.wire.fetch_requests import lowered, without_topics
from proxy.wire.throttle_times import HEAD
from tests.support.frames import request
from tests.support.kio_messages import decode, encode, request_type, response_type
from tests.support.messages import large, small

VERSIONS = [
    (api, version)
    for api in (FETCH, SHARE_FETCH)
    for version in range(APIS[api].min_version, APIS[api].max_version + 1)
]


@pytest.mark.parametrize(("api", "version"), VERSIONS)
@pytest.mark.parametrize("client_id", ["", "app", "x" * 300])
def test_max_bytes_is_lowered_and_nothing_else(api: int, version: int, client_id: str) -> None:
    asked = large(request_type(api, version))
    frame, less, more = (
        request(api, version, 3, encode(replace(asked, max_bytes=i32(most))), client_id)
        for most in (10_000, 9_000, 2**31 - 1)
    )
    assert lowered(frame, 9_000) == less
    assert lowered(more, 9_000) == less
    assert lowered(frame, 10_000) == lowered(frame, 2**31 - 1) == frame


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_request_that_is_not_all_here_is_lowered_if_enough_of_it_is(
    api: int, version: int
) -> None:
    asked = replace(large(request_type(api, version)), max_bytes=i32(10_000))
    frame = request(api, version, 3, encode(asked))
    less = lowered(frame, 1)
    assert less is not None
    parts = [lowered(frame[:end], 1) for end in range(14, len(frame))]
    enough = next(index for index, part in enumerate(parts) if part is not None)
    assert parts[:enough] == [None] * enough
    assert parts[enough:] == [less[:end] for end in range(14 + enough, len(frame))]


def test_tags_in_the_header_hide_nothing() -> None:
    asked = encode(replace(small(request_type(FETCH, 12)), max_bytes=i32(10_000)))
    few = request(FETCH, 12, 3, b"\1\2\2ab" + asked).replace(b"app\0", b"app", 1)
    least = lowered(few, 1)
    assert least is not None
    at = least.index(b"ab") + 2 + 12
    assert int.from_bytes(least[at : at + 4]) == 1
    many = request(FETCH, 12, 3, b"\x7f" + b"\1\0" * 127 + asked).replace(b"app\0", b"app", 1)
    assert lowered(many, 1) is None


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_an_answer_without_topics_keeps_what_stands_before_them(api: int, version: int) -> None:
    schema = response_type(api, version)
    whole = large(schema)
    header = b"\0\0\0\3" + b"\0" * response_header_version(api, version)
    left = decode(
        schema, without_topics(api, version, (header + encode(whole))[:HEAD]), len(header)
    )
    assert left.responses == ()
    assert left.throttle_time == whole.throttle_time
    kept = [name for name in ("error_code", "session_id") if hasattr(whole, name)]
    assert [getattr(left, name) for name in kept] == [getattr(whole, name) for name in kept]


@pytest.mark.parametrize(("version", "kept"), [(0, b""), (1, b"\0\0\0\x07"), (3, b"\0\0\0\x07")])
def test_so_does_one_of_a_version_that_only_old_brokers_have(version: int, kept: bytes) -> None:
    head = b"\0\0\0\x03" + kept + b"\0\0\0\x02" + b"topics"
    assert without_topics(FETCH, version, head) == b"\0\0\0\x03" + kept + b"\0\0\0\0"
