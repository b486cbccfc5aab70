"""What each API needs: one table, read before its handler runs, and only where security is on.

A rule refuses a whole request, or takes out of it what the caller may not name and answers that part itself, so that a
handler sees only what is allowed. `Inside` marks the APIs whose handlers ask the caller themselves, because they list
or create things that the request does not name. An API without a row is refused. Rights and errors are Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from penstock.access.acls import CLUSTER_NAME, AclAction, AclResource
from penstock.doors.kafka.caller import REFUSED, Caller
from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.errors import ErrorCode, ProtocolError
from penstock.doors.kafka.protocol.messages import cluster, configs, groups, offsets, security, topics, transactions
from penstock.doors.kafka.protocol.messages.shared import PartitionErrorCode, TopicErrorCodes
from penstock.doors.kafka.protocol.schema import Api, ApiMessage

READ, WRITE, CREATE, DELETE = AclAction.READ, AclAction.WRITE, AclAction.CREATE, AclAction.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = AclAction.ALTER, AclAction.DESCRIBE, AclAction.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclAction.DESCRIBE_CONFIGS, AclAction.ALTER_CONFIGS
IDEMPOTENT_WRITE = AclAction.IDEMPOTENT_WRITE
TOPIC, GROUP = AclResource.TOPIC, AclResource.GROUP
CLUSTER, TRANSACTIONAL_ID = AclResource.CLUSTER, AclResource.TRANSACTIONAL_ID

Complete: TypeAlias = Callable[[Any], Any]
Place: TypeAlias = tuple[AclResource, str]


class Verdict(NamedTuple):
    """The response that refuses a request; or what is left of the request, and what completes its response."""

    request: Any
    refusal: ApiMessage | None = None
    complete: Complete | None = None


# -- kinds of rules ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Whole:
    """The request as a whole needs a right, or one of several."""

    actions: tuple[AclAction, ...]
    place: Callable[[Any], Place]
    refuse: Callable[[Any, ErrorCode], ApiMessage]

    def judge(self, caller: Caller, request: Any) -> Verdict:
        resource, name = self.place(request)
        if any(caller.may(action, resource, name) for action in self.actions):
            return Verdict(request)
        return Verdict(request, self.refuse(request, caller.refuse(request.api, resource, name)))


@dataclass(frozen=True, slots=True)
class Each:
    """Each element of one of the request's lists needs a right; with ``instead`` one to the cluster serves all."""

    action: AclAction
    asked: str
    place: Callable[[Any], Place]
    answered: str
    refuse: Callable[[Any, ErrorCode], Any]
    instead: AclAction | None = None

    def judge(self, caller: Caller, request: Any) -> Verdict:
        if self.instead is not None and caller.may_cluster(self.instead):
            return Verdict(request)
        admitted, refused = [], []
        for element in getattr(request, self.asked):
            resource, name = self.place(element)
            if caller.may(self.action, resource, name):
                admitted.append(element)
            else:
                refused.append(self.refuse(element, caller.refuse(request.api, resource, name)))
        if not refused:
            return Verdict(request)

        def complete(response: Any) -> Any:
            answered = (*getattr(response, self.answered), *refused)
            return msgspec.structs.replace(response, **{self.answered: answered})

        return Verdict(msgspec.structs.replace(request, **{self.asked: tuple(admitted)}), None, complete)


@dataclass(frozen=True, slots=True)
class Judged:
    """A rule that needs more words than the others."""

    needs: tuple[tuple[AclAction, AclResource], ...]
    judge: Callable[[Caller, Any], Verdict]


@dataclass(frozen=True, slots=True)
class Inside:
    """The handler asks the caller for these."""

    needs: tuple[tuple[AclAction, AclResource], ...]

    def judge(self, _: Caller, request: Any) -> Verdict:
        return Verdict(request)


Rule: TypeAlias = Whole | Each | Judged | Inside


# -- what requests name ------------------------------------------------------------------------------------------------


