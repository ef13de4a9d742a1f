"""Judged by kio: decoding a rewritten response gives the response with resolved addresses."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.errors import BrokerFault
from proxy.wire.addresses import rewrite
from proxy.wire.apis import APIS, DESCRIBE_CLUSTER, DESCRIBE_QUORUM, METADATA, carries_addresses
from proxy.wire.metadata import MAX_BROKERS
from tests.support.kio_messages import response_type
from tests.support.responses import decode, encode, paths_of_addresses, resolved, responses

REWRITTEN = [
    (api.key, version)
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
    if carries_addresses(api.key, version)
]
"""Every API and version whose response contains an address."""


def odd_ones(node_id: int, host: str, port: int) -> tuple[str, int] | None:
    """Show brokers with an odd id, under a name that contains the host and port as read."""
    return (f"gateway-{host}", port ^ 1) if node_id % 2 else None


def test_no_schema_tells_an_address_that_is_not_rewritten() -> None:
    """A version that is added to the registry must not let an address slip through."""
    of_applications = {"StreamsGroupHeartbeat", "StreamsGroupDescribe"}  # KIP-1071 user endpoints
    with_throttle_time = [
        (api.key, version)
        for api in APIS.values()
        if api.name not in of_applications
        for version in range(api.min_version, api.max_version + 1)
        if carries_addresses(api.key, version)
        or (
            api.kind.name == "FORWARDED"
            and any(paths_of_addresses(response_type(api.key, version)))
        )
    ]
    assert with_throttle_time == REWRITTEN
    for api_key, version in REWRITTEN:
        assert any(paths_of_addresses(response_type(api_key, version)))


def itself(_: int, host: str, port: int) -> tuple[str, int]:
    return host, port


@pytest.mark.parametrize(("api_key", "version"), REWRITTEN)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_rewritten_response_differs_in_its_addresses_only(
    api_key: int, version: int, data: st.DataObject
) -> None:
    """Resolving each to itself changes no byte."""
    entity = data.draw(responses(api_key, version))
    rewritten = rewrite(api_key, version, encode(entity), odd_ones)
    assert decode(api_key, version, rewritten) == resolved(entity, odd_ones)
    body = encode(resolved(entity, itself))
    assert rewrite(api_key, version, body, itself) == body


@pytest.mark.parametrize(("api_key", "version"), REWRITTEN)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_a_truncated_response_is_the_brokers_fault_or_harmless(
    api_key: int, version: int, data: st.DataObject
) -> None:
    """Cut anywhere: BrokerFault, or a response in which every address was resolved."""
    body = encode(data.draw(responses(api_key, version)))
    cut = data.draw(st.integers(0, len(body)))
    try:
        rewritten = rewrite(api_key, version, body[:cut], lambda *_: None)
    except BrokerFault:
        return
    assert len(rewritten) <= len(body) + 2


@pytest.mark.parametrize(("api_key", "version"), REWRITTEN)
@settings(max_examples=10, deadline=None)
@given(body=st.binary(max_size=200))
def test_garbage_is_the_brokers_fault(api_key: int, version: int, body: bytes) -> None:
    with suppress(BrokerFault):
        assert len(rewrite(api_key, version, body, odd_ones)) <= 2 * len(body) + 2


def test_unknown_tagged_fields_of_brokers_pass() -> None:
    """A newer broker may add tagged fields to any structure; a client may know them."""
    tags = bytes((1, 9, 2, 0xAA, 0xBB))
    broker = b"\x00\x00\x00\x01" + b"\x02h" + b"\x00\x00\x00\x05" + b"\x00" + tags
    rest = b"\x00" * 12
    body = b"\x01\x02\x03\x04" + tags + b"\x00\x00\x00\x00" + b"\x02" + broker + rest
    rewritten = rewrite(METADATA, 12, body, lambda *_: ("gate", 6))
    shown = b"\x00\x00\x00\x01" + b"\x05gate" + b"\x00\x00\x00\x06" + b"\x00" + tags
    assert rewritten == b"\x01\x02\x03\x04" + tags + b"\x00\x00\x00\x00" + b"\x02" + shown + rest


@pytest.mark.parametrize("api_key", [METADATA, DESCRIBE_CLUSTER, DESCRIBE_QUORUM])
@settings(max_examples=1, deadline=None)
@given(data=st.data())
def test_more_brokers_than_a_cluster_has_are_the_brokers_fault(
    api_key: int, data: st.DataObject
) -> None:
    """To rewrite all that fit into a response would take a minute, in which no client is served."""
    version = APIS[api_key].max_version
    name = "nodes" if api_key == DESCRIBE_QUORUM else "brokers"
    entity = data.draw(responses(api_key, version).filter(lambda one: getattr(one, name)))
    brokers = getattr(entity, name)[:1] * MAX_BROKERS
    most = replace(entity, **{name: brokers})
    assert decode(api_key, version, rewrite(api_key, version, encode(most), odd_ones))
    too_many = replace(entity, **{name: brokers + brokers[:1]})
    with pytest.raises(BrokerFault, match="more than 4,000 brokers"):
        rewrite(api_key, version, encode(too_many), odd_ones)
