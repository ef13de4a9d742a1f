"""Quotas proportional to the partitions whose leader is behind this proxy (KIP-257, scenario 2).

    quotas:
      client.quota.callback.class: tests.support.quota_callbacks.partitions:PartitionShare
      client.quota.callback.configs:
        topics:
          alice: [orders, payments-*]

If every broker has its own proxy, a quota of the cluster is divided among the proxies by the
partitions that their brokers lead. If the topics of a user with a quota of 10 MB/s have 12
partitions, and this proxy's broker leads 3 of them, the user's limit here is 2.5 MB/s, until
leaders move. For users that `topics` does not name, all topics count.

Nobody's share is less than one partition's: while metadata are late, a client must not come to a
halt at the broker that it was just sent to.
"""

from collections.abc import Mapping
from typing import Final

from proxy.quota.callback import ClientQuotaType, Cluster, DefaultQuotaCallback
from proxy.quota.model import desanitize
from proxy.quota.precedence import USER_TAG, Tags

_BYTES: Final = frozenset({ClientQuotaType.PRODUCE, ClientQuotaType.FETCH})
"""Types of quotas that are proportional to partitions; request time and mutations are not."""


class PartitionShare(DefaultQuotaCallback):
    """Callback that reduces KIP-55's byte rates to the share of this proxy's brokers."""

    def __init__(self) -> None:
        super().__init__()
        self._topics: dict[str, list[str]] = {}
        """Topic names and prefixes, by user."""
        self._cluster = Cluster(leaders={}, behind=frozenset())

    def configure(self, configs: Mapping[str, object]) -> None:
        """Read `topics`: the topics by user; a name that ends in `*` is a prefix."""
        topics = configs.get("topics", {})
        if not isinstance(topics, Mapping):
            raise ValueError("topics must be a mapping from users to lists of topics")
        for user, names in topics.items():
            whole = isinstance(names, list) and all(isinstance(one, str) and one for one in names)
            if not isinstance(user, str) or not whole:
                raise ValueError("topics must be a mapping from users to lists of topics")
            self._topics[user] = list(names)

    def quota_limit(self, quota_type: ClientQuotaType, metric_tags: Tags) -> float | None:
        """Return this proxy's share of the limit."""
        limit = super().quota_limit(quota_type, metric_tags)
        if limit is None or quota_type not in _BYTES:
            return limit
        return limit * self._share(desanitize(metric_tags[USER_TAG]))

    def update_cluster_metadata(self, cluster: Cluster) -> bool:
        """Store the current leaders; return whether limits changed."""
        changed = cluster != self._cluster
        self._cluster = cluster
        return changed

    def _share(self, user: str) -> float:
        partitions = here = 0
        names = self._topics.get(user, ["*"])
        for topic, leaders in self._cluster.leaders.items():
            if any(_names(name, topic) for name in names):
                partitions += len(leaders)
                here += sum(leader in self._cluster.behind for leader in leaders)
        return max(here, 1) / partitions if partitions else 1.0


def _names(name: str, topic: str) -> bool:
    return topic.startswith(name[:-1]) if name.endswith("*") else topic == name
