"""Every API this package can speak: key, versions, and the first flexible version.

These are facts of the protocol and of what is described here; what a broker advertises is the door's choice.
"""

from __future__ import annotations

from penstock.doors.kafka.protocol.schema import Api

NEVER_FLEXIBLE = 1 << 15

# Versions 0 to 2 carry record formats before batch v2; they are named here so that they can be advertised and refused
# (clients drop compression where Produce does not start at 0: KAFKA-18659).
PRODUCE = Api(0, "Produce", 0, 12, flexible=9)
FETCH = Api(1, "Fetch", 4, 17, flexible=12)
LIST_OFFSETS = Api(2, "ListOffsets", 1, 9, flexible=6)
METADATA = Api(3, "Metadata", 0, 12, flexible=9)
OFFSET_COMMIT = Api(8, "OffsetCommit", 2, 9, flexible=8)
OFFSET_FETCH = Api(9, "OffsetFetch", 1, 9, flexible=6)
FIND_COORDINATOR = Api(10, "FindCoordinator", 0, 4, flexible=3)
JOIN_GROUP = Api(11, "JoinGroup", 0, 9, flexible=6)
HEARTBEAT = Api(12, "Heartbeat", 0, 4, flexible=4)
LEAVE_GROUP = Api(13, "LeaveGroup", 0, 5, flexible=4)
SYNC_GROUP = Api(14, "SyncGroup", 0, 5, flexible=4)
DESCRIBE_GROUPS = Api(15, "DescribeGroups", 0, 6, flexible=5)
LIST_GROUPS = Api(16, "ListGroups", 0, 5, flexible=3)
SASL_HANDSHAKE = Api(17, "SaslHandshake", 0, 1, flexible=NEVER_FLEXIBLE)
API_VERSIONS = Api(18, "ApiVersions", 0, 4, flexible=3)
CREATE_TOPICS = Api(19, "CreateTopics", 2, 7, flexible=5)
DELETE_TOPICS = Api(20, "DeleteTopics", 1, 6, flexible=4)
DELETE_RECORDS = Api(21, "DeleteRecords", 0, 2, flexible=2)
INIT_PRODUCER_ID = Api(22, "InitProducerId", 0, 5, flexible=2)
OFFSET_FOR_LEADER_EPOCH = Api(23, "OffsetForLeaderEpoch", 2, 4, flexible=4)
ADD_PARTITIONS_TO_TXN = Api(24, "AddPartitionsToTxn", 0, 3, flexible=3)
ADD_OFFSETS_TO_TXN = Api(25, "AddOffsetsToTxn", 0, 4, flexible=3)
END_TXN = Api(26, "EndTxn", 0, 5, flexible=3)
WRITE_TXN_MARKERS = Api(27, "WriteTxnMarkers", 1, 2, flexible=1)
TXN_OFFSET_COMMIT = Api(28, "TxnOffsetCommit", 0, 5, flexible=3)
DESCRIBE_ACLS = Api(29, "DescribeAcls", 1, 3, flexible=2)
CREATE_ACLS = Api(30, "CreateAcls", 1, 3, flexible=2)
DELETE_ACLS = Api(31, "DeleteAcls", 1, 3, flexible=2)
DESCRIBE_CONFIGS = Api(32, "DescribeConfigs", 1, 4, flexible=4)
ALTER_CONFIGS = Api(33, "AlterConfigs", 0, 2, flexible=2)
ALTER_REPLICA_LOG_DIRS = Api(34, "AlterReplicaLogDirs", 1, 2, flexible=2)
DESCRIBE_LOG_DIRS = Api(35, "DescribeLogDirs", 1, 4, flexible=2)
SASL_AUTHENTICATE = Api(36, "SaslAuthenticate", 0, 2, flexible=2)
CREATE_PARTITIONS = Api(37, "CreatePartitions", 0, 3, flexible=2)
DELETE_GROUPS = Api(42, "DeleteGroups", 0, 2, flexible=2)
ELECT_LEADERS = Api(43, "ElectLeaders", 0, 2, flexible=2)
INCREMENTAL_ALTER_CONFIGS = Api(44, "IncrementalAlterConfigs", 0, 1, flexible=1)
ALTER_PARTITION_REASSIGNMENTS = Api(45, "AlterPartitionReassignments", 0, 1, flexible=0)
LIST_PARTITION_REASSIGNMENTS = Api(46, "ListPartitionReassignments", 0, 0, flexible=0)
OFFSET_DELETE = Api(47, "OffsetDelete", 0, 0, flexible=NEVER_FLEXIBLE)
DESCRIBE_CLIENT_QUOTAS = Api(48, "DescribeClientQuotas", 0, 1, flexible=1)
ALTER_CLIENT_QUOTAS = Api(49, "AlterClientQuotas", 0, 1, flexible=1)
DESCRIBE_USER_SCRAM_CREDENTIALS = Api(50, "DescribeUserScramCredentials", 0, 0, flexible=0)
ALTER_USER_SCRAM_CREDENTIALS = Api(51, "AlterUserScramCredentials", 0, 0, flexible=0)
DESCRIBE_QUORUM = Api(55, "DescribeQuorum", 0, 2, flexible=0)
UPDATE_FEATURES = Api(57, "UpdateFeatures", 0, 2, flexible=0)
DESCRIBE_CLUSTER = Api(60, "DescribeCluster", 0, 1, flexible=0)
DESCRIBE_PRODUCERS = Api(61, "DescribeProducers", 0, 0, flexible=0)
DESCRIBE_TRANSACTIONS = Api(65, "DescribeTransactions", 0, 0, flexible=0)
LIST_TRANSACTIONS = Api(66, "ListTransactions", 0, 2, flexible=0)
CONSUMER_GROUP_HEARTBEAT = Api(68, "ConsumerGroupHeartbeat", 0, 1, flexible=0)
CONSUMER_GROUP_DESCRIBE = Api(69, "ConsumerGroupDescribe", 0, 1, flexible=0)
LIST_CONFIG_RESOURCES = Api(74, "ListConfigResources", 0, 1, flexible=0)
DESCRIBE_TOPIC_PARTITIONS = Api(75, "DescribeTopicPartitions", 0, 0, flexible=0)

APIS: dict[int, Api] = {api.key: api for api in list(globals().values()) if isinstance(api, Api)}
API_OF_NAME: dict[str, Api] = {api.name: api for api in APIS.values()}
