"""Stories in which every operation of the table is asked for once at least, on one node."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock import errors
from penstock.api import (
    access,
    audit,
    cluster,
    dead_letters,
    groups,
    health,
    messages,
    pipelines,
    queues,
    quotas,
    schedules,
    series,
    settings,
    topics,
    transactions,
)
from penstock.api.operation import Request
from penstock.records import Record, encode_batch

# A request, answered; the story sees the answer.
Story = Iterator[Request[Any]]


class Told:
    """What the last request was answered with."""

    answer: Any = None


def of_topics(told: Told, topic: str) -> Story:
    yield topics.CreateTopic(name=topic, partitions=1, configs={"retention.ms": 60_000_000})
    yield topics.ListTopics(include_internal=True)
    yield topics.AlterTopic(topic=topic, configs={"retention.ms": None})
    yield topics.AddPartitions(topic=topic, partitions=2)
    yield topics.DescribeTopic(topic=topic)
    assert (told.answer.partitions, told.answer.configs) == (2, {})


def text(value: str, **more: Any) -> messages.NewMessage:
    return messages.NewMessage(value=msgspec.Raw(msgspec.json.encode(value)), **more)


def of_messages(told: Told, topic: str) -> Story:
    yield messages.Publish(topic=topic, message=text("one", partition=0))
    yield messages.PublishBatch(topic=topic, messages=[text("two", partition=0), text("three", partition=1)])
    yield messages.CreateProducer()
    batch = encode_batch([Record(0, 1_000, None, b"four")])
    yield messages.PublishBatches(topic=topic, batches=[(0, batch)])
    yield messages.ReadBatches(topic=topic, partition=0, offset=2)
    assert b"four" in told.answer.pieces[0]
    yield messages.Read(topic=topic, since=datetime(1970, 1, 1, tzinfo=UTC), limit=2)
    assert [each.value for each in told.answer.messages] == ["one", "two"]


def of_queues(told: Told, topic: str) -> Story:
    yield queues.DeclareQueueGroup(topic=topic, group="q", start="earliest", settings={"tries": 5})
    yield queues.Receive(topic=topic, group="q", max=4, wait_ms=100)
    ack, nack, reject, extend = (each.receipt for each in told.answer.messages)
    yield queues.Extend(topic=topic, group="q", receipts=[extend], visibility_timeout_ms=60_000)
    yield queues.Release(group="q", receipts=[extend])
    yield queues.Nack(topic=topic, group="q", receipts=[nack], delay_ms=3_600_000, reason="later")
    yield queues.Reject(group="q", receipts=[reject], reason="bad")
    yield queues.Ack(topic=topic, group="q", receipts=[ack, "nonsense"])
    assert told.answer.results[0].status == "done"
    assert told.answer.results[1].status != "done", "some are not done: status 207"
    yield queues.ListQueues()
    yield queues.DescribeQueue(topic=topic)
    yield queues.DescribeQueueGroup(topic=topic, group="q")
    yield queues.PeekQueueGroup(topic=topic, group="q", max=3)
    yield queues.DescribeLanes(topic=topic, group="q")
    yield queues.PauseQueueGroup(topic=topic, group="q", reason="a test")
    assert told.answer.paused
    yield queues.ResumeQueueGroup(topic=topic, group="q")


def of_dead_letters(told: Told, topic: str) -> Story:
    while not told.answer or not getattr(told.answer, "dead_letters", None):
        yield dead_letters.ListDeadLetters(topic=topic, group="q", since=datetime(2020, 1, 1, tzinfo=UTC))
    (letter,) = told.answer.dead_letters
    assert letter.reason == "bad"
    yield dead_letters.ListDeadLetterReasons(topic=topic, group="q")
    yield dead_letters.GetDeadLetter(topic=topic, partition=letter.partition, offset=letter.offset, group="q")
    yield dead_letters.Redrive(topic=topic, filter=dead_letters.DeadLetterFilter(group="q"), dry_run=True)
    assert told.answer.dry_run.matched == 1
    yield dead_letters.Redrive(topic=topic, filter=dead_letters.DeadLetterFilter(group="q"), wait_ms=60_000)
    begun = told.answer.redrive
    yield dead_letters.ListRedrives(topic=topic, group="q")
    yield dead_letters.GetRedrive(topic=topic, redrive=begun.id, group="q")
    assert (told.answer.moved, told.answer.failed) == (1, 0)
    yield dead_letters.CancelRedrive(topic=topic, redrive=begun.id, group="q")


def of_queue_groups(told: Told, topic: str) -> Story:
    yield queues.SeekQueueGroup(topic=topic, group="q", to="earliest")
    yield queues.PurgeQueue(topic=topic, group="q")
    assert told.answer.ready == 0
    yield queues.ForgetQueueGroup(topic=topic, group="q")


def of_groups(told: Told, topic: str) -> Story:
    group = f"{topic}/members"
    yield groups.JoinGroup(group=group, topics=[topic], wait_ms=10_000)
    member_id = told.answer.member_id
    while not getattr(told.answer, "messages", None):
        yield groups.PollGroup(group=group, member_id=member_id, wait_ms=1_000)
    yield groups.HeartbeatGroup(group=group, member_id=member_id)
    offsets = [groups.CommitItem(topic=topic, partition=0, offset=1)]
    yield groups.CommitGroup(group=group, member_id=member_id, offsets=offsets)
    yield groups.LeaveGroup(group=group, member_id=member_id)
    yield groups.ListGroups()
    yield groups.ResetGroup(group=group, topic=topic, shift=1, partitions=[0])
    yield groups.DescribeGroup(group=group)
    assert [each.committed_offset for each in told.answer.offsets if each.partition == 0] == [2]
    yield groups.DeleteGroupOffsets(group=group, topic=topic, partitions="0")
    yield groups.ReportOffsets(group=group, offsets=[groups.ReportedOffset(topic=topic, partition=0, offset=1)])
    yield groups.FindOffsets(topics=[topic], timestamps_ms=[0])
    yield groups.DeleteGroup(group=group)


def of_transactions(told: Told, topic: str) -> Story:
    yield queues.Receive(topic=topic, group="in transactions", max=1)
    (message,) = told.answer.messages
    yield transactions.OpenTransaction(timeout_ms=50_000)
    name = told.answer.transaction
    yield messages.PublishBatch(topic=topic, messages=[text("in it")], transaction=name, writer="w", sequence=0)
    yield transactions.ExtendTransaction(transaction=name, timeout_ms=40_000)
    yield transactions.AckInTransaction(transaction=name, group="in transactions", receipts=[message.receipt])
    yield transactions.ListTransactions(state="open", kind="joint")
    yield transactions.DescribeTransaction(transaction=name)
    assert "w" in [writer.writer for writer in told.answer.writers]
    yield transactions.CommitTransaction(transaction=name, key="a commit")
    assert told.answer.state == "committed"
    yield transactions.OpenTransaction()
    yield transactions.AbortTransaction(transaction=told.answer.transaction, kind="joint")


def of_series(told: Told, topic: str) -> Story:
    yield series.BeginNumber(series=f"{topic}/series", number=0, run="r", writer="w")
    yield series.CommitNumber(
        series=f"{topic}/series", number=0, run="r", transaction=told.answer.transaction, writers=["w"]
    )
    assert not told.answer.repeated
    yield series.AbortNumber(series=f"{topic}/series", number=1, run="r")
    yield series.DescribeSeries(series=f"{topic}/series")
    assert told.answer.committed == 0


def of_schedules(told: Told, topic: str) -> Story:
    name = f"{topic}:schedule"
    added = schedules.NewSchedule(topic=topic, id=name, value_base64=b"x", every_ms=3_600_000)
    for is_new in (True, False):
        yield schedules.AddSchedule(schedule=added)
        assert told.answer.is_new is is_new
    yield schedules.ListSchedules(topic=topic, state="pending", limit=1)
    yield schedules.CountSchedules()
    yield schedules.TellTimes(cron="0 12 * * *", count=3)
    assert len(told.answer.times) == 3
    yield schedules.Reschedule(schedule=name, time=schedules.ScheduleTime(cron="@daily", time_zone="Europe/Rome"))
    yield schedules.RunSchedule(schedule=name)
    yield schedules.GetSchedule(schedule=name)
    assert told.answer.cron == "@daily"
    yield schedules.CancelSchedule(schedule=name)
    yield schedules.CancelSchedules(ids=[name])
    assert told.answer.fates == ["not_found"]


def of_pipelines(told: Told, topic: str) -> Story:
    name = topic.replace("topic-", "pipeline_")
    started_at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    yield pipelines.ReportPipeline(pipeline=name, run="r", state="running", started_at=started_at)
    assert told.answer.started_at == started_at
    yield pipelines.ListPipelines()
    yield pipelines.StopPipeline(pipeline=name)
    assert told.answer.stop_requested
    yield pipelines.GetPipeline(pipeline=name)
    yield pipelines.ForgetPipeline(pipeline=name)


def of_the_cluster(told: Told, topic: str) -> Story:
    yield cluster.DescribeCluster()
    yield cluster.DescribeMembers()
    yield cluster.ListNodes()
    yield cluster.ListReassignments()
    yield cluster.Rebalance(dry_run=True)
    yield cluster.ElectLeaders()
    assert told.answer.outcomes == [], "one node leads everything"
    yield cluster.ReassignTopic(topic=topic, nodes=[1])
    yield cluster.DrainNode(node=1, replicas=False)
    yield cluster.ResumeNode(node=1)


def of_settings(told: Told, topic: str) -> Story:
    yield settings.AlterGroupConfigs(group="g", configs={"consumer.session.timeout.ms": 9_000})
    yield settings.DescribeGroupConfigs(group="g")
    assert ("9000", "group") in {(each.value, each.origin) for each in told.answer.settings}
    yield settings.AlterClusterConfigs(configs={"leader.replication.throttled.rate": 5_000})
    yield settings.DescribeClusterConfigs()
    yield settings.AlterNodeConfigs(node=1, configs={"leader.replication.throttled.rate": None})
    yield settings.DescribeNodeConfigs(node=1)
    assert ("5000", "cluster") in {(each.value, each.origin) for each in told.answer.settings}
    yield settings.AlterClusterConfigs(configs={"leader.replication.throttled.rate": None})


def of_access(told: Told, topic: str) -> Story:
    principal, rule = f"User:{topic}", {"resource": "topic", "name": topic}
    yield access.WhoAmI()
    assert told.answer.principal == "User:ANONYMOUS"
    yield access.SetUser(user=topic, password="a password")
    yield access.ListUsers()
    assert topic in [user.user for user in told.answer.users]
    yield access.GrantRole(role="writer", principal=principal, resource="topic", name=topic)
    yield access.CreateAcls(acls=[access.AclView(principal=principal, action="read", **rule)])
    yield access.ListAcls(principal=principal)
    assert len(told.answer.acls) > 1
    yield access.RevokeRole(role="writer", principal=principal, resource="topic", name=topic)
    yield access.DeleteAcls(principal=principal)
    assert [acl.action for acl in told.answer.acls] == ["read"]
    yield access.IssueApiKey(principal=principal, expires_in_ms=60_000)
    key_id = told.answer.key_id
    yield access.ListApiKeys(principal=principal)
    assert [key.key_id for key in told.answer.keys] == [key_id]
    yield access.RevokeApiKey(key_id=key_id)
    yield access.DeleteUser(user=topic)
    yield access.DescribeMasterKeys()
    assert not told.answer.encrypting


def of_quotas(told: Told, topic: str) -> Story:
    yield quotas.SetQuota(user=topic, quotas={"producer_byte_rate": 1_000_000, "request_rate": 0.5})
    yield quotas.SetQuota(user=topic, quotas={"request_rate": None})
    yield quotas.ListQuotas(user=topic)
    assert [each.quotas for each in told.answer.quotas] == [{"producer_byte_rate": "1000000"}]
    yield quotas.RemoveQuota(user=topic)
    yield audit.ReadAudit(principal=f"User:{topic}", decision="allowed", since=datetime(2020, 1, 1, tzinfo=UTC))
    assert told.answer.events == []


def of_the_node(told: Told, topic: str) -> Story:
    yield health.IsAlive()
    yield health.IsReady()
    yield health.DescribeHealth()
    yield health.DescribeFigures()
    yield health.ScrubNow()
    yield health.DescribeScrub()
    yield topics.DeleteTopic(topic=topic)


STORIES = (
    of_topics,
    of_messages,
    of_queues,
    of_dead_letters,
    of_queue_groups,
    of_groups,
    of_transactions,
    of_series,
    of_schedules,
    of_pipelines,
    of_the_cluster,
    of_settings,
    of_access,
    of_quotas,
    of_the_node,
)
# What a cluster of one node refuses.
REFUSED = {
    cluster.TransferControl(): errors.PenstockError,
    cluster.RemoveNode(node=99, force=True): errors.NodeNotFound,
    access.RotateMasterKeys(): errors.KeysNotRotated,
}
