"""What a real broker sent (`captured/`), rewritten and cut through."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from kio.schema.index import api_key_map

from proxy.wire.addresses import rewrite
from proxy.wire.api_versions import ApiVersionsAnswers, parse_response
from proxy.wire.apis import API_VERSIONS, APIS, Kind, carries_addresses
from proxy.wire.walks import APIS_CUT_THROUGH
from tests.support.messages import read_response
from tests.support.responses import Entity, judge, pass_through, resolved

DIRECTORY = Path(__file__).parent / "captured"
KEYS = {name: key for key, name in api_key_map.items()}


class Fixture(NamedTuple):
    name: str
    api_key: int
    version: int
    body: bytes
    """A response from its correlation id on."""


def fixtures() -> list[Fixture]:
    found = []
    for path in sorted(DIRECTORY.glob("*.hex")):
        name = re.fullmatch(r"(\w+?)_v(\d+)_\w+", path.stem)
        assert name, path
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        body = bytes.fromhex("".join(lines))
        found.append(Fixture(path.stem, KEYS[name[1]], int(name[2]), body))
    return found


WITH_ADDRESSES = [one for one in fixtures() if carries_addresses(one.api_key, one.version)]
CUT_THROUGH = [one for one in WITH_ADDRESSES if one.api_key in APIS_CUT_THROUGH]
API_VERSIONS_ANSWERS = [one for one in fixtures() if one.api_key == API_VERSIONS]


def read(fixture: Fixture, body: bytes) -> Entity:
    return read_response(fixture.api_key, fixture.version, body)[1]


def odd_ones(node_id: int, _host: str, _port: int) -> tuple[str, int] | None:
    return ("gateway.example", 9100 + node_id) if node_id % 2 else None


def test_there_are_real_end_points_among_them() -> None:
    assert {one.api_key for one in CUT_THROUGH if read(one, one.body).node_endpoints} >= {0, 1}


@pytest.mark.parametrize("fixture", WITH_ADDRESSES, ids=lambda one: one.name)
def test_a_real_response_is_rewritten(fixture: Fixture) -> None:
    rewritten = rewrite(fixture.api_key, fixture.version, fixture.body, odd_ones)
    assert read(fixture, rewritten) == resolved(read(fixture, fixture.body), odd_ones)


@pytest.mark.parametrize("fixture", CUT_THROUGH, ids=lambda one: one.name)
def test_a_real_response_is_cut_through_at_every_byte(fixture: Fixture) -> None:
    entity = read(fixture, fixture.body)
    bare = bytearray(fixture.body)
    bare[:4] = b"\x01\x02\x03\x04"  # the correlation id that the judge writes
    body = bytes(bare)
    for cut in range(len(body)):
        judge(entity, body, pass_through(fixture.api_key, fixture.version, body, [cut]))
    judge(entity, body, pass_through(fixture.api_key, fixture.version, body, [*range(len(body))]))


@pytest.mark.parametrize("fixture", API_VERSIONS_ANSWERS, ids=lambda one: one.name)
def test_a_real_brokers_api_versions_are_offered_but_for_what_is_not_policed(
    fixture: Fixture,
) -> None:
    """Every API of Kafka 4.1's that is forwarded is offered in the versions Kafka has."""
    error_code, upstream = parse_response(fixture.version, fixture.body[4:])
    if error_code:
        return
    offered = ApiVersionsAnswers(upstream).offers
    for key, versions in upstream.apis.items():
        if APIS[key].kind is Kind.FORWARDED:
            assert offered[key] == versions, APIS[key].name
        else:
            assert (key in offered) == (APIS[key].kind is Kind.ANSWERED)


def test_features_before_v4_are_those_that_kafka_tells() -> None:
    """The v3 response made from the broker's v4 response equals the broker's own v3 response."""
    by_version = {
        one.version: parse_response(one.version, one.body[4:])[1]
        for one in API_VERSIONS_ANSWERS
        if one.name.endswith("_all")
    }
    ours = ApiVersionsAnswers(by_version[4]).response(3, 1)
    _, answered = parse_response(3, ours[4:])
    assert answered.supported_features == by_version[3].supported_features
    assert answered.finalized_features == by_version[3].finalized_features
    assert answered.zk_migration_ready == by_version[3].zk_migration_ready
