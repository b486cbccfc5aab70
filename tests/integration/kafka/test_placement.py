"""What Kafka clients are told of nodes, leaders and moves: by the handlers, on a broker whose metadata names others."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import alone
from penstock.config.settings import ClusterSettings
from penstock.consensus.controller import TopicSpec
from penstock.consensus.records import NO_LEADER, Endpoint, NodeRegistered
from penstock.doors.kafka.caller import Caller
from penstock.doors.kafka.handler import RequestContext
from penstock.doors.kafka.handlers import HANDLERS
from penstock.doors.kafka.leaders import addresses_of, leader_hint
from penstock.doors.kafka.protocol.codec import decode, encode
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import cluster as wire
from penstock.doors.kafka.protocol.messages import configs as config_messages
from penstock.doors.kafka.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.doors.kafka.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.doors.kafka.protocol.messages.shared import TopicAndPartitions, TopicPartitionIndexes
from penstock.doors.kafka.protocol.schema import ApiMessage
from penstock.doors.kafka.protocol.wire import LeaderHint, NodeAddress
from penstock.errors import FencedLeaderEpoch, NotLeader, OffsetNotAvailable, UnknownLeaderEpoch

TOPIC = "t"


def tell(directory: Path, story: Callable[[Broker], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        endpoint = Endpoint(door="kafka", host="here", port=9092)
        config = BrokerConfig(node_id=1, data_dir=directory / "data", endpoints=(endpoint,), rack="rack-1", **settings)
        broker = Broker(config, alone(1))
        await broker.start()
        try:
            async with asyncio.timeout(90):
                await broker.create_topic(TopicSpec(name=TOPIC, partitions=2))
                await story(broker)
        finally:
            await broker.close()

    asyncio.run(run())


async def ask(broker: Broker, request: ApiMessage, version: int) -> Any:
    """The answer of the request's handler, through the wire and back."""
    handler = HANDLERS[request.api.key]
    received, _ = decode(type(request), version, encode(request, version))
    caller = Caller(broker.authorizer, broker.audit)
    answer = handler.function(RequestContext(broker, version, "test", "127.0.0.1", "127.0.0.1", caller), received)
    response = await answer if inspect.isawaitable(answer) else answer
    return decode(type(response), version, encode(response, version))[0]


def learn_of_node(broker: Broker, node_id: int, *, is_fenced: bool = False) -> None:
    """As if another node had registered."""
    endpoints = (Endpoint(door="kafka", host=f"host-{node_id}", port=9000 + node_id),)
    broker.metadata.apply(
        NodeRegistered(node_id=node_id, epoch=1, endpoints=endpoints, rack=f"rack-{node_id}", is_fenced=is_fenced)
    )


def assign(broker: Broker, index: int, **changes: Any) -> None:
    present = broker.metadata.partition(TOPIC, index)
    broker.metadata.apply(msgspec.structs.replace(present, **changes))


async def metadata(broker: Broker) -> MetadataResponse:
    request = MetadataRequest(topics=(MetadataRequestTopic(name=TOPIC),), allow_auto_topic_creation=False)
    response = await ask(broker, request, 12)
    assert isinstance(response, MetadataResponse)
    return response


# -- nodes and leaders -------------------------------------------------------------------------------------------------


