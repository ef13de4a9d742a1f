"""Table of guards: which guard judges which API.

The table lists the operations and resources that each API requires, like the section "Authorization
and ACLs, Protocols" of Kafka's documentation; the docstrings of the guards have the details. An API
without a guard is refused: a test compares the table with `proxy.wire.apis`.

Importing this package creates the entity types of about a hundred messages: import it only if the
authorizer is on.
"""

from collections.abc import Mapping
from typing import Final

from proxy.acl.decision import Guard
from proxy.acl.guards import cluster, groups, metadata, offsets, records, topics, transactions
from proxy.wire import apis

GUARDS: Final[Mapping[int, Guard]] = {
    # Write on Topic; Write on TransactionalId
    apis.PRODUCE: records.produce,
    # Read on Topic; ClusterAction on Cluster for replicas
    apis.FETCH: records.fetch,
    # Describe on Topic
    apis.LIST_OFFSETS: topics.list_offsets,
    # Describe on Topic; Create on Topic or Cluster if it would be created
    apis.METADATA: metadata.metadata,
    # Read on Group and Topic
    apis.OFFSET_COMMIT: offsets.offset_commit,
    # Describe on Group and Topic
    apis.OFFSET_FETCH: offsets.offset_fetch,
    # Describe on Group or TransactionalId, or ClusterAction on Cluster (share)
    apis.FIND_COORDINATOR: groups.find_coordinator,
    # Read on Group
    apis.JOIN_GROUP: groups.join_group,
    # Read on Group
    apis.HEARTBEAT: groups.heartbeat,
    # Read on Group
    apis.LEAVE_GROUP: groups.leave_group,
    # Read on Group
    apis.SYNC_GROUP: groups.sync_group,
    # Describe on Group
    apis.DESCRIBE_GROUPS: groups.describe_groups,
    # Describe on Cluster or Group
    apis.LIST_GROUPS: groups.list_groups,
    # Create on Cluster or Topic; DescribeConfigs on Topic for its configuration
    apis.CREATE_TOPICS: topics.create_topics,
    # Delete on Topic (with Describe if named by name), or Delete on Cluster
    apis.DELETE_TOPICS: topics.delete_topics,
    # Delete on Topic
    apis.DELETE_RECORDS: topics.delete_records,
    # Write (and TwoPhaseCommit) on TransactionalId; without one IdempotentWrite on Cluster, or
    # Write on any Topic
    apis.INIT_PRODUCER_ID: transactions.init_producer_id,
    # Describe on Topic, or ClusterAction on Cluster
    apis.OFFSET_FOR_LEADER_EPOCH: topics.offset_for_leader_epoch,
    # Write on TransactionalId and Topic; from v4 ClusterAction on Cluster
    apis.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn,
    # Write on TransactionalId, Read on Group
    apis.ADD_OFFSETS_TO_TXN: transactions.add_offsets_to_txn,
    # Write on TransactionalId
    apis.END_TXN: transactions.end_txn,
    # Alter or ClusterAction on Cluster
    apis.WRITE_TXN_MARKERS: cluster.write_txn_markers,
    # Write on TransactionalId, Read on Group and Topic
    apis.TXN_OFFSET_COMMIT: offsets.txn_offset_commit,
    # DescribeConfigs on Topic, Group or Cluster
    apis.DESCRIBE_CONFIGS: cluster.describe_configs,
    # AlterConfigs on Topic, Group or Cluster
    apis.ALTER_CONFIGS: cluster.alter_configs,
    # Alter on Cluster
    apis.ALTER_REPLICA_LOG_DIRS: cluster.alter_replica_log_dirs,
    # Describe on Cluster
    apis.DESCRIBE_LOG_DIRS: cluster.describe_log_dirs,
    # Alter on Topic
    apis.CREATE_PARTITIONS: topics.create_partitions,
    # Delete on Group
    apis.DELETE_GROUPS: groups.delete_groups,
    # Alter on Cluster
    apis.ELECT_LEADERS: cluster.elect_leaders,
    # AlterConfigs on Topic, Group or Cluster
    apis.INCREMENTAL_ALTER_CONFIGS: cluster.incremental_alter_configs,
    # Alter on Cluster
    apis.ALTER_PARTITION_REASSIGNMENTS: cluster.alter_partition_reassignments,
    # Describe on Cluster
    apis.LIST_PARTITION_REASSIGNMENTS: cluster.list_partition_reassignments,
    # Delete on Group, Read on Topic
    apis.OFFSET_DELETE: offsets.offset_delete,
    # Describe on Cluster
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: cluster.describe_user_scram_credentials,
    # Alter on Cluster
    apis.ALTER_USER_SCRAM_CREDENTIALS: cluster.alter_user_scram_credentials,
    # Describe on Cluster
    apis.DESCRIBE_QUORUM: cluster.describe_quorum,
    # Alter on Cluster
    apis.UPDATE_FEATURES: cluster.update_features,
    # No permission; Describe on Cluster for its authorized operations
    apis.DESCRIBE_CLUSTER: cluster.describe_cluster,
    # Read on Topic
    apis.DESCRIBE_PRODUCERS: topics.describe_producers,
    # Alter on Cluster
    apis.UNREGISTER_BROKER: cluster.unregister_broker,
    # Describe on TransactionalId and Topic
    apis.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    # Describe on TransactionalId
    apis.LIST_TRANSACTIONS: transactions.list_transactions,
    # Read on Group, Describe on Topic, or on all topics that a regular expression could match
    apis.CONSUMER_GROUP_HEARTBEAT: groups.consumer_group_heartbeat,
    # Describe on Group and Topic
    apis.CONSUMER_GROUP_DESCRIBE: groups.consumer_group_describe,
    # No permission
    apis.GET_TELEMETRY_SUBSCRIPTIONS: cluster.open_to_all,
    # No permission
    apis.PUSH_TELEMETRY: cluster.open_to_all,
    # DescribeConfigs on Cluster
    apis.LIST_CONFIG_RESOURCES: cluster.list_config_resources,
    # Describe on Topic
    apis.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
    # Read on Group, Describe on Topic
    apis.SHARE_GROUP_HEARTBEAT: groups.share_group_heartbeat,
    # Describe on Group and Topic
    apis.SHARE_GROUP_DESCRIBE: groups.share_group_describe,
    # Read on Group and Topic
    apis.SHARE_FETCH: records.share_fetch,
    # Read on Group and Topic
    apis.SHARE_ACKNOWLEDGE: records.share_acknowledge,
    # Alter on Cluster
    apis.ADD_RAFT_VOTER: cluster.add_raft_voter,
    # Alter on Cluster
    apis.REMOVE_RAFT_VOTER: cluster.remove_raft_voter,
    # Read on Group, Describe on Topic; Create on Cluster or on the internal Topics declared
    apis.STREAMS_GROUP_HEARTBEAT: groups.streams_group_heartbeat,
    # Describe on Group and Topic
    apis.STREAMS_GROUP_DESCRIBE: groups.streams_group_describe,
    # Describe on Group and Topic
    apis.DESCRIBE_SHARE_GROUP_OFFSETS: offsets.describe_share_group_offsets,
    # Read on Group and Topic
    apis.ALTER_SHARE_GROUP_OFFSETS: offsets.alter_share_group_offsets,
    # Delete on Group, Read on Topic
    apis.DELETE_SHARE_GROUP_OFFSETS: offsets.delete_share_group_offsets,
    # Read on Group
    apis.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: (
        groups.streams_group_topology_description_update
    ),
    # Alter on Cluster
    apis.UNREGISTER_CONTROLLER: cluster.unregister_controller,
}
