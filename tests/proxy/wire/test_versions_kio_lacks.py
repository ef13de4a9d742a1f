"""Versions that kio lacks against bytes from elsewhere, and against kio's neighbouring versions.

The bytes are in `versions_kio_lacks.json`. Those of the dropped version 0 of the ACL APIs are
worked out by hand from KIP-140, those of KIP-888 from its text, and those of Kafka 4.4 were written
by the classes of Kafka 4.4.0.
"""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from proxy.scheduling.steps import in_steps
from proxy.wire.apis import APIS
from proxy.wire.codec import decode as strict_decode
from proxy.wire.messages import DescribeAclsRequest
from proxy.wire.primitives import Malformed
from tests.support.kio_messages import is_of_kio, request_type, response_type
from tests.support.kio_messages.strict import decode, encode
from tests.support.messages import message

CASES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("versions_kio_lacks.json").read_text(),
    object_hook=lambda found: {
        name: UUID(value) if name == "topic_id" else value for name, value in found.items()
    },
)


def versions(kind: str) -> set[tuple[int, int]]:
    return {(one["api_key"], one["version"]) for one in CASES if one["kind"] == kind}


@pytest.mark.parametrize(
    "case", CASES, ids=lambda one: f"{one['kind']} {one['api_key']} v{one['version']}"
)
def test_both_codecs_read_and_write_these_bytes(case: dict[str, Any]) -> None:
    kind = request_type if case["kind"] == "request" else response_type
    schema, body = kind(case["api_key"], case["version"]), bytes.fromhex(case["body"])
    entity = message(schema, case["fields"])
    assert encode(entity) == body
    assert decode(schema, body) == entity
    assert entity_reader(schema)(body, 0) == (entity, len(body))
    for end in range(len(body)):
        with pytest.raises(Malformed):
            decode(schema, body[:end])


@pytest.mark.parametrize(
    ("key", "version", "body"), [(29, 4, b"\0\0"), (48, 2, b"\0\0\0"), (48, 2, b"\0\x02\0\0\0")]
)
def test_the_lists_of_requests_are_never_null(key: int, version: int, body: bytes) -> None:
    with pytest.raises(Malformed):
        decode(request_type(key, version), body)


def test_kio_has_every_version_but_those_of_the_tests() -> None:
    """A version that kio has learned needs no test of its own any more."""
    lacks = {
        (key, version)
        for key, api in APIS.items()
        for version in range(api.min_version, api.max_version + 1)
        if not is_of_kio(key, version)
    }
    assert lacks == versions("request") == versions("response")


@pytest.mark.parametrize(
    ("api_key", "version", "of_kio"),
    [(29, 0, 1), (30, 0, 1), (31, 0, 1), (29, 4, 3), (48, 2, 1), (18, 5, 4), (42, 3, 2)],
)
def test_headers_and_names_are_those_of_kio(api_key: int, version: int, of_kio: int) -> None:
    for ours, kios in (
        (request_type(api_key, version), load_request_schema(api_key, of_kio)),
        (response_type(api_key, version), load_response_schema(api_key, of_kio)),
    ):
        assert (ours.__name__, ours.__version__) == (kios.__name__, version)
        assert ours.__flexible__ == kios.__flexible__
        assert ours.__header_schema__ is kios.__header_schema__
        assert (ours.__api_key__, ours.__type__) == (api_key, kios.__type__)


def test_versions_that_kio_has_are_its_own() -> None:
    assert request_type(30, 1) is load_request_schema(30, 1)
    assert response_type(48, 1) is load_response_schema(48, 1)


def test_many_unknown_tags_are_passed_over_in_steps() -> None:
    """A filter of 30 KB that means nothing must not hold up the event loop."""
    one = b"\x01\x00\x01\x00\x00\x01\x01" + b"\x80\x20" + b"\x07\x01x" * 4_096
    body = b"\x02" + one + b"\x00"
    steps = in_steps(
        lambda: strict_decode(DescribeAclsRequest, 4, body), max_values=10_000, seconds=0
    )
    assert sum(1 for _ in steps) > 120