def test_only_nodes_that_are_there_are_named(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        learn_of_node(broker, 2)
        learn_of_node(broker, 3, is_fenced=True)
        assign(broker, 0, replicas=(2, 1, 3), in_sync=(2, 1), leader=2, leader_epoch=7)
        assign(broker, 1, replicas=(3, 1), in_sync=(3,), leader=3)
        found = await metadata(broker)
        assert [(each.node_id, each.host, each.port) for each in found.brokers] == [
            (1, "here", 9092),
            (2, "host-2", 9002),
        ]
        assert found.controller_id == 1
        first, second = found.topics[0].partitions
        assert (first.error_code, first.leader_id, first.leader_epoch) == (ErrorCode.NONE, 2, 7)
        assert (first.replica_nodes, first.isr_nodes, first.offline_replicas) == ((2, 1, 3), (2, 1), (3,))
        assert (second.error_code, second.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER)

    tell(tmp_path, story)


def test_a_coordinator_is_the_leader_of_its_partition_or_not_available(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        topic = await broker.ensure_offsets_topic()
        learn_of_node(broker, 2)
        learn_of_node(broker, 3, is_fenced=True)
        expected = {2: (2, "host-2", ErrorCode.NONE), 3: (-1, "", ErrorCode.COORDINATOR_NOT_AVAILABLE)}
        expected[NO_LEADER] = expected[3]
        for leader, answer in expected.items():
            for at in list(topic.partitions):
                broker.metadata.apply(msgspec.structs.replace(at, leader=leader))
            found = await ask(broker, FindCoordinatorRequest(coordinator_keys=("g",)), 4)
            assert isinstance(found, FindCoordinatorResponse)
            [one] = found.coordinators
            assert (one.node_id, one.host, one.error_code) == answer

    tell(tmp_path, story)


def test_a_mistaken_client_is_told_who_leads(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        learn_of_node(broker, 2)
        assert leader_hint(broker, TOPIC, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER) is None, "this node leads"
        assign(broker, 0, leader=2, leader_epoch=7)
        hint = leader_hint(broker, TOPIC, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert hint == LeaderHint(2, 7)
        assert addresses_of(broker, [hint, hint], "127.0.0.1") == [NodeAddress(2, "host-2", 9002, "rack-2")]
        assert leader_hint(broker, TOPIC, 0, ErrorCode.OFFSET_OUT_OF_RANGE) is None
        assert leader_hint(broker, "gone", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER) is None
        learn_of_node(broker, 2, is_fenced=True)
        assert leader_hint(broker, TOPIC, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER) is None, "no client should go there"

    tell(tmp_path, story)


# -- reading from followers --------------------------------------------------------------------------------------------


def test_a_consumer_is_sent_to_a_living_replica_in_sync_in_its_rack(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        nearer = broker.metadata.replica_in_rack
        learn_of_node(broker, 2)
        learn_of_node(broker, 3)
        assign(broker, 0, replicas=(1, 2, 3), in_sync=(1, 2))
        assert nearer(TOPIC, 0, "rack-2") == 2
        assert nearer(TOPIC, 0, "rack-3") is None, "not in sync"
        assert nearer(TOPIC, 0, "rack-1") is None, "the leader is there itself"
        assert nearer(TOPIC, 0, "") is None
        learn_of_node(broker, 2, is_fenced=True)
        assert nearer(TOPIC, 0, "rack-2") is None, "not there"

    tell(tmp_path, story, cluster=ClusterSettings(follower_reads=True))


def test_a_follower_serves_only_who_knows_its_leader_and_only_what_it_has(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        partition = broker.partition(TOPIC, 0)
        partition.resign()
        partition.follow(partition.leader_epoch + 3)
        epoch = partition.leader_epoch
        partition.check_follower(epoch, 0)
        partition.check_follower(-1, 0)
        with pytest.raises(FencedLeaderEpoch):
            partition.check_follower(epoch - 1, 0)
        with pytest.raises(UnknownLeaderEpoch):
            partition.check_follower(epoch + 1, 0)
        with pytest.raises(OffsetNotAvailable):
            partition.check_follower(epoch, 1)
        partition.is_held = True
        with pytest.raises(NotLeader):
            partition.check_follower(epoch, 0)
        partition.is_held = False

    tell(tmp_path, story)


# -- moves and elections -----------------------------------------------------------------------------------------------


def moving(index: int, *replicas: int) -> wire.AlterPartitionReassignmentsRequest:
    row = wire.ReassignablePartition(partition_index=index, replicas=replicas or None)
    return wire.AlterPartitionReassignmentsRequest(topics=(wire.ReassignableTopic(name=TOPIC, partitions=(row,)),))


@pytest.mark.parametrize(
    ("request_", "version", "code"),
    [
        (moving(0, 1), 0, ErrorCode.NONE),
        (moving(0, 9), 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (moving(7, 1), 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (moving(0), 1, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (
            msgspec.structs.replace(moving(0, 1, 2), allow_replication_factor_change=False),
            1,
            ErrorCode.INVALID_REPLICATION_FACTOR,
        ),
    ],
)
def test_moves_are_answered_partition_by_partition(
    tmp_path: Path, request_: wire.AlterPartitionReassignmentsRequest, version: int, code: ErrorCode
) -> None:
    async def story(broker: Broker) -> None:
        answer = await ask(broker, request_, version)
        assert answer.error_code == ErrorCode.NONE
        [row] = answer.responses[0].partitions
        assert (row.error_code, row.error_message is None) == (code, code is ErrorCode.NONE)

    tell(tmp_path, story)


def test_what_is_moving_is_listed(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        everything = wire.ListPartitionReassignmentsRequest()
        assert (await ask(broker, everything, 0)).topics == ()
        assign(broker, 1, replicas=(1, 2), adding=(2,), removing=())
        [topic] = (await ask(broker, everything, 0)).topics
        [row] = topic.partitions
        assert (topic.name, row.partition_index, row.replicas, row.adding_replicas) == (TOPIC, 1, (1, 2), (2,))
        named = TopicPartitionIndexes(name=TOPIC, partition_indexes=(0, 9))
        assert (await ask(broker, wire.ListPartitionReassignmentsRequest(topics=(named,)), 0)).topics == ()

    tell(tmp_path, story)


def test_elections_that_are_not_needed_or_not_known_are_told_so(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        named = (TopicAndPartitions(topic=TOPIC, partitions=(0,)),)
        answer = await ask(broker, wire.ElectLeadersRequest(topic_partitions=named), 2)
        assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.ELECTION_NOT_NEEDED
        assert (await ask(broker, wire.ElectLeadersRequest(topic_partitions=None), 2)).replica_election_results == ()
        odd = wire.ElectLeadersRequest(election_type=7, topic_partitions=named)
        assert (await ask(broker, odd, 1)).error_code == ErrorCode.INVALID_REQUEST

    tell(tmp_path, story)


def test_the_quorum_is_described(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        names = ("__cluster_metadata", TOPIC)
        topics = tuple(
            wire.QuorumTopic(topic_name=name, partitions=(wire.QuorumPartition(partition_index=0),)) for name in names
        )
        answer = await ask(broker, wire.DescribeQuorumRequest(topics=topics), 2)
        real, unknown = (topic.partitions[0] for topic in answer.topics)
        assert (real.error_code, real.leader_id) == (ErrorCode.NONE, 1)
        [voter] = real.current_voters
        assert (voter.replica_id, voter.log_end_offset) == (1, real.high_watermark)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    tell(tmp_path, story)


def test_throttles_that_nobody_set_can_be_cleared(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        delete = 1
        cases = [
            (2, TOPIC, "leader.replication.throttled.replicas", ErrorCode.NONE),
            (4, "1", "leader.replication.throttled.rate", ErrorCode.NONE),
            (2, "nowhere", "leader.replication.throttled.replicas", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (4, "1", "fsync", ErrorCode.INVALID_CONFIG),
        ]
        for kind, name, setting, code in cases:
            config = config_messages.IncrementalAlterableConfig(name=setting, config_operation=delete, value=None)
            resource = config_messages.IncrementalAlterConfigsResource(
                resource_type=kind, resource_name=name, configs=(config,)
            )
            request = config_messages.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
            [answer] = (await ask(broker, request, 1)).responses
            assert answer.error_code == code, (name, setting, answer.error_message)

    tell(tmp_path, story)
