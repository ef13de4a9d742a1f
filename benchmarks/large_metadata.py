"""CPU of cutting responses about everything: Metadata, DescribeTopicPartitions, ListGroups.

    python -m benchmarks.large_metadata

For 5,000 topics of 4 partitions, or 5,000 groups, CPU milliseconds per response, medians of the
rounds: for a principal with ACLs on ten prefixes that together name all of them, for one with an
ACL on one of them, and for the same responses again. Guards judge and cut as on a connection:
in steps, in a thread that runs only while the event loop waits for it. Nothing is started.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Final

from benchmarks import machine
from proxy.acl.authorizer import Authorizer
from proxy.acl.decision import Change, Guard, Inquiry
from proxy.acl.guards.groups import list_groups
from proxy.acl.guards.metadata import describe_topic_partitions, metadata
from proxy.acl.index import AclIndex
from proxy.acl.model import (
    Acl,
    AuthorizerMode,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from proxy.connection.long_work import SteppedAuthority, changed_in_steps
from proxy.wire.codec import encode
from proxy.wire.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MetadataRequest,
    MetadataResponse,
)
from proxy.wire.schema import Message

ITEMS: Final = 5_000
PARTITIONS: Final = 4
TEAMS: Final = 10
ALL, TENTH = "User:all", "User:tenth"


def names() -> list[str]:
    """Return the names of the topics or groups, of ten teams."""
    return [f"team-{number % TEAMS}.of-the-benchmark-{number:05}" for number in range(ITEMS)]


def metadata_response() -> MetadataResponse:
    """Return the response of a cluster of three brokers."""
    topic, partition = (
        MetadataResponse.MetadataResponseTopic,
        MetadataResponse.MetadataResponsePartition,
    )
    partitions = tuple(
        partition(partition_index=index, replica_nodes=(1, 2, 3), isr_nodes=(1, 2, 3))
        for index in range(PARTITIONS)
    )
    ids = (number.to_bytes(16) for number in range(1, ITEMS + 1))
    return MetadataResponse(
        cluster_id="benchmark",
        controller_id=1,
        topics=tuple(
            topic(name=name, topic_id=one, partitions=partitions)
            for name, one in zip(names(), ids, strict=True)
        ),
    )


def a_page() -> DescribeTopicPartitionsResponse:
    """Return the first page of all topics: 2,000 partitions, as many as a broker sends at once."""
    response = DescribeTopicPartitionsResponse
    partitions = tuple(
        response.DescribeTopicPartitionsResponsePartition(
            partition_index=index,
            replica_nodes=(1, 2, 3),
            isr_nodes=(1, 2, 3),
            eligible_leader_replicas=(),
            last_known_elr=(),
        )
        for index in range(PARTITIONS)
    )
    topic = response.DescribeTopicPartitionsResponseTopic
    shown = names()[: 2_000 // PARTITIONS]
    return response(topics=tuple(topic(name=name, partitions=partitions) for name in shown))


def groups_response() -> ListGroupsResponse:
    """Return the list of all groups."""
    group = ListGroupsResponse.ListedGroup
    kinds = {"protocol_type": "consumer", "group_state": "Stable", "group_type": "Classic"}
    return ListGroupsResponse(groups=tuple(group(group_id=name, **kinds) for name in names()))


def acls() -> Iterator[Acl]:
    """Yield the ACLs of both principals."""
    for resource_type in (ResourceType.TOPIC, ResourceType.GROUP):
        for principal, teams in ((ALL, TEAMS), (TENTH, 1)):
            for team in range(teams):
                yield Acl(
                    resource_type,
                    PatternType.PREFIXED,
                    f"team-{team}.",
                    principal,
                    "*",
                    Operation.READ,
                    Permission.ALLOW,
                )


Case = tuple[str, Guard, Message, Message, int]


def cases() -> list[Case]:
    """Return name, guard, request, response and version of the measured API."""
    described = DescribeTopicPartitionsRequest()
    return [
        *(
            ("Metadata", metadata, MetadataRequest(topics=None), metadata_response(), version)
            for version in (12, 7, 1)
        ),
        ("DescribeTopicPartitions", describe_topic_partitions, described, a_page(), 0),
        ("ListGroups", list_groups, ListGroupsRequest(), groups_response(), 5),
    ]


def measured(case: Case, principal: str, rounds: int) -> tuple[float, float]:
    """Return the CPU milliseconds of a first response, and of an equal one after it."""
    _, guard, request, response, version = case
    first, again = [], []
    asked, body = encode(request, version), encode(response, version)
    for _ in range(rounds):
        index = AclIndex(acls(), version=1)
        authorizer = Authorizer(index, mode=AuthorizerMode.ENFORCE, report=lambda _: None)
        authority = authorizer.authority((principal,), "127.0.0.1")
        pausing = SteppedAuthority(authority, lambda: None)
        inquiry = Inquiry(
            api_version=version, body=asked, authority=pausing, topics={}, listed=sorted(names())
        )
        judgement = guard(inquiry)
        if not isinstance(judgement, Change) or judgement.response is None:
            return 0.0, 0.0  # the response passes as it is
        first.append(_cpu_ms(judgement.response, body))
        again.append(_cpu_ms(judgement.response, body))
    return median(first), median(again)


def _cpu_ms(transform: Callable[[bytes], bytes], body: bytes) -> float:
    began = time.process_time()
    for _ in changed_in_steps(transform, body):
        pass
    return (time.process_time() - began) * 1000


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    for name, value in machine.describe(pinned=False).items():
        print(f"{name}: {value}")
    print(f"{'CPU ms per response':32} {'all':>8} {'again':>8} {'a tenth':>8} {'again':>8}")
    for case in cases():
        figures = (*measured(case, ALL, options.rounds), *measured(case, TENTH, options.rounds))
        print(f"{case[0]} v{case[-1]}".ljust(32), *(f"{one:8.1f}" for one in figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
