"""Table of guards: which guard judges which API.

Each guard says in its docstring what it checks and how it answers; this is the overview, to be read
beside "Authorization and ACLs, Protocols" of Kafka's documentation. An API that the proxy forwards
and that is not in here is refused: a test compares the table with `proxy.wire.apis`.

Importing this package loads kio (24 MiB, half a second): import it only with an authorizer.
"""

from collections.abc import Mapping
from typing import Final

from proxy.acl.decision import Guard
from proxy.acl.guards import (
    cluster,
    configs,
    describe_topics,
    groups,
    members,
    offsets,
    partitions,
    share,
    share_offsets,
    topics,
    transactions,
)
from proxy.acl.guards.fetch import fetch
from proxy.acl.guards.metadata import metadata
from proxy.acl.guards.produce import produce

# fmt: off
GUARDS: Final[Mapping[int, Guard]] = {
    # API key: guard                               operation on resource
    0: produce,                                   # Write on Topic; Write on TransactionalId
    1: fetch,                                     # Read on Topic; of replicas ClusterAction on
                                                  #   Cluster
    2: partitions.list_offsets,                   # Describe on Topic
    3: metadata,                                  # Describe on Topic; Create on Topic or Cluster if
                                                  #   it is to be created
    8: offsets.offset_commit,                     # Read on Group and Topic
    9: offsets.offset_fetch,                      # Describe on Group and Topic
    10: members.find_coordinator,                 # Describe on Group or TransactionalId, or
                                                  #   ClusterAction on Cluster (share)
    11: members.join_group,                       # Read on Group
    12: members.heartbeat,                        # Read on Group
    13: members.leave_group,                      # Read on Group
    14: members.sync_group,                       # Read on Group
    15: groups.describe_groups,                   # Describe on Group
    16: groups.list_groups,                       # Describe on Cluster or Group
    19: topics.create_topics,                     # Create on Cluster or Topic; DescribeConfigs on
                                                  #   Topic for its configuration
    20: topics.delete_topics,                     # Delete on Topic (by name: and Describe),
                                                  #   or Delete on Cluster
    21: partitions.delete_records,                # Delete on Topic
    22: transactions.init_producer_id,            # Write (and TwoPhaseCommit) on TransactionalId;
                                                  #   none: IdempotentWrite on Cluster or Write on
                                                  #   any Topic
    23: partitions.offset_for_leader_epoch,       # Describe on Topic, or ClusterAction on Cluster
    24: transactions.add_partitions_to_txn,       # Write on TransactionalId and Topic; from v4
                                                  #   ClusterAction on Cluster
    25: transactions.add_offsets_to_txn,          # Write on TransactionalId, Read on Group
    26: transactions.end_txn,                     # Write on TransactionalId
    27: cluster.write_txn_markers,                # Alter or ClusterAction on Cluster
    28: offsets.txn_offset_commit,                # Write on TransactionalId, Read on Group and
                                                  #   Topic
    32: configs.describe_configs,                 # DescribeConfigs on Topic, Group or Cluster
    33: configs.alter_configs,                    # AlterConfigs on Topic, Group or Cluster
    34: cluster.alter_replica_log_dirs,           # Alter on Cluster
    35: cluster.describe_log_dirs,                # Describe on Cluster
    37: topics.create_partitions,                 # Alter on Topic
    42: groups.delete_groups,                     # Delete on Group
    43: cluster.elect_leaders,                    # Alter on Cluster
    44: configs.incremental_alter_configs,        # AlterConfigs on Topic, Group or Cluster
    45: cluster.alter_partition_reassignments,    # Alter on Cluster
    46: cluster.list_partition_reassignments,     # Describe on Cluster
    47: offsets.offset_delete,                    # Delete on Group, Read on Topic
    50: cluster.describe_user_scram_credentials,  # Describe on Cluster
    51: cluster.alter_user_scram_credentials,     # Alter on Cluster
    55: cluster.describe_quorum,                  # Describe on Cluster
    57: cluster.update_features,                  # Alter on Cluster
    60: cluster.describe_cluster,                 # none; Describe on Cluster for rights
    61: partitions.describe_producers,            # Read on Topic
    64: cluster.unregister_broker,                # Alter on Cluster
    65: transactions.describe_transactions,       # Describe on TransactionalId and Topic
    66: transactions.list_transactions,           # Describe on TransactionalId
    68: members.consumer_group_heartbeat,         # Read on Group, Describe on Topic, or on all that
                                                  #   a regular expression could match
    69: groups.consumer_group_describe,           # Describe on Group and Topic
    71: cluster.open_to_all,                      # GetTelemetrySubscriptions: none
    72: cluster.open_to_all,                      # PushTelemetry: none
    74: cluster.list_config_resources,            # DescribeConfigs on Cluster
    75: describe_topics.describe_topic_partitions,  # Describe on Topic
    76: members.share_group_heartbeat,            # Read on Group, Describe on Topic
    77: groups.share_group_describe,              # Describe on Group and Topic
    78: share.share_fetch,                        # Read on Group and Topic
    79: share.share_acknowledge,                  # Read on Group and Topic
    80: cluster.add_raft_voter,                   # Alter on Cluster
    81: cluster.remove_raft_voter,                # Alter on Cluster
    88: members.streams_group_heartbeat,          # Read on Group, Describe on Topic; Create on
                                                  #   Cluster or on the internal Topics declared
    89: groups.streams_group_describe,            # Describe on Group and Topic
    90: share_offsets.describe_share_group_offsets, # Describe on Group and Topic
    91: share_offsets.alter_share_group_offsets,  # Read on Group and Topic
    92: share_offsets.delete_share_group_offsets, # Delete on Group, Read on Topic
    93: groups.streams_group_topology_description_update,  # Read on Group
    94: cluster.unregister_controller,            # Alter on Cluster
}
# fmt: on
