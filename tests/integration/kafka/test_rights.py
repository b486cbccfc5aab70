"""What each API refuses to a principal without rules, and serves once the rule is there, over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.integration.kafka.test_door import fetch, produce
from tests.support.secure_door import ADMIN, TOPIC, Client, SecureDoor, acl, tell

from penstock.access.acls import CLUSTER_NAME, AclAction, AclPattern, AclPermission, AclResource
from penstock.consensus.controller import TopicSpec
from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import (
    MESSAGES,
    cluster,
    configs,
    groups,
    offsets,
    quotas,
    security,
    topics,
    transactions,
)
from penstock.doors.kafka.protocol.messages import records as plain
from penstock.doors.kafka.protocol.messages.shared import (
    ConfigValue,
    TopicAndPartitions,
    TopicPartitionIndexes,
    TopicPartitions,
)
from penstock.doors.kafka.protocol.schema import NO_UUID, ApiMessage
from penstock.doors.kafka.rights import RIGHTS

READ, WRITE, CREATE, DELETE = AclAction.READ, AclAction.WRITE, AclAction.CREATE, AclAction.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = AclAction.ALTER, AclAction.DESCRIBE, AclAction.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclAction.DESCRIBE_CONFIGS, AclAction.ALTER_CONFIGS
IDEMPOTENT_WRITE = AclAction.IDEMPOTENT_WRITE
TOPICS, GROUPS = AclResource.TOPIC, AclResource.GROUP
CLUSTER, IDS = AclResource.CLUSTER, AclResource.TRANSACTIONAL_ID
NO_TOPIC, NO_GROUP = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER, NO_ID = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
USER, GROUP, ID = "alice", "g", "tx"


class Case(NamedTuple):
    """A request, how it is refused, and the right that ends that refusal."""

    request: ApiMessage
    code: ErrorCode
    right: tuple[AclAction, AclResource, str]
    held: tuple[tuple[AclAction, AclResource, str], ...] = ()  # rights that the caller has from the start


COMMITTED = offsets.OffsetCommitRequestTopic(
    name=TOPIC,
    partitions=(offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=""),),
)
COMMIT = offsets.OffsetCommitRequest(group_id=GROUP, member_id="", topics=(COMMITTED,))
TXN_COMMIT = transactions.TxnOffsetCommitRequest(
    transactional_id=ID,
    group_id=GROUP,
    producer_id=1,
    producer_epoch=0,
    topics=(
        transactions.TxnOffsetCommitRequestTopic(
            name=TOPIC,
            partitions=(
                transactions.TxnOffsetCommitRequestPartition(
                    partition_index=0, committed_offset=1, committed_metadata=""
                ),
            ),
        ),
    ),
)
OFFSET_FETCH = offsets.OffsetFetchRequest(
    groups=(
        offsets.OffsetFetchRequestGroup(
            group_id=GROUP, topics=(TopicPartitionIndexes(name=TOPIC, partition_indexes=(0,)),)
        ),
    )
)
OFFSET_DELETE = offsets.OffsetDeleteRequest(
    group_id=GROUP,
    topics=(
        offsets.OffsetDeleteRequestTopic(
            name=TOPIC, partitions=(offsets.OffsetDeleteRequestPartition(partition_index=0),)
        ),
    ),
)
ADD_PARTITIONS = transactions.AddPartitionsToTxnRequest(
    transactional_id=ID, producer_id=1, producer_epoch=0, topics=(TopicPartitions(name=TOPIC, partitions=(0,)),)
)
ADD_OFFSETS = transactions.AddOffsetsToTxnRequest(transactional_id=ID, producer_id=1, producer_epoch=0, group_id=GROUP)
BEAT = groups.ConsumerGroupHeartbeatRequest(
    group_id=GROUP,
    member_id="m",
    member_epoch=0,
    rebalance_timeout_ms=1_000,
    subscribed_topic_names=(TOPIC,),
    topic_partitions=(),
)
ANY_ACL = security.DescribeAclsRequest(
    resource_type_filter=1,
    resource_name_filter=None,
    pattern_type_filter=1,
    principal_filter=None,
    host_filter=None,
    operation=1,
    permission_type=1,
)
NO_ACL = security.AclFilter(
    resource_type_filter=2,
    resource_name_filter="missing",
    pattern_type_filter=3,
    principal_filter=None,
    host_filter=None,
    operation=1,
    permission_type=1,
)
NEW_ACL = security.AclCreation(
    resource_type=2, resource_name="x", principal="User:x", host="*", operation=3, permission_type=3
)
NEW_USER = security.ScramCredentialUpsertion(
    name="bob", mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"p" * 32
)


def described(kind: int, name: str) -> configs.DescribeConfigsRequest:
    resource = configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    return configs.DescribeConfigsRequest(resources=(resource,))


def altered(kind: int, name: str, key: str, value: str) -> configs.IncrementalAlterConfigsRequest:
    change = configs.IncrementalAlterableConfig(name=key, config_operation=0, value=value)
    resource = configs.IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=(change,))
    return configs.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=True)


def created(name: str) -> topics.CreateTopicsRequest:
    topic = topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
    return topics.CreateTopicsRequest(topics=(topic,))


def metadata(name: str, *, creates: bool = False) -> cluster.MetadataRequest:
    return cluster.MetadataRequest(topics=(cluster.MetadataRequestTopic(name=name),), allow_auto_topic_creation=creates)


def transactional(request: plain.ProduceRequest) -> plain.ProduceRequest:
    return msgspec.structs.replace(request, transactional_id=ID)


CASES = (
    Case(produce(b"x"), NO_TOPIC, (WRITE, TOPICS, TOPIC)),
    Case(transactional(produce(b"x")), NO_ID, (WRITE, IDS, ID), ((WRITE, TOPICS, TOPIC),)),
    Case(
        offsets.ListOffsetsRequest(
            replica_id=-1,
            topics=(
                offsets.ListOffsetsTopic(
                    name=TOPIC, partitions=(offsets.ListOffsetsPartition(partition_index=0, timestamp=-1),)
                ),
            ),
        ),
        NO_TOPIC,
        (DESCRIBE, TOPICS, TOPIC),
    ),
    Case(metadata(TOPIC), NO_TOPIC, (DESCRIBE, TOPICS, TOPIC)),
    Case(metadata("missing"), NO_TOPIC, (DESCRIBE, TOPICS, "missing")),
    Case(metadata("new", creates=True), NO_TOPIC, (CREATE, TOPICS, "new"), ((DESCRIBE, TOPICS, "new"),)),
    Case(metadata("newer", creates=True), NO_TOPIC, (CREATE, CLUSTER, CLUSTER_NAME), ((DESCRIBE, TOPICS, "newer"),)),
    Case(COMMIT, NO_GROUP, (READ, GROUPS, GROUP)),
    Case(COMMIT, NO_TOPIC, (READ, TOPICS, TOPIC), ((READ, GROUPS, GROUP),)),
    Case(OFFSET_FETCH, NO_GROUP, (DESCRIBE, GROUPS, GROUP)),
    Case(OFFSET_FETCH, NO_TOPIC, (DESCRIBE, TOPICS, TOPIC), ((DESCRIBE, GROUPS, GROUP),)),
    Case(OFFSET_DELETE, NO_GROUP, (DELETE, GROUPS, GROUP)),
    Case(groups.FindCoordinatorRequest(coordinator_keys=(GROUP,)), NO_GROUP, (DESCRIBE, GROUPS, GROUP)),
    Case(groups.FindCoordinatorRequest(key_type=1, coordinator_keys=(ID,)), NO_ID, (DESCRIBE, IDS, ID)),
    Case(
        groups.JoinGroupRequest(
            group_id=GROUP, session_timeout_ms=6_000, member_id="", protocol_type="consumer", protocols=()
        ),
        NO_GROUP,
        (READ, GROUPS, GROUP),
    ),
    Case(
        groups.SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="m", assignments=()),
        NO_GROUP,
        (READ, GROUPS, GROUP),
    ),
    Case(groups.HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m"), NO_GROUP, (READ, GROUPS, GROUP)),
    Case(
        groups.LeaveGroupRequest(group_id=GROUP, members=(groups.MemberIdentity(member_id="m"),)),
        NO_GROUP,
        (READ, GROUPS, GROUP),
    ),
    Case(groups.DescribeGroupsRequest(groups=(GROUP,)), NO_GROUP, (DESCRIBE, GROUPS, GROUP)),
    Case(groups.DeleteGroupsRequest(groups_names=(GROUP,)), NO_GROUP, (DELETE, GROUPS, GROUP)),
    Case(groups.ConsumerGroupDescribeRequest(group_ids=(GROUP,)), NO_GROUP, (DESCRIBE, GROUPS, GROUP)),
    Case(BEAT, NO_GROUP, (READ, GROUPS, GROUP)),
    Case(BEAT, NO_TOPIC, (DESCRIBE, TOPICS, TOPIC), ((READ, GROUPS, GROUP),)),
    Case(created("made"), NO_TOPIC, (CREATE, TOPICS, "made")),
    Case(created("made-too"), NO_TOPIC, (CREATE, CLUSTER, CLUSTER_NAME)),
    Case(
        topics.DeleteTopicsRequest(topics=(topics.DeleteTopicState(name="gone", topic_id=NO_UUID),), timeout_ms=1_000),
        NO_TOPIC,
        (DELETE, TOPICS, "gone"),
    ),
    Case(
        topics.CreatePartitionsRequest(
            topics=(topics.CreatePartitionsTopic(name=TOPIC, count=3, assignments=None),),
            timeout_ms=1_000,
            validate_only=True,
        ),
        NO_TOPIC,
        (ALTER, TOPICS, TOPIC),
    ),
    Case(
        topics.DeleteRecordsRequest(
            topics=(
                topics.DeleteRecordsTopic(
                    name=TOPIC, partitions=(topics.DeleteRecordsPartition(partition_index=0, offset=0),)
                ),
            ),
            timeout_ms=1_000,
        ),
        NO_TOPIC,
        (DELETE, TOPICS, TOPIC),
    ),
    Case(
        offsets.OffsetForLeaderEpochRequest(
            topics=(
                offsets.OffsetForLeaderTopic(
                    topic=TOPIC, partitions=(offsets.OffsetForLeaderPartition(partition=0, leader_epoch=0),)
                ),
            )
        ),
        NO_TOPIC,
        (DESCRIBE, TOPICS, TOPIC),
    ),
    Case(
        transactions.InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=1_000),
        NO_ID,
        (WRITE, IDS, ID),
    ),
    Case(
        transactions.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000),
        NO_CLUSTER,
        (IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME),
    ),
    Case(
        transactions.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000),
        NO_CLUSTER,
        (WRITE, TOPICS, "any"),
    ),
    Case(ADD_PARTITIONS, NO_ID, (WRITE, IDS, ID)),
    Case(ADD_PARTITIONS, NO_TOPIC, (WRITE, TOPICS, TOPIC), ((WRITE, IDS, ID),)),
    Case(ADD_OFFSETS, NO_ID, (WRITE, IDS, ID)),
    Case(ADD_OFFSETS, NO_GROUP, (READ, GROUPS, GROUP), ((WRITE, IDS, ID),)),
    Case(
        transactions.EndTxnRequest(transactional_id=ID, producer_id=1, producer_epoch=0, committed=True),
        NO_ID,
        (WRITE, IDS, ID),
    ),
    Case(TXN_COMMIT, NO_ID, (WRITE, IDS, ID)),
    Case(TXN_COMMIT, NO_GROUP, (READ, GROUPS, GROUP), ((WRITE, IDS, ID),)),
    Case(TXN_COMMIT, NO_TOPIC, (READ, TOPICS, TOPIC), ((WRITE, IDS, ID), (READ, GROUPS, GROUP))),
    Case(
        transactions.WriteTxnMarkersRequest(
            markers=(
                transactions.WritableTxnMarker(
                    producer_id=1,
                    producer_epoch=0,
                    transaction_result=False,
                    topics=(TopicPartitionIndexes(name=TOPIC, partition_indexes=(0,)),),
                    coordinator_epoch=0,
                ),
            )
        ),
        NO_CLUSTER,
        (CLUSTER_ACTION, CLUSTER, CLUSTER_NAME),
    ),
    Case(
        transactions.DescribeProducersRequest(topics=(TopicPartitionIndexes(name=TOPIC, partition_indexes=(0,)),)),
        NO_TOPIC,
        (READ, TOPICS, TOPIC),
    ),
    Case(transactions.DescribeTransactionsRequest(transactional_ids=(ID,)), NO_ID, (DESCRIBE, IDS, ID)),
    Case(described(2, TOPIC), NO_TOPIC, (DESCRIBE_CONFIGS, TOPICS, TOPIC)),
    Case(described(4, "1"), NO_CLUSTER, (DESCRIBE_CONFIGS, CLUSTER, CLUSTER_NAME)),
    Case(described(8, "1"), NO_CLUSTER, (DESCRIBE_CONFIGS, CLUSTER, CLUSTER_NAME)),
    Case(described(32, GROUP), NO_GROUP, (DESCRIBE_CONFIGS, GROUPS, GROUP)),
    Case(altered(2, TOPIC, "retention.ms", "1000"), NO_TOPIC, (ALTER_CONFIGS, TOPICS, TOPIC)),
    Case(altered(8, "1", "root", "INFO"), NO_CLUSTER, (ALTER_CONFIGS, CLUSTER, CLUSTER_NAME)),
    Case(
        configs.AlterConfigsRequest(
            resources=(
                configs.AlterConfigsResource(
                    resource_type=2, resource_name=TOPIC, configs=(ConfigValue(name="retention.ms", value="1000"),)
                ),
            ),
            validate_only=True,
        ),
        NO_TOPIC,
        (ALTER_CONFIGS, TOPICS, TOPIC),
    ),
    Case(configs.ListConfigResourcesRequest(), NO_CLUSTER, (DESCRIBE_CONFIGS, CLUSTER, CLUSTER_NAME)),
    Case(
        quotas.DescribeClientQuotasRequest(components=(), strict=False),
        NO_CLUSTER,
        (DESCRIBE_CONFIGS, CLUSTER, CLUSTER_NAME),
    ),
    Case(
        quotas.AlterClientQuotasRequest(
            entries=(
                quotas.AlteredQuota(
                    entity=(quotas.QuotaPart(entity_type="user", entity_name="alice"),),
                    ops=(quotas.QuotaChange(key="producer_byte_rate", value=1e9, remove=False),),
                ),
            ),
            validate_only=True,
        ),
        NO_CLUSTER,
        (ALTER_CONFIGS, CLUSTER, CLUSTER_NAME),
    ),
    Case(configs.DescribeLogDirsRequest(topics=None), NO_CLUSTER, (DESCRIBE, CLUSTER, CLUSTER_NAME)),
    Case(
        configs.AlterReplicaLogDirsRequest(
            dirs=(configs.AlterReplicaLogDir(path="/x", topics=(TopicPartitions(name=TOPIC, partitions=(0,)),)),)
        ),
        NO_CLUSTER,
        (ALTER, CLUSTER, CLUSTER_NAME),
    ),
    Case(cluster.UpdateFeaturesRequest(feature_updates=()), NO_CLUSTER, (ALTER, CLUSTER, CLUSTER_NAME)),
    Case(cluster.AlterPartitionReassignmentsRequest(topics=()), NO_CLUSTER, (ALTER, CLUSTER, CLUSTER_NAME)),
    Case(cluster.ListPartitionReassignmentsRequest(), NO_CLUSTER, (DESCRIBE, CLUSTER, CLUSTER_NAME)),
    Case(
        cluster.ElectLeadersRequest(topic_partitions=(TopicAndPartitions(topic=TOPIC, partitions=(0,)),)),
        NO_CLUSTER,
        (ALTER, CLUSTER, CLUSTER_NAME),
    ),
    Case(cluster.DescribeQuorumRequest(topics=()), NO_CLUSTER, (DESCRIBE, CLUSTER, CLUSTER_NAME)),
    Case(
        cluster.DescribeTopicPartitionsRequest(topics=(cluster.TopicRequest(name=TOPIC),)),
        NO_TOPIC,
        (DESCRIBE, TOPICS, TOPIC),
    ),
    Case(ANY_ACL, NO_CLUSTER, (DESCRIBE, CLUSTER, CLUSTER_NAME)),
    Case(security.CreateAclsRequest(creations=(NEW_ACL,)), NO_CLUSTER, (ALTER, CLUSTER, CLUSTER_NAME)),
    Case(security.DeleteAclsRequest(filters=(NO_ACL,)), NO_CLUSTER, (ALTER, CLUSTER, CLUSTER_NAME)),
    Case(security.DescribeUserScramCredentialsRequest(users=None), NO_CLUSTER, (DESCRIBE, CLUSTER, CLUSTER_NAME)),
    Case(
        security.AlterUserScramCredentialsRequest(deletions=(), upsertions=(NEW_USER,)),
        NO_CLUSTER,
        (ALTER, CLUSTER, CLUSTER_NAME),
    ),
)
# APIs that refuse nothing as such, or have tests of their own below.
ELSEWHERE = {
    apis.API_VERSIONS,
    apis.SASL_HANDSHAKE,
    apis.SASL_AUTHENTICATE,
    apis.FETCH,
    apis.DESCRIBE_CLUSTER,
    apis.LIST_GROUPS,
    apis.LIST_TRANSACTIONS,
}


def codes_in(value: Any) -> Iterator[int]:
    """Every error code of a response, wherever it stands."""
    if isinstance(value, tuple):
        for each in value:
            yield from codes_in(each)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            if name.endswith("error_code") and name != "topic_config_error_code":
                yield getattr(value, name)
            else:
                yield from codes_in(getattr(value, name))


async def codes_of(client: Client, request: ApiMessage) -> set[int]:
    version = min(request.api.last, 9) if request.api is apis.PRODUCE else request.api.last
    response = await client.ask(request, version, MESSAGES[request.api.key][1])
    return set(codes_in(response))


def test_every_api_is_tried() -> None:
    assert {case.request.api for case in CASES} | ELSEWHERE == set(RIGHTS)


def test_each_api_is_refused_without_its_right_and_not_with_it(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        await door.broker.ensure_offsets_topic()
        await door.broker.ensure_transactions_topic()
        for at, case in enumerate(CASES):
            if isinstance(case.request, topics.DeleteTopicsRequest):
                await door.broker.create_topic(TopicSpec(name="gone", partitions=1))
            user = f"{USER}-{at}"
            await door.add_user(user)
            for right in case.held:
                await door.allow(user, *right)
            client = await door.client(user)
            what = f"{case.request.api.name} without {case.right}"
            assert case.code in await codes_of(client, case.request), what
            await door.allow(user, *case.right)
            codes = await codes_of(client, case.request)
            assert case.code not in codes, what

    tell(tmp_path, story)


# -- records -----------------------------------------------------------------------------------------------------------


async def produced(client: Client, request: plain.ProduceRequest) -> dict[str, int]:
    answer = await client.ask(request, 9, plain.ProduceResponse)
    return {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}


def test_a_revoked_right_ends_repeated_produces_of_an_open_connection(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        await door.add_user(USER)
        rule = await door.allow(USER, WRITE, TOPICS, TOPIC)
        client = await door.client(USER)
        for _ in range(5):
            assert await produced(client, produce(b"x")) == {TOPIC: 0}
        await door.revoke(rule)
        for _ in range(3):
            assert await produced(client, produce(b"x")) == {TOPIC: NO_TOPIC}
        assert door.broker.partition(TOPIC, 0).log.end_offset == 5
        await door.allow(USER, WRITE, TOPICS, TOPIC)
        assert await produced(client, produce(b"x")) == {TOPIC: 0}

    tell(tmp_path, story)


def test_a_request_for_several_topics_is_served_in_part(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        await door.broker.create_topic(TopicSpec(name="closed", partitions=1))
        await door.add_user(USER)
        await door.allow(USER, WRITE, TOPICS, TOPIC)
        client = await door.client(USER)
        open_, closed = produce(b"x", acks=-1), produce(b"x", topic="closed")
        both = msgspec.structs.replace(open_, topic_data=(*closed.topic_data, *open_.topic_data))
        assert await produced(client, both) == {TOPIC: 0, "closed": NO_TOPIC}
        assert door.broker.partition("closed", 0).log.end_offset == 0
        assert door.broker.partition(TOPIC, 0).log.end_offset == 1

    tell(tmp_path, story)


def test_fetches_need_read_by_name_and_by_id_and_lose_it_while_they_wait(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        await door.add_user(USER)
        client = await door.client(USER)
        by_name = fetch(0)
        by_id = msgspec.structs.replace(
            by_name,
            topics=(msgspec.structs.replace(by_name.topics[0], topic_id=door.broker.metadata.topic(TOPIC).topic_id),),
        )
        for version, request in ((12, by_name), (17, by_id)):
            answer = await client.ask(request, version, plain.FetchResponse)
            assert answer.responses[0].partitions[0].error_code == NO_TOPIC
            assert not answer.responses[0].partitions[0].records
        rule = await door.allow(USER, READ, TOPICS, TOPIC)
        for version, request in ((12, by_name), (17, by_id)):
            answer = await client.ask(request, version, plain.FetchResponse)
            assert answer.responses[0].partitions[0].error_code == 0
        waiting = msgspec.structs.replace(by_name, max_wait_ms=60_000)
        client.send(waiting, 12)
        await door.revoke(rule)
        admin = await door.client(ADMIN)
        assert await produced(admin, produce(b"secret")) == {TOPIC: 0}
        assert b"secret" not in bytes(await client.receive())

    tell(tmp_path, story)


def test_prefixes_denials_and_hosts_are_honoured(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        for name in ("app.a", "app.secret", "other", "here"):
            await door.broker.create_topic(TopicSpec(name=name, partitions=1))
        await door.add_user(USER)
        await door.allow(USER, WRITE, TOPICS, "app.", pattern=AclPattern.PREFIXED)
        await door.allow(USER, WRITE, TOPICS, "app.secret", permission=AclPermission.DENY)
        await door.allow(USER, WRITE, TOPICS, "other", host="10.0.0.1")
        await door.allow(USER, WRITE, TOPICS, "here", host="127.0.0.1")
        client = await door.client(USER)
        for name, code in (("app.a", 0), ("app.secret", NO_TOPIC), ("other", NO_TOPIC), ("here", 0)):
            assert await produced(client, produce(b"x", topic=name)) == {name: code}

    tell(tmp_path, story)


@pytest.mark.parametrize("user", [USER, ADMIN])
def test_internal_topics_are_closed_to_clients(tmp_path: Path, user: str) -> None:
    async def story(door: SecureDoor) -> None:
        await door.broker.ensure_offsets_topic()
        if user == USER:
            await door.add_user(USER)
            await door.allow(USER, AclAction.ALL, TOPICS, "*")
        client = await door.client(user)
        internal = fetch(0)
        topic = msgspec.structs.replace(internal.topics[0], topic="__consumer_offsets")
        answer = await client.ask(msgspec.structs.replace(internal, topics=(topic,)), 12, plain.FetchResponse)
        assert answer.responses[0].partitions[0].error_code == NO_TOPIC
        assert await produced(client, produce(b"x", topic="__consumer_offsets")) == {"__consumer_offsets": NO_TOPIC}

    tell(tmp_path, story)


# -- what is listed ----------------------------------------------------------------------------------------------------


def test_lists_hold_what_the_caller_may_describe(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        await door.broker.create_topic(TopicSpec(name="closed", partitions=1))
        await door.broker.ensure_offsets_topic()
        await door.broker.ensure_transactions_topic()
        await door.add_user(USER)
        admin, client = await door.client(ADMIN), await door.client(USER)
        for name in ("mine", "theirs"):
            await door.broker.groups.await_shard(name)
            commit = msgspec.structs.replace(COMMIT, group_id=name)
            assert await codes_of(admin, commit) == {0}
            started = transactions.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000)
            await door.broker.transactions.await_shard(name)
            assert await codes_of(admin, started) == {0}

        async def listed(asking: Client) -> tuple[set[str | None], set[str], set[str]]:
            known = await asking.ask(cluster.MetadataRequest(topics=None), 12, cluster.MetadataResponse)
            grouped = await asking.ask(groups.ListGroupsRequest(), 5, groups.ListGroupsResponse)
            every = transactions.ListTransactionsRequest(state_filters=(), producer_id_filters=())
            open_ = await asking.ask(every, 2, transactions.ListTransactionsResponse)
            return (
                {topic.name for topic in known.topics},
                {group.group_id for group in grouped.groups},
                {each.transactional_id for each in open_.transaction_states},
            )

        assert await listed(client) == (set(), set(), set())
        await door.allow(USER, READ, TOPICS, TOPIC)
        await door.allow(USER, READ, GROUPS, "mine")
        await door.allow(USER, WRITE, IDS, "mine")
        assert await listed(client) == ({TOPIC}, {"mine"}, {"mine"})
        assert await listed(admin) == ({TOPIC, "closed"}, {"mine", "theirs"}, {"mine", "theirs"})
        all_pages = cluster.DescribeTopicPartitionsRequest(topics=())
        pages = await client.ask(all_pages, 0, cluster.DescribeTopicPartitionsResponse)
        assert [topic.name for topic in pages.topics] == [TOPIC]
        await door.allow(USER, DESCRIBE, CLUSTER, CLUSTER_NAME)
        assert (await listed(client))[1] == {"mine", "theirs"}

    tell(tmp_path, story)


def test_offsets_of_topics_that_the_caller_may_not_describe_are_left_out(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        await door.broker.ensure_offsets_topic()
        await door.broker.groups.await_shard(GROUP)
        admin = await door.client(ADMIN)
        assert await codes_of(admin, COMMIT) == {0}
        await door.add_user(USER)
        await door.allow(USER, DESCRIBE, GROUPS, GROUP)
        client = await door.client(USER)
        every = offsets.OffsetFetchRequest(groups=(offsets.OffsetFetchRequestGroup(group_id=GROUP, topics=None),))
        found = await client.ask(every, 9, offsets.OffsetFetchResponse)
        assert (found.groups[0].error_code, found.groups[0].topics) == (0, ())
        await door.allow(USER, DESCRIBE, TOPICS, TOPIC)
        found = await client.ask(every, 9, offsets.OffsetFetchResponse)
        assert [topic.name for topic in found.groups[0].topics] == [TOPIC]

    tell(tmp_path, story)


def test_authorized_operations_are_those_of_the_caller(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        await door.add_user(USER)
        await door.allow(USER, READ, TOPICS, TOPIC)
        client = await door.client(USER)
        asked = cluster.MetadataRequest(
            topics=(cluster.MetadataRequestTopic(name=TOPIC),),
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        found = await client.ask(asked, 10, cluster.MetadataResponse)
        assert found.topics[0].topic_authorized_operations == 1 << READ | 1 << DESCRIBE
        assert found.cluster_authorized_operations == 0
        await door.allow(USER, ALTER, CLUSTER, CLUSTER_NAME)
        described = await client.ask(
            cluster.DescribeClusterRequest(include_cluster_authorized_operations=True),
            1,
            cluster.DescribeClusterResponse,
        )
        assert described.cluster_authorized_operations == 1 << ALTER | 1 << DESCRIBE

    tell(tmp_path, story)


# -- rules and users ---------------------------------------------------------------------------------------------------


def test_rules_are_created_described_and_deleted(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        admin = await door.client(ADMIN)
        prefixed = msgspec.structs.replace(NEW_ACL, resource_name="app.", resource_pattern_type=4, principal="User:y")
        bad = (
            msgspec.structs.replace(NEW_ACL, operation=1),
            msgspec.structs.replace(NEW_ACL, resource_type=6),
            msgspec.structs.replace(NEW_ACL, principal="nobody"),
            msgspec.structs.replace(NEW_ACL, resource_name=""),
        )
        made = await admin.ask(
            security.CreateAclsRequest(creations=(NEW_ACL, *bad, prefixed)), 3, security.CreateAclsResponse
        )
        assert [result.error_code for result in made.results] == [0, *[ErrorCode.INVALID_REQUEST] * len(bad), 0]
        held = set(door.broker.metadata.access.acls)
        assert held == {
            acl("x", READ, TOPICS, "x"),
            acl("y", READ, TOPICS, "app.", pattern=AclPattern.PREFIXED),
        }

        async def found(**fields: Any) -> list[str]:
            asked = msgspec.structs.replace(ANY_ACL, **fields)
            answer = await admin.ask(asked, 3, security.DescribeAclsResponse)
            assert answer.error_code == 0
            return sorted(f"{each.resource_name}/{each.pattern_type}" for each in answer.resources)

        assert await found() == ["app./4", "x/3"]
        assert await found(resource_name_filter="app.one", resource_type_filter=2, pattern_type_filter=2) == ["app./4"]
        assert await found(resource_name_filter="app.one", resource_type_filter=2, pattern_type_filter=3) == []
        assert await found(principal_filter="User:x") == ["x/3"]
        assert await found(operation=4) == []
        assert await found(resource_type_filter=6) == []
        unknown = await admin.ask(msgspec.structs.replace(ANY_ACL, operation=0), 3, security.DescribeAclsResponse)
        assert unknown.error_code == ErrorCode.INVALID_REQUEST
        chosen = security.AclFilter(**{**msgspec.structs.asdict(ANY_ACL), "principal_filter": "User:y"})
        gone = await admin.ask(security.DeleteAclsRequest(filters=(chosen, NO_ACL)), 3, security.DeleteAclsResponse)
        assert [len(result.matching_acls) for result in gone.filter_results] == [1, 0]
        assert await found() == ["x/3"]

    tell(tmp_path, story)


def test_users_are_altered_as_in_kafka(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        admin = await door.client(ADMIN)

        async def alter(*changes: Any) -> dict[str, int]:
            ups = tuple(each for each in changes if isinstance(each, security.ScramCredentialUpsertion))
            downs = tuple(each for each in changes if isinstance(each, security.ScramCredentialDeletion))
            request = security.AlterUserScramCredentialsRequest(deletions=downs, upsertions=ups)
            answer = await admin.ask(request, 0, security.AlterUserScramCredentialsResponse)
            return {result.user: result.error_code for result in answer.results}

        replace, gone = msgspec.structs.replace, security.ScramCredentialDeletion
        assert await alter(NEW_USER) == {"bob": 0}
        assert await alter(NEW_USER, NEW_USER) == {"bob": ErrorCode.DUPLICATE_RESOURCE}
        assert await alter(NEW_USER, gone(name="bob", mechanism=1)) == {"bob": ErrorCode.DUPLICATE_RESOURCE}
        assert await alter(replace(NEW_USER, name="")) == {"": ErrorCode.UNACCEPTABLE_CREDENTIAL}
        assert await alter(replace(NEW_USER, iterations=4095)) == {"bob": ErrorCode.UNACCEPTABLE_CREDENTIAL}
        assert await alter(replace(NEW_USER, iterations=16385)) == {"bob": ErrorCode.UNACCEPTABLE_CREDENTIAL}
        assert await alter(replace(NEW_USER, mechanism=3)) == {"bob": ErrorCode.UNSUPPORTED_SASL_MECHANISM}
        assert await alter(gone(name="bob", mechanism=2)) == {"bob": ErrorCode.RESOURCE_NOT_FOUND}
        assert await alter(gone(name="carol", mechanism=1), replace(NEW_USER, mechanism=2)) == {
            "carol": ErrorCode.RESOURCE_NOT_FOUND,
            "bob": 0,
        }

        async def described(*users: str) -> list[tuple[str, int, list[tuple[int, int]]]]:
            named = tuple(security.UserName(name=user) for user in users) or None
            request = security.DescribeUserScramCredentialsRequest(users=named)
            answer = await admin.ask(request, 0, security.DescribeUserScramCredentialsResponse)
            return [
                (each.user, each.error_code, [(info.mechanism, info.iterations) for info in each.credential_infos])
                for each in answer.results
            ]

        assert await described("bob", "carol") == [
            ("bob", 0, [(1, 4096), (2, 4096)]),
            ("carol", ErrorCode.RESOURCE_NOT_FOUND, []),
        ]
        assert await described("bob", "bob") == [("bob", ErrorCode.DUPLICATE_RESOURCE, [])]
        assert [user for user, *_ in await described()] == [ADMIN, "bob"]
        assert await alter(gone(name="bob", mechanism=1), gone(name="bob", mechanism=2)) == {"bob": 0}
        assert [user for user, *_ in await described()] == [ADMIN]

    tell(tmp_path, story)