def _place(resource: AclResource, attribute: str) -> Callable[[Any], Place]:
    read = attrgetter(attribute)
    return lambda asked: (resource, read(asked))


def _named(resource: AclResource) -> Callable[[Any], Place]:
    return lambda name: (resource, name)


def _cluster(_: Any) -> Place:
    return CLUSTER, CLUSTER_NAME


_topic = _place(TOPIC, "name")
_group = _place(GROUP, "group_id")
_transaction = _place(TRANSACTIONAL_ID, "transactional_id")
_CONFIGURED: Final = {2: TOPIC, 32: GROUP}  # Kafka's types of resources with settings; all others are the cluster's


def _configured(resource: Any) -> Place:
    kind = _CONFIGURED.get(resource.resource_type)
    return (CLUSTER, CLUSTER_NAME) if kind is None else (kind, resource.resource_name)


# -- how they are refused ----------------------------------------------------------------------------------------------


def _coded(cls: type[Any], **fields: Any) -> Callable[[Any, ErrorCode], Any]:
    """A response that has nothing but the code."""
    return lambda _, code: cls(error_code=code, **fields)


def _with_message(cls: type[Any], **fields: Any) -> Callable[[Any, ErrorCode], Any]:
    return lambda _, code: cls(error_code=code, error_message=REFUSED, **fields)


def _partition_codes(topic: Any, code: ErrorCode) -> TopicErrorCodes:
    rows = [PartitionErrorCode(partition_index=row.partition_index, error_code=code) for row in topic.partitions]
    return TopicErrorCodes(name=topic.name, partitions=tuple(rows))


def _list_offsets(topic: offsets.ListOffsetsTopic, code: ErrorCode) -> offsets.ListOffsetsTopicResponse:
    rows = [
        offsets.ListOffsetsPartitionResponse(partition_index=row.partition_index, error_code=code)
        for row in topic.partitions
    ]
    return offsets.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(rows))


def _epoch_ends(topic: offsets.OffsetForLeaderTopic, code: ErrorCode) -> offsets.OffsetForLeaderTopicResult:
    rows = [offsets.EpochEndOffset(error_code=code, partition=row.partition) for row in topic.partitions]
    return offsets.OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(rows))


def _commit(request: offsets.OffsetCommitRequest, code: ErrorCode) -> offsets.OffsetCommitResponse:
    return offsets.OffsetCommitResponse(topics=tuple(_partition_codes(topic, code) for topic in request.topics))


def _join(request: groups.JoinGroupRequest, code: ErrorCode) -> groups.JoinGroupResponse:
    return groups.JoinGroupResponse(
        error_code=code, protocol_name="", leader="", member_id=request.member_id, members=()
    )


def _described_group(group_id: str, code: ErrorCode) -> groups.DescribedGroup:
    return groups.DescribedGroup(
        error_code=code, group_id=group_id, group_state="", protocol_type="", protocol_data="", members=()
    )


def _described_consumer_group(group_id: str, code: ErrorCode) -> groups.DescribedConsumerGroup:
    return groups.DescribedConsumerGroup(error_code=code, error_message=REFUSED, group_id=group_id)


def _deleted_group(group_id: str, code: ErrorCode) -> groups.DeletableGroupResult:
    return groups.DeletableGroupResult(group_id=group_id, error_code=code)


def _created_topic(topic: topics.CreatableTopic, code: ErrorCode) -> topics.CreatableTopicResult:
    return topics.CreatableTopicResult(name=topic.name, error_code=code, error_message=REFUSED)


def _grown_topic(topic: topics.CreatePartitionsTopic, code: ErrorCode) -> topics.CreatePartitionsTopicResult:
    return topics.CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=REFUSED)


def _trimmed_topic(topic: topics.DeleteRecordsTopic, code: ErrorCode) -> topics.DeleteRecordsTopicResult:
    rows = [
        topics.DeleteRecordsPartitionResult(partition_index=row.partition_index, low_watermark=-1, error_code=code)
        for row in topic.partitions
    ]
    return topics.DeleteRecordsTopicResult(name=topic.name, partitions=tuple(rows))


