"""What Kafka's administration calls answer here, over a real socket."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from tests.integration.kafka.test_door import TOPIC, Client, Story, door, tell
from tests.support.clients.contract import PATIENCE_S
from tests.support.node import free_port

from penstock.consensus.controller import TopicSpec
from penstock.consensus.quorum.driver import Quorum
from penstock.consensus.resource_config import (
    FOLLOWER_RATE,
    HEARTBEAT_INTERVAL,
    LEADER_RATE,
    MOVE_RATE,
    SESSION_TIMEOUT,
)
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import decode_response
from penstock.doors.kafka.protocol.messages import cluster as about
from penstock.doors.kafka.protocol.messages import configs as configs
from penstock.doors.kafka.protocol.messages import groups as groups
from penstock.doors.kafka.protocol.messages import offsets as offsets
from penstock.doors.kafka.protocol.messages import security as access
from penstock.doors.kafka.protocol.messages.shared import (
    NOT_REQUESTED,
    ConfigValue,
    TopicPartitionIndexes,
    TopicPartitions,
)
from penstock.doors.kafka.protocol.schema import ApiMessage
from penstock.features.groups.consumer.messages import JOINING, ConsumerHeartbeat

R = TypeVar("R", bound=ApiMessage)
TOPICS, NODES, LOGGERS, CLIENT_METRICS, GROUPS = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2
# Bits of operations (KIP-430): read 3, write 4, create 5, delete 6, alter 7, describe 8, cluster action 9, describe
# configs 10, alter configs 11, idempotent write 12.
TOPIC_OPERATIONS = 0b0000_1101_1111_1000
GROUP_OPERATIONS = 0b0000_1101_0100_1000
CLUSTER_OPERATIONS = 0b0001_1111_1010_0000
OF_NODE, OF_ALL_NODES, OF_FILE, OF_DEFAULTS, OF_GROUP = 2, 3, 4, 5, 8  # sources of values


async def ask(client: Client, request: ApiMessage, version: int, answer: type[R]) -> R:
    client.send(request, version)
    _, response = decode_response(answer, version, await client.receive())
    return response


async def describe(client: Client, kind: int, name: str, *keys: str) -> configs.DescribeConfigsResult:
    resource = configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys or None)
    request = configs.DescribeConfigsRequest(resources=(resource,), include_documentation=True)
    return (await ask(client, request, 4, configs.DescribeConfigsResponse)).results[0]


async def alter(client: Client, kind: int, name: str, *changes: tuple[str, int, str | None]) -> int:
    rows = tuple(
        configs.IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    )
    resource = configs.IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=rows)
    request = configs.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    return (await ask(client, request, 1, configs.IncrementalAlterConfigsResponse)).responses[0].error_code


def test_acl_calls_say_that_security_is_disabled(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        wanted = access.DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        described = await ask(client, wanted, 3, access.DescribeAclsResponse)
        assert described.error_code == ErrorCode.SECURITY_DISABLED
        new = access.AclCreation(
            resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
        )
        created = await ask(client, access.CreateAclsRequest(creations=(new, new)), 3, access.CreateAclsResponse)
        assert [result.error_code for result in created.results] == [ErrorCode.SECURITY_DISABLED] * 2

    tell(tmp_path, story)


def test_authorized_operations_are_sent_to_clients_that_ask(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        for asks in (False, True):
            named = (about.MetadataRequestTopic(name=TOPIC), about.MetadataRequestTopic(name="missing"))
            request = about.MetadataRequest(
                topics=named,
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=asks,
                include_cluster_authorized_operations=asks,
            )
            found = await ask(client, request, 9, about.MetadataResponse)
            by_name = {topic.name: topic.topic_authorized_operations for topic in found.topics}
            assert by_name == {TOPIC: TOPIC_OPERATIONS if asks else NOT_REQUESTED, "missing": NOT_REQUESTED}
            assert found.cluster_authorized_operations == (CLUSTER_OPERATIONS if asks else NOT_REQUESTED)
            cluster = about.DescribeClusterRequest(include_cluster_authorized_operations=asks)
            described = await ask(client, cluster, 1, about.DescribeClusterResponse)
            assert described.cluster_authorized_operations == (CLUSTER_OPERATIONS if asks else NOT_REQUESTED)
            await client.broker.ensure_offsets_topic()
            await client.broker.groups.await_shard("g")
            wanted = groups.DescribeGroupsRequest(groups=("g",), include_authorized_operations=asks)
            group = (await ask(client, wanted, 5, groups.DescribeGroupsResponse)).groups[0]
            assert group.authorized_operations == (GROUP_OPERATIONS if asks else NOT_REQUESTED)

    tell(tmp_path, story)


def test_topics_are_described_page_by_page(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await client.broker.create_topic(TopicSpec(name="a", partitions=3))
        await client.broker.create_topic(TopicSpec(name="z", partitions=1))
        seen: list[tuple[str | None, int]] = []
        cursor: about.Cursor | None = None
        pages = 0
        while True:
            names = tuple(about.TopicRequest(name=name) for name in ("z", "a", TOPIC))
            request = about.DescribeTopicPartitionsRequest(topics=names, response_partition_limit=2, cursor=cursor)
            found = await ask(client, request, 0, about.DescribeTopicPartitionsResponse)
            seen += [(topic.name, row.partition_index) for topic in found.topics for row in topic.partitions]
            assert all(row.leader_id == 1 for topic in found.topics for row in topic.partitions)
            pages += 1
            cursor = found.next_cursor
            if cursor is None:
                break
        assert seen == [("a", 0), ("a", 1), ("a", 2), (TOPIC, 0), (TOPIC, 1), ("z", 0)]
        assert pages == 3
        missing = about.DescribeTopicPartitionsRequest(topics=(about.TopicRequest(name="missing"),))
        found = await ask(client, missing, 0, about.DescribeTopicPartitionsResponse)
        assert found.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    tell(tmp_path, story)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_features_stay_at_their_level(tmp_path: Path, version: int) -> None:
    async def story(client: Client) -> None:
        for name, level, expected in (
            ("transaction.version", 2, ErrorCode.NONE),
            ("transaction.version", 1, ErrorCode.INVALID_UPDATE_VERSION),
            ("metadata.version", 20, ErrorCode.INVALID_UPDATE_VERSION),
        ):
            update = about.FeatureUpdateKey(feature=name, max_version_level=level)
            request = about.UpdateFeaturesRequest(feature_updates=(update,))
            found = await ask(client, request, version, about.UpdateFeaturesResponse)
            assert (found.error_code if version == 2 else found.results[0].error_code) == expected

    tell(tmp_path, story)


def test_replicas_can_be_asked_to_lie_where_they_lie(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        here = str(client.broker.config.data_dir)
        codes = []
        for path, topic in ((here, TOPIC), ("/elsewhere", TOPIC), (here, "missing")):
            rows = (TopicPartitions(name=topic, partitions=(0,)),)
            request = configs.AlterReplicaLogDirsRequest(dirs=(configs.AlterReplicaLogDir(path=path, topics=rows),))
            found = await ask(client, request, 2, configs.AlterReplicaLogDirsResponse)
            codes.append(found.results[0].partitions[0].error_code)
        assert codes == [ErrorCode.NONE, ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    tell(tmp_path, story)


def test_resources_with_settings_are_listed(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        request = configs.ListConfigResourcesRequest(resource_types=(TOPICS, NODES))
        found = await ask(client, request, 1, configs.ListConfigResourcesResponse)
        listed = {(row.resource_type, row.resource_name) for row in found.config_resources}
        assert {(TOPICS, TOPIC), (NODES, "1")} <= listed
        old = await ask(client, configs.ListConfigResourcesRequest(), 0, configs.ListConfigResourcesResponse)
        assert (old.error_code, old.config_resources) == (0, ())

    tell(tmp_path, story)


def test_a_nodes_settings_have_kafkas_names_and_values(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        found = await describe(client, NODES, "1")
        values = {row.name: row.value for row in found.configs}
        assert values["log.retention.check.interval.ms"] == "300000"
        assert values["auto.create.topics.enable"] == "true"
        assert values["broker.rack"] is None
        assert values["log.dirs"] == str(client.broker.config.data_dir)
        assert not [value for value in values.values() if value and ("(" in value or "<" in value)], "Python's repr"
        assert all(row.documentation for row in found.configs)

    tell(tmp_path, story)


def test_rates_of_replication_are_set_and_cleared(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        unlimited = str((1 << 63) - 1)
        both = ((FOLLOWER_RATE, 0, "1000000"), (LEADER_RATE, 0, "2000000"))
        assert await alter(client, NODES, "1", *both) == 0
        assert client.broker.replication.rates == (1_000_000, 2_000_000)
        found = await describe(client, NODES, "1", FOLLOWER_RATE)
        assert [(row.name, row.value, row.read_only) for row in found.configs] == [(FOLLOWER_RATE, "1000000", False)]
        clear = tuple((name, 1, None) for name in (FOLLOWER_RATE, LEADER_RATE, MOVE_RATE))
        assert await alter(client, NODES, "1", *clear) == 0
        assert {row.value for row in (await describe(client, NODES, "1", FOLLOWER_RATE, LEADER_RATE)).configs} == {
            unlimited
        }
        assert await alter(client, NODES, "1", ("log.retention.ms", 0, "1")) == ErrorCode.INVALID_CONFIG
        assert await alter(client, NODES, "1", (LEADER_RATE, 0, "fast")) == ErrorCode.INVALID_CONFIG
        assert await alter(client, NODES, "7", (LEADER_RATE, 0, "1")) == ErrorCode.INVALID_REQUEST

    tell(tmp_path, story)


def test_levels_of_loggers_are_shown_and_set(tmp_path: Path) -> None:
    name = "penstock.doors.kafka.server"
    before = logging.getLogger(name).level

    async def story(client: Client) -> None:
        assert await alter(client, LOGGERS, "1", (name, 0, "ERROR")) == 0
        assert logging.getLogger(name).level == logging.ERROR
        found = await describe(client, LOGGERS, "1", name)
        assert [(row.name, row.value) for row in found.configs] == [(name, "ERROR")]
        assert await alter(client, LOGGERS, "1", (name, 0, "LOUD")) == ErrorCode.INVALID_CONFIG
        assert await alter(client, LOGGERS, "1", ("penstock.missing", 0, "INFO")) == ErrorCode.INVALID_CONFIG

    try:
        tell(tmp_path, story)
    finally:
        logging.getLogger(name).setLevel(before)


def test_groups_have_the_nodes_settings_and_client_metrics_none(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        found = await describe(client, GROUPS, "g")
        assert {row.name: row.value for row in found.configs} == {
            "consumer.heartbeat.interval.ms": "3000",
            "consumer.session.timeout.ms": "45000",
        }
        assert (await describe(client, CLIENT_METRICS, "m")).configs == ()
        assert {(row.config_source, row.read_only) for row in found.configs} == {(OF_DEFAULTS, False)}

    tell(tmp_path, story)


def visit(directory: Path, story: Story) -> None:
    """Start a node on what an earlier one left in the directory, and stop it after the story."""

    async def run() -> None:
        async with asyncio.timeout(90), door(directory) as (broker, server):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            try:
                await story(Client(reader, writer, broker))
            finally:
                writer.close()

    asyncio.run(run())


async def values(client: Client, kind: int, name: str, *keys: str) -> dict[str, tuple[str | None, int]]:
    """Settings with their sources."""
    return {row.name: (row.value, row.config_source) for row in (await describe(client, kind, name, *keys)).configs}


async def beat(client: Client, group: str) -> int:
    """The interval that a new member is told."""
    await client.broker.ensure_offsets_topic()
    await client.broker.groups.await_shard(group)
    member = ConsumerHeartbeat(
        member_id="m",
        epoch=JOINING,
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=60_000,
        topics=(TOPIC,),
        owned=frozenset(),
    )
    return (await client.broker.groups.ask(group, member)).heartbeat_interval_ms


def test_settings_of_groups_take_effect_and_outlive_the_node(tmp_path: Path) -> None:
    async def set_them(client: Client) -> None:
        assert await beat(client, "g") == 3_000
        both = ((SESSION_TIMEOUT, SET, "9000"), (HEARTBEAT_INTERVAL, SET, "1500"))
        assert await alter(client, GROUPS, "g", *both) == 0
        assert await beat(client, "g") == 1_500
        group = client.broker.groups.find("g")
        assert group is not None
        assert [member.facts.session_timeout_ms for member in group.members] == [9_000]

    async def find_them(client: Client) -> None:
        assert await values(client, GROUPS, "g") == {
            HEARTBEAT_INTERVAL: ("1500", OF_GROUP),
            SESSION_TIMEOUT: ("9000", OF_GROUP),
        }
        assert await beat(client, "g") == 1_500
        listing = configs.ListConfigResourcesRequest(resource_types=(GROUPS,))
        listed = await ask(client, listing, 1, configs.ListConfigResourcesResponse)
        assert [(row.resource_type, row.resource_name) for row in listed.config_resources] == [(GROUPS, "g")]
        # AlterConfigs replaces everything: what it does not name is unset.
        row = ConfigValue(name=SESSION_TIMEOUT, value="8000")
        resource = configs.AlterConfigsResource(resource_type=GROUPS, resource_name="g", configs=(row,))
        request = configs.AlterConfigsRequest(resources=(resource,), validate_only=False)
        assert (await ask(client, request, 2, configs.AlterConfigsResponse)).responses[0].error_code == 0
        expected = {HEARTBEAT_INTERVAL: ("3000", OF_DEFAULTS), SESSION_TIMEOUT: ("8000", OF_GROUP)}
        assert await values(client, GROUPS, "g") == expected
        assert await alter(client, GROUPS, "g", (SESSION_TIMEOUT, DELETE, None)) == 0
        assert (await ask(client, listing, 1, configs.ListConfigResourcesResponse)).config_resources == ()

    tell(tmp_path, set_them)
    visit(tmp_path, find_them)


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (GROUPS, "g", (SESSION_TIMEOUT, SET, "1"), ErrorCode.INVALID_CONFIG),
        (GROUPS, "g", (HEARTBEAT_INTERVAL, SET, "45000"), ErrorCode.INVALID_CONFIG),
        (GROUPS, "g", ("share.session.timeout.ms", SET, "45000"), ErrorCode.INVALID_CONFIG),
        (GROUPS, "", (SESSION_TIMEOUT, SET, "9000"), ErrorCode.INVALID_REQUEST),
        (NODES, "1", ("cleanup.policy", APPEND, "compact"), ErrorCode.INVALID_CONFIG),
        (NODES, "", ("num.partitions", SET, "7"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, kind: int, name: str, change: tuple[str, int, str], code: ErrorCode
) -> None:
    async def story(client: Client) -> None:
        assert await alter(client, kind, name, change) == code
        assert client.broker.metadata.configured == {}

    tell(tmp_path, story)


@pytest.mark.parametrize("snapshot_every", [1, 10_000])
def test_settings_of_nodes_outlive_them_and_have_a_default_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot_every: int
) -> None:
    monkeypatch.setitem(Quorum.__init__.__kwdefaults__, "snapshot_every", snapshot_every)
    unlimited = str((1 << 63) - 1)

    async def set_them(client: Client) -> None:
        assert await values(client, NODES, "1", LEADER_RATE) == {LEADER_RATE: (unlimited, OF_DEFAULTS)}
        assert await alter(client, NODES, "", (FOLLOWER_RATE, SET, "3000000"), (LEADER_RATE, SET, "4000000")) == 0
        assert client.broker.replication.rates == (3_000_000, 4_000_000)
        assert await alter(client, NODES, "1", (LEADER_RATE, SET, "5000000")) == 0

    async def find_them(client: Client) -> None:
        assert client.broker.replication.rates == (3_000_000, 5_000_000)
        assert await values(client, NODES, "1", FOLLOWER_RATE, LEADER_RATE) == {
            FOLLOWER_RATE: ("3000000", OF_ALL_NODES),
            LEADER_RATE: ("5000000", OF_NODE),
        }
        assert await values(client, NODES, "") == {
            FOLLOWER_RATE: ("3000000", OF_ALL_NODES),
            LEADER_RATE: ("4000000", OF_ALL_NODES),
        }
        assert await alter(client, NODES, "1", (LEADER_RATE, DELETE, None)) == 0
        assert client.broker.replication.rates == (3_000_000, 4_000_000)
        assert await alter(client, NODES, "", (LEADER_RATE, DELETE, None), (FOLLOWER_RATE, DELETE, None)) == 0
        assert client.broker.replication.rates == (0, 0)
        assert await values(client, NODES, "") == {}

    tell(tmp_path, set_them)
    visit(tmp_path, find_them)


@pytest.mark.parametrize(
    ("kind", "name", "setting", "value", "source"),
    [
        (ResourceType.GROUP, "g", SESSION_TIMEOUT, "9000", ConfigSource.GROUP_CONFIG),
        (ResourceType.BROKER, "1", LEADER_RATE, "5000000", ConfigSource.DYNAMIC_BROKER_CONFIG),
    ],
)
def test_confluents_admin_client_sets_them(
    tmp_path: Path, kind: ResourceType, name: str, setting: str, value: str, source: ConfigSource
) -> None:
    def change(port: int) -> ConfigEntry:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(kind, name, incremental_configs=[entry])
        [done] = admin.incremental_alter_configs([changed], request_timeout=PATIENCE_S).values()
        done.result(PATIENCE_S)
        [found] = admin.describe_configs([ConfigResource(kind, name)], request_timeout=PATIENCE_S).values()
        described: ConfigEntry = found.result(PATIENCE_S)[setting]
        return described

    async def run() -> None:
        async with asyncio.timeout(90), door(tmp_path, free_port()) as (_, server):
            found = await asyncio.to_thread(change, server.port)
            assert (found.value, found.source, found.is_read_only) == (value, source.value, False)

    asyncio.run(run())


def test_a_negative_offset_is_committed_and_counts_as_none(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await client.broker.ensure_offsets_topic()
        await client.broker.groups.await_shard("g")
        row = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=-2, committed_metadata="")
        request = offsets.OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=(offsets.OffsetCommitRequestTopic(name=TOPIC, partitions=(row,)),),
        )
        committed = await ask(client, request, 8, offsets.OffsetCommitResponse)
        assert committed.topics[0].partitions[0].error_code == 0
        wanted = offsets.OffsetFetchRequest(
            group_id="g", topics=(TopicPartitionIndexes(name=TOPIC, partition_indexes=(0,)),)
        )
        found = await ask(client, wanted, 5, offsets.OffsetFetchResponse)
        assert found.topics[0].partitions[0].committed_offset == -2

    tell(tmp_path, story)
