"""The proxy's own reading of Metadata, judged by kio."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_reader

from proxy.errors import BrokerFault
from proxy.wire.metadata import (
    HIGHEST_VERSION,
    LOWEST_VERSION,
    MAX_BROKERS,
    BrokerAddress,
    MetadataTopics,
    parse_response,
    write_request,
)
from tests.support.kio_messages import response_type
from tests.support.messages import large, written
from tests.support.responses import encode, responses
from tests.support.tables import table

VERSIONS = range(LOWEST_VERSION, HIGHEST_VERSION + 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_request_asks_for_no_topics_and_creates_none(version: int) -> None:
    schema: Any = load_request_schema(3, version)
    request, size = entity_reader(schema)(write_request(version), 0)
    assert size == len(write_request(version))
    assert request.topics == ()
    assert not getattr(request, "allow_auto_topic_creation", False)
    assert written(request) == write_request(version)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_brokers_are_read_as_kio_reads_them(version: int, data: st.DataObject) -> None:
    entity = data.draw(responses(3, version))
    brokers = tuple(
        replace(
            one,
            node_id=one.node_id & 0x7FFF_FFFF,
            host=f"h{one.host.encode()[:31].hex()}",
            port=one.port % 65_535 + 1,
        )
        for one in entity.brokers
    )
    view = parse_response(version, encode(replace(entity, brokers=brokers))[4:])
    assert view.brokers == {
        one.node_id: BrokerAddress(host=one.host, port=one.port, rack=one.rack) for one in brokers
    }
    assert view.controller_id == entity.controller_id
    assert view.cluster_id == getattr(entity, "cluster_id", None)


@pytest.mark.parametrize("impossible", table(__file__, "impossible_brokers"))
@settings(max_examples=1, deadline=None)
@given(data=st.data())
def test_a_broker_that_cannot_be_is_refused(
    impossible: dict[str, object], data: st.DataObject
) -> None:
    """A target with such an address would fail at every connection, far from the cause, and
    invalid names would appear in the log."""
    entity = data.draw(responses(3, 12).filter(lambda one: one.brokers))
    fine = replace(entity.brokers[0], node_id=1, host="h", port=1)
    body = encode(replace(entity, brokers=(replace(fine, **impossible),)))
    with pytest.raises(BrokerFault) as caught:
        parse_response(12, body[4:])
    assert caught.value.reason.isprintable()
    assert caught.value.reason.isascii()
    assert len(caught.value.reason) < 400


@given(version=st.sampled_from(VERSIONS), body=st.binary(max_size=80))
def test_garbage_is_the_brokers_fault(version: int, body: bytes) -> None:
    with suppress(BrokerFault):
        assert all(broker_id >= 0 for broker_id in parse_response(version, body).brokers)


@pytest.mark.parametrize("version", range(HIGHEST_VERSION + 1))
def test_partitions_are_counted(version: int) -> None:
    """They are read past everything else."""
    whole = large(response_type(3, version))
    (topic, *_), (partition, *_) = whole.topics, whole.topics[0].partitions
    counts = [0, 1, 300]
    topics = tuple(replace(topic, partitions=(partition,) * count) for count in counts)
    found = MetadataTopics(version, written(replace(whole, topics=topics)))
    assert [found.partition_count(place) for place in range(3)] == counts


@settings(max_examples=1, deadline=None)
@given(data=st.data())
def test_more_brokers_than_a_cluster_has_are_refused_unread(data: st.DataObject) -> None:
    """To read 64 MiB of them would take half a minute, in which no client is served."""
    entity = data.draw(responses(3, 12).filter(lambda one: one.brokers))
    fine = replace(entity.brokers[0], node_id=1, host="h", port=1)
    most = encode(replace(entity, brokers=(fine,) * MAX_BROKERS))
    assert list(parse_response(12, most[4:]).brokers) == [1]
    too_many = encode(replace(entity, brokers=(fine,) * (MAX_BROKERS + 1)))
    with pytest.raises(BrokerFault, match="more than 4,000 brokers"):
        parse_response(12, too_many[4:])
