"""What Kafka's administration calls answer here, over a real socket."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeVar

import pytest
from tests.integration.kafka.test_door import TOPIC, Client, tell

from penstock.cluster.controller import TopicSpec
from penstock.kafka.handlers.access import CLUSTER_OPERATIONS, GROUP_OPERATIONS, NOT_ASKED_FOR, TOPIC_OPERATIONS
from penstock.kafka.node_configs import FOLLOWER_RATE, LEADER_RATE, MOVE_RATE
from penstock.kafka.protocol import access_messages as access
from penstock.kafka.protocol import broker_messages as about
from penstock.kafka.protocol import config_messages as configs
from penstock.kafka.protocol import group_messages as groups
from penstock.kafka.protocol import offset_messages as offsets
from penstock.kafka.protocol.errors import ErrorCode
from penstock.kafka.protocol.headers import decode_response
from penstock.kafka.protocol.schema import Message

R = TypeVar("R", bound=Message)
TOPICS, NODES, LOGGERS, CLIENT_METRICS, GROUPS = 2, 4, 8, 16, 32


async def ask(client: Client, request: Message, version: int, answer: type[R]) -> R:
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
            assert by_name == {TOPIC: TOPIC_OPERATIONS if asks else NOT_ASKED_FOR, "missing": NOT_ASKED_FOR}
            assert found.cluster_authorized_operations == (CLUSTER_OPERATIONS if asks else NOT_ASKED_FOR)
            cluster = about.DescribeClusterRequest(include_cluster_authorized_operations=asks)
            described = await ask(client, cluster, 1, about.DescribeClusterResponse)
            assert described.cluster_authorized_operations == (CLUSTER_OPERATIONS if asks else NOT_ASKED_FOR)
            await client.broker.ensure_offsets_topic()
            await client.broker.groups.await_shard("g")
            wanted = groups.DescribeGroupsRequest(groups=("g",), include_authorized_operations=asks)
            group = (await ask(client, wanted, 5, groups.DescribeGroupsResponse)).groups[0]
            assert group.authorized_operations == (GROUP_OPERATIONS if asks else NOT_ASKED_FOR)

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
            rows = (configs.AlterReplicaLogDirTopic(name=topic, partitions=(0,)),)
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
    name = "penstock.kafka.server"
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
        assert await alter(client, GROUPS, "g", ("consumer.session.timeout.ms", 0, "1")) == ErrorCode.INVALID_REQUEST

    tell(tmp_path, story)


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
            group_id="g", topics=(offsets.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=(0,)),)
        )
        found = await ask(client, wanted, 5, offsets.OffsetFetchResponse)
        assert found.topics[0].partitions[0].committed_offset == -2

    tell(tmp_path, story)
