"""Cluster metadata for quota callbacks: partition leaders, and brokers behind this proxy.

Requested only when a custom callback is configured, on short connections of the proxy's own
(`service_connection`).
"""

import asyncio
import logging
from functools import partial
from typing import Final

from proxy import config
from proxy.brokers.access import Access
from proxy.brokers.service_connection import ServiceConnection, ask
from proxy.errors import BrokerFault
from proxy.quota.callback import Cluster
from proxy.wire import messages
from proxy.wire.error_codes import ErrorCode
from proxy.worker.endpoints import Endpoints
from proxy.worker.quota_service import QuotaService

log = logging.getLogger(__name__)

METADATA_VERSION: Final = 9
"""Version of Metadata: the first flexible one; later ones add topic ids, which are not needed
here."""
DESCRIBE_CONFIGS_VERSION: Final = 4
BROKER: Final = 4
"""The value of `ConfigResource.Type.BROKER`."""


async def _cluster(connection: ServiceConnection, *, alone: bool) -> Cluster:
    """Query a broker about the cluster. Raises BrokerFault.

    With `alone`, it is the only broker behind this proxy; otherwise all brokers are.
    """
    question = messages.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    response = await connection.asked(METADATA_VERSION, question, messages.MetadataResponse)
    brokers = frozenset(one.node_id for one in response.brokers)
    leaders: dict[str, list[int | None]] = {}
    for topic in response.topics:
        if topic.error_code == ErrorCode.NONE and topic.name is not None:
            partitions = sorted(topic.partitions, key=lambda one: one.partition_index)
            leaders[topic.name] = [
                None if one.leader_id < 0 else one.leader_id for one in partitions
            ]
    own = await _own_id(connection, brokers) if alone else None
    behind = brokers if not alone else frozenset() if own is None else frozenset({own})
    return Cluster(leaders=leaders, behind=behind)


async def _own_id(connection: ServiceConnection, brokers: frozenset[int]) -> int | None:
    """Return the broker's id: each broker describes no configuration but its own."""
    resource = messages.DescribeConfigsRequest.DescribeConfigsResource
    question = messages.DescribeConfigsRequest(
        resources=tuple(
            resource(resource_type=BROKER, resource_name=str(one)) for one in sorted(brokers)
        )
    )
    response = await connection.asked(
        DESCRIBE_CONFIGS_VERSION, question, messages.DescribeConfigsResponse
    )
    own = [one for one in response.results if one.error_code == ErrorCode.NONE]
    return int(own[0].resource_name) if len(own) == 1 else None


async def follow(
    quotas: QuotaService, endpoints: Endpoints, access: Access, upstream: config.Upstream
) -> None:
    """Pass the cluster to the callback whenever it differs from before."""
    before: Cluster | None = None
    fault = ""
    while True:
        if (found := endpoints.any_broker()) is not None:
            broker, alone = found
            cluster = before
            try:
                query = partial(_cluster, alone=alone)
                cluster = await ask(broker.host, broker.port, access, query)
                fault = ""
            except BrokerFault as error:
                if error.reason != fault:
                    log.warning("partition leaders are unknown: %s", error.reason)
                fault = error.reason
            if cluster is not None and cluster != before:
                before = cluster
                quotas.update_cluster_metadata(cluster)
        await asyncio.sleep(upstream.metadata_max_age_ms / 1000)
