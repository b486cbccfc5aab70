"""Changes that Kafka clients make go to the audit log: what happened, what failed, and not what was only checked."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.secure_door import ADMIN, TOPIC, Client, SecureDoor, tell

from penstock.doors.kafka.audited import CHANGES
from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.messages import cluster, configs, groups, quotas, topics
from penstock.doors.kafka.protocol.messages.shared import ConfigValue
from penstock.doors.kafka.rights import RIGHTS
from penstock.features.access.audit_topic import AuditFilter

Noted = list[tuple[str, str, str]]
# Changes of access are noted by their handlers; producers, consumers and readers change nothing to answer for.
NOTED_BY_HANDLERS = {apis.CREATE_ACLS, apis.DELETE_ACLS, apis.ALTER_USER_SCRAM_CREDENTIALS}


def creation(name: str, partitions: int = 1) -> topics.CreatableTopic:
    return topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())


async def noted(door: SecureDoor, principal: str, count: int) -> Noted:
    """The events of a principal, oldest first, once there are so many."""
    while True:
        found = await door.broker.audit_topic.find(AuditFilter(principal=f"User:{principal}"), 1000)
        if len(found.events) >= count:
            return [(each.operation, each.resource, each.decision) for each in reversed(found.events)]
        await asyncio.sleep(0.05)


async def change_everything(client: Client) -> None:
    for validate_only in (True, False):
        await client.ask(
            topics.CreateTopicsRequest(topics=(creation("made"), creation(TOPIC)), validate_only=validate_only),
            5,
            topics.CreateTopicsResponse,
        )
    grown = topics.CreatePartitionsTopic(name="made", count=3, assignments=None)
    await client.ask(
        topics.CreatePartitionsRequest(topics=(grown,), timeout_ms=9_000, validate_only=False),
        2,
        topics.CreatePartitionsResponse,
    )
    setting = ConfigValue(name="retention.ms", value="1234567")
    resource = configs.AlterConfigsResource(resource_type=2, resource_name="made", configs=(setting,))
    await client.ask(
        configs.AlterConfigsRequest(resources=(resource,), validate_only=False), 2, configs.AlterConfigsResponse
    )
    cut = topics.DeleteRecordsPartition(partition_index=0, offset=-1)
    await client.ask(
        topics.DeleteRecordsRequest(topics=(topics.DeleteRecordsTopic(name="made", partitions=(cut,)),), timeout_ms=9),
        2,
        topics.DeleteRecordsResponse,
    )
    moved = cluster.ReassignableTopic(
        name="made", partitions=(cluster.ReassignablePartition(partition_index=0, replicas=(1,)),)
    )
    await client.ask(
        cluster.AlterPartitionReassignmentsRequest(topics=(moved,)), 0, cluster.AlterPartitionReassignmentsResponse
    )
    entity = (quotas.QuotaPart(entity_type="user", entity_name="bob"),)
    rate = quotas.QuotaChange(key="request_rate", value=5.0, remove=False)
    await client.ask(
        quotas.AlterClientQuotasRequest(
            entries=(quotas.AlteredQuota(entity=entity, ops=(rate,)),), validate_only=False
        ),
        1,
        quotas.AlterClientQuotasResponse,
    )
    await client.ask(groups.DeleteGroupsRequest(groups_names=("no-group",)), 2, groups.DeleteGroupsResponse)
    await client.ask(
        topics.DeleteTopicsRequest(topic_names=("made",), timeout_ms=9_000), 5, topics.DeleteTopicsResponse
    )


def test_changes_are_noted_with_what_they_were_about(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        await change_everything(await door.client(ADMIN))
        assert await noted(door, ADMIN, 9) == [
            ("kafka.CreateTopics", "topic:made", "allowed"),
            ("kafka.CreateTopics", f"topic:{TOPIC}", "failed"),
            ("kafka.CreatePartitions", "topic:made to 3 partitions", "allowed"),
            ("kafka.AlterConfigs", "topic:made settings retention.ms", "allowed"),
            ("kafka.DeleteRecords", "topic:made-0 before offset -1", "allowed"),
            ("kafka.AlterPartitionReassignments", "topic:made-0", "allowed"),
            ("kafka.AlterClientQuotas", "quota of user:bob", "allowed"),
            ("kafka.DeleteGroups", "group:no-group", "failed"),
            ("kafka.DeleteTopics", "topic:made", "allowed"),
        ]

    tell(tmp_path, story)


def test_what_is_refused_is_noted_once_as_denied(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        await door.add_user("alice")
        client = await door.client("alice")
        await client.ask(topics.CreateTopicsRequest(topics=(creation("made"),)), 5, topics.CreateTopicsResponse)
        await client.ask(
            topics.DeleteTopicsRequest(topic_names=(TOPIC,), timeout_ms=9_000), 5, topics.DeleteTopicsResponse
        )
        events = await noted(door, "alice", 2)
        assert {decision for _, _, decision in events} == {"denied"}
        assert len(events) == 2

    tell(tmp_path, story)


def test_without_security_there_is_no_audit_log(tmp_path: Path) -> None:
    async def story(door: SecureDoor) -> None:
        client = await door.connect()
        await client.ask(topics.CreateTopicsRequest(topics=(creation("made"),)), 5, topics.CreateTopicsResponse)
        found = await door.broker.audit_topic.find(AuditFilter(), 10)
        assert (found.events, found.total) == ([], 0)
        assert "__audit" not in door.broker.metadata.topics

    tell(tmp_path, story, enabled=False)


def test_every_api_that_alters_creates_or_deletes_is_noted() -> None:
    words = ("Create", "Delete", "Alter", "Elect")
    changing = {api for api in RIGHTS if any(word in api.name for word in words)}
    not_done_here = {apis.ALTER_REPLICA_LOG_DIRS}
    assert changing == (set(CHANGES) | NOTED_BY_HANDLERS | not_done_here)