def _described_configs(asked: configs.DescribeConfigsResource, code: ErrorCode) -> configs.DescribeConfigsResult:
    return configs.DescribeConfigsResult(
        error_code=code,
        error_message=REFUSED,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=(),
    )


def _altered_configs(asked: Any, code: ErrorCode) -> configs.AlterConfigsResourceResponse:
    return configs.AlterConfigsResourceResponse(
        error_code=code,
        error_message=REFUSED,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )


def _moved_dirs(request: configs.AlterReplicaLogDirsRequest, code: ErrorCode) -> configs.AlterReplicaLogDirsResponse:
    return configs.AlterReplicaLogDirsResponse(
        results=tuple(
            configs.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=tuple(PartitionErrorCode(partition_index=at, error_code=code) for at in topic.partitions),
            )
            for directory in request.dirs
            for topic in directory.topics
        )
    )


def _producers(topic: Any, code: ErrorCode) -> transactions.TopicResponse:
    rows = [
        transactions.PartitionResponse(partition_index=at, error_code=code, error_message=REFUSED, active_producers=())
        for at in topic.partition_indexes
    ]
    return transactions.TopicResponse(name=topic.name, partitions=tuple(rows))


def _described_transaction(name: str, code: ErrorCode) -> transactions.DescribedTransaction:
    return transactions.DescribedTransaction(
        error_code=code,
        transactional_id=name,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
        topics=(),
    )


