"""How many partitions a topic of a Metadata response has, read past everything else."""

from dataclasses import replace

import pytest

from proxy.wire.apis import APIS, METADATA
from proxy.wire.metadata import MetadataTopics
from tests.support.kio_messages import encode, response_type
from tests.support.messages import large


@pytest.mark.parametrize("version", range(APIS[METADATA].max_version + 1))
def test_partitions_are_counted(version: int) -> None:
    response = large(response_type(METADATA, version))
    (topic, *_), (partition, *_) = response.topics, response.topics[0].partitions
    counts = [0, 1, 300]
    topics = tuple(replace(topic, partitions=(partition,) * count) for count in counts)
    body = encode(replace(response, topics=topics))
    found = MetadataTopics(version, body)
    assert [found.partition_count(place) for place in range(3)] == counts