def _markers(request: transactions.WriteTxnMarkersRequest, code: ErrorCode) -> transactions.WriteTxnMarkersResponse:
    return transactions.WriteTxnMarkersResponse(
        markers=tuple(
            transactions.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=tuple(
                    TopicErrorCodes(
                        name=topic.name,
                        partitions=tuple(
                            PartitionErrorCode(partition_index=at, error_code=code) for at in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )


def _added(
    request: transactions.AddPartitionsToTxnRequest, code_of: Callable[[str], ErrorCode]
) -> transactions.AddPartitionsToTxnResponse:
    return transactions.AddPartitionsToTxnResponse(
        results=tuple(
            transactions.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    transactions.AddPartitionsToTxnPartitionResult(
                        partition_index=at, partition_error_code=code_of(topic.name)
                    )
                    for at in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _transactional_commit(
    request: transactions.TxnOffsetCommitRequest, code: ErrorCode
) -> transactions.TxnOffsetCommitResponse:
    return transactions.TxnOffsetCommitResponse(topics=tuple(_partition_codes(topic, code) for topic in request.topics))


def _created_acls(request: security.CreateAclsRequest, code: ErrorCode) -> security.CreateAclsResponse:
    refused = security.AclCreationResult(error_code=code, error_message=REFUSED)
    return security.CreateAclsResponse(results=(refused,) * len(request.creations))


def _deleted_acls(request: security.DeleteAclsRequest, code: ErrorCode) -> security.DeleteAclsResponse:
    refused = security.DeleteAclsFilterResult(error_code=code, error_message=REFUSED)
    return security.DeleteAclsResponse(filter_results=(refused,) * len(request.filters))


def _altered_users(
    request: security.AlterUserScramCredentialsRequest, code: ErrorCode
) -> security.AlterUserScramCredentialsResponse:
    users = dict.fromkeys([each.name for each in request.deletions] + [each.name for each in request.upsertions])
    return security.AlterUserScramCredentialsResponse(
        results=tuple(
            security.AlterUserScramCredentialsResult(user=user, error_code=code, error_message=REFUSED)
            for user in users
        )
    )


# -- rules of their own ------------------------------------------------------------------------------------------------


def _judge_find_coordinator(caller: Caller, request: groups.FindCoordinatorRequest) -> Verdict:
    """One key up to version 3, many from 4 on; of groups (0) or of transactions (1)."""
    resource = TRANSACTIONAL_ID if request.key_type == 1 else GROUP
    refused = [key for key in request.coordinator_keys or (request.key,) if not caller.may(DESCRIBE, resource, key)]
    if not refused:
        return Verdict(request)
    code = caller.refuse(request.api, resource, ", ".join(refused))
    nowhere = tuple(
        groups.Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=REFUSED)
        for key in refused
    )
    if not request.coordinator_keys:
        alone = groups.FindCoordinatorResponse(error_code=code, error_message=REFUSED, node_id=-1, host="", port=-1)
        return Verdict(request, alone)
    left = tuple(key for key in request.coordinator_keys if key not in set(refused))

    def complete(response: groups.FindCoordinatorResponse) -> groups.FindCoordinatorResponse:
        return msgspec.structs.replace(response, coordinators=(*response.coordinators, *nowhere))

    return Verdict(msgspec.structs.replace(request, coordinator_keys=left), None, complete)


def _judge_init_producer_id(caller: Caller, request: transactions.InitProducerIdRequest) -> Verdict:
    """An idempotent producer needs to write somewhere: to the cluster as such, or to any topic (KIP-679)."""
    if request.transactional_id is not None:
        resource, name = TRANSACTIONAL_ID, request.transactional_id
        is_allowed = caller.may(WRITE, resource, name)
    else:
        resource, name = CLUSTER, CLUSTER_NAME
        is_allowed = caller.may_cluster(IDEMPOTENT_WRITE) or caller.may_some(WRITE, TOPIC)
    if is_allowed:
        return Verdict(request)
    code = caller.refuse(request.api, resource, name)
    return Verdict(request, transactions.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1))


def _judge_add_partitions(caller: Caller, request: transactions.AddPartitionsToTxnRequest) -> Verdict:
    """All partitions are added, or none."""
    named = request.transactional_id
    if not caller.may(WRITE, TRANSACTIONAL_ID, named):
        code = caller.refuse(request.api, TRANSACTIONAL_ID, named)
        return Verdict(request, _added(request, lambda _: code))
    refused = {topic.name for topic in request.topics if not caller.may_topic(WRITE, topic.name)}
    if not refused:
        return Verdict(request)
    code, others = caller.refuse(request.api, TOPIC, ", ".join(refused)), ErrorCode.OPERATION_NOT_ATTEMPTED
    return Verdict(request, _added(request, lambda name: code if name in refused else others))


def _judge_consumer_heartbeat(caller: Caller, request: groups.ConsumerGroupHeartbeatRequest) -> Verdict:
    code = ErrorCode.NONE
    refused = [name for name in request.subscribed_topic_names or () if not caller.may_topic(DESCRIBE, name)]
    if not caller.may_group(READ, request.group_id):
        code = caller.refuse(request.api, GROUP, request.group_id)
    elif refused:
        code = caller.refuse(request.api, TOPIC, ", ".join(refused))
    if not code:
        return Verdict(request)
    return Verdict(request, groups.ConsumerGroupHeartbeatResponse(error_code=code, error_message=REFUSED))


# -- the table ---------------------------------------------------------------------------------------------------------

_altered_settings = Each(ALTER_CONFIGS, "resources", _configured, "responses", _altered_configs)

RIGHTS: Final[Mapping[Api, tuple[Rule, ...]]] = {
    # records
    apis.PRODUCE: (Inside(((WRITE, TOPIC), (WRITE, TRANSACTIONAL_ID))),),
    apis.FETCH: (Inside(((READ, TOPIC), (CLUSTER_ACTION, CLUSTER))),),
    apis.LIST_OFFSETS: (Each(DESCRIBE, "topics", _topic, "topics", _list_offsets),),
    apis.OFFSET_FOR_LEADER_EPOCH: (
        Each(DESCRIBE, "topics", _place(TOPIC, "topic"), "topics", _epoch_ends, instead=CLUSTER_ACTION),
    ),
    apis.DELETE_RECORDS: (Each(DELETE, "topics", _topic, "topics", _trimmed_topic),),
    # the cluster
    apis.API_VERSIONS: (),
    apis.METADATA: (Inside(((DESCRIBE, TOPIC), (CREATE, TOPIC), (CREATE, CLUSTER), (DESCRIBE, CLUSTER))),),
    apis.DESCRIBE_CLUSTER: (Inside(((DESCRIBE, CLUSTER),)),),
    apis.DESCRIBE_TOPIC_PARTITIONS: (Inside(((DESCRIBE, TOPIC),)),),
    apis.UPDATE_FEATURES: (Whole((ALTER,), _cluster, _with_message(cluster.UpdateFeaturesResponse)),),
    apis.ALTER_PARTITION_REASSIGNMENTS: (
        Whole((ALTER,), _cluster, _with_message(cluster.AlterPartitionReassignmentsResponse, responses=())),
    ),
    apis.LIST_PARTITION_REASSIGNMENTS: (
        Whole((DESCRIBE,), _cluster, _with_message(cluster.ListPartitionReassignmentsResponse, topics=())),
    ),
    apis.ELECT_LEADERS: (Whole((ALTER,), _cluster, _coded(cluster.ElectLeadersResponse, replica_election_results=())),),
    apis.DESCRIBE_QUORUM: (Whole((DESCRIBE,), _cluster, _with_message(cluster.DescribeQuorumResponse, topics=())),),
    # topics and settings
    apis.CREATE_TOPICS: (
        Each(CREATE, "topics", _topic, "topics", _created_topic, instead=CREATE),
        Inside(((DESCRIBE_CONFIGS, TOPIC),)),
    ),
    apis.DELETE_TOPICS: (Inside(((DELETE, TOPIC), (DELETE, CLUSTER), (DESCRIBE, TOPIC))),),
    apis.CREATE_PARTITIONS: (Each(ALTER, "topics", _topic, "results", _grown_topic),),
    apis.DESCRIBE_CONFIGS: (Each(DESCRIBE_CONFIGS, "resources", _configured, "results", _described_configs),),
    apis.ALTER_CONFIGS: (_altered_settings,),
    apis.INCREMENTAL_ALTER_CONFIGS: (_altered_settings,),
    apis.LIST_CONFIG_RESOURCES: (Whole((DESCRIBE_CONFIGS,), _cluster, _coded(configs.ListConfigResourcesResponse)),),
    apis.DESCRIBE_CLIENT_QUOTAS: (
        Whole((DESCRIBE_CONFIGS,), _cluster, _with_message(configs.DescribeClientQuotasResponse, entries=None)),
    ),
    apis.DESCRIBE_LOG_DIRS: (Whole((DESCRIBE,), _cluster, _coded(configs.DescribeLogDirsResponse, results=())),),
    apis.ALTER_REPLICA_LOG_DIRS: (Whole((ALTER,), _cluster, _moved_dirs),),
    # groups
    apis.FIND_COORDINATOR: (Judged(((DESCRIBE, GROUP), (DESCRIBE, TRANSACTIONAL_ID)), _judge_find_coordinator),),
    apis.JOIN_GROUP: (Whole((READ,), _group, _join),),
    apis.SYNC_GROUP: (Whole((READ,), _group, _coded(groups.SyncGroupResponse, assignment=b"")),),
    apis.HEARTBEAT: (Whole((READ,), _group, _coded(groups.HeartbeatResponse)),),
    apis.LEAVE_GROUP: (Whole((READ,), _group, _coded(groups.LeaveGroupResponse)),),
    apis.DESCRIBE_GROUPS: (Each(DESCRIBE, "groups", _named(GROUP), "groups", _described_group),),
    apis.LIST_GROUPS: (Inside(((DESCRIBE, GROUP), (DESCRIBE, CLUSTER))),),
    apis.DELETE_GROUPS: (Each(DELETE, "groups_names", _named(GROUP), "results", _deleted_group),),
    apis.CONSUMER_GROUP_HEARTBEAT: (Judged(((READ, GROUP), (DESCRIBE, TOPIC)), _judge_consumer_heartbeat),),
    apis.CONSUMER_GROUP_DESCRIBE: (
        Each(DESCRIBE, "group_ids", _named(GROUP), "groups", _described_consumer_group),
        Inside(((DESCRIBE, TOPIC),)),
    ),
    apis.OFFSET_COMMIT: (
        Whole((READ,), _group, _commit),
        Each(READ, "topics", _topic, "topics", _partition_codes),
    ),
    apis.OFFSET_FETCH: (Inside(((DESCRIBE, GROUP), (DESCRIBE, TOPIC))),),
    apis.OFFSET_DELETE: (
        Whole((DELETE,), _group, _coded(offsets.OffsetDeleteResponse, topics=())),
        Each(READ, "topics", _topic, "topics", _partition_codes),
    ),
    # transactions
    apis.INIT_PRODUCER_ID: (
        Judged(((WRITE, TRANSACTIONAL_ID), (IDEMPOTENT_WRITE, CLUSTER), (WRITE, TOPIC)), _judge_init_producer_id),
    ),
    apis.ADD_PARTITIONS_TO_TXN: (Judged(((WRITE, TRANSACTIONAL_ID), (WRITE, TOPIC)), _judge_add_partitions),),
    apis.ADD_OFFSETS_TO_TXN: (
        Whole((WRITE,), _transaction, _coded(transactions.AddOffsetsToTxnResponse)),
        Whole((READ,), _group, _coded(transactions.AddOffsetsToTxnResponse)),
    ),
    apis.END_TXN: (Whole((WRITE,), _transaction, _coded(transactions.EndTxnResponse)),),
    apis.TXN_OFFSET_COMMIT: (
        Whole((WRITE,), _transaction, _transactional_commit),
        Whole((READ,), _group, _transactional_commit),
        Each(READ, "topics", _topic, "topics", _partition_codes),
    ),
    apis.WRITE_TXN_MARKERS: (Whole((ALTER, CLUSTER_ACTION), _cluster, _markers),),
    apis.DESCRIBE_PRODUCERS: (Each(READ, "topics", _topic, "topics", _producers),),
    apis.DESCRIBE_TRANSACTIONS: (
        Each(
            DESCRIBE,
            "transactional_ids",
            _named(TRANSACTIONAL_ID),
            "transaction_states",
            _described_transaction,
        ),
        Inside(((DESCRIBE, TOPIC),)),
    ),
    apis.LIST_TRANSACTIONS: (Inside(((DESCRIBE, TRANSACTIONAL_ID),)),),
    # security
    apis.SASL_HANDSHAKE: (),
    apis.SASL_AUTHENTICATE: (),
    apis.DESCRIBE_ACLS: (Whole((DESCRIBE,), _cluster, _with_message(security.DescribeAclsResponse)),),
    apis.CREATE_ACLS: (Whole((ALTER,), _cluster, _created_acls),),
    apis.DELETE_ACLS: (Whole((ALTER,), _cluster, _deleted_acls),),
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        Whole((DESCRIBE,), _cluster, _with_message(security.DescribeUserScramCredentialsResponse)),
    ),
    apis.ALTER_USER_SCRAM_CREDENTIALS: (Whole((ALTER,), _cluster, _altered_users),),
}


def judge(caller: Caller, api: Api, request: Any) -> Verdict:
    """What of a request the caller may have; the first rule that refuses all of it decides."""
    rules = RIGHTS.get(api)
    if rules is None:
        raise ProtocolError(f"{api.name} has no rule of access, so it is refused.")
    completions: list[Complete] = []
    for rule in rules:
        request, refusal, complete = rule.judge(caller, request)
        if refusal is not None:
            return Verdict(request, refusal)
        if complete is not None:
            completions.append(complete)
    if not completions:
        return Verdict(request)

    def complete_all(response: Any) -> Any:
        for complete in completions:
            response = complete(response)
        return response

    return Verdict(request, None, complete_all)
