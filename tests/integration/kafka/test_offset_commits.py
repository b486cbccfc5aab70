"""Offset commits through the Kafka door: answered without a task, yet whatever goes wrong is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.kafka.test_door import TOPIC, Client, tell

from penstock.doors.kafka.handlers import offsets as group_offsets
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import decode_response
from penstock.doors.kafka.protocol.messages import offsets as wire
from penstock.machines.leaders import shard_of

VERSION = 8


def commit(group: str, offset: int, *, topic: str = TOPIC, partition: int = 0) -> wire.OffsetCommitRequest:
    row = wire.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
    topics = (wire.OffsetCommitRequestTopic(name=topic, partitions=(row,)),)
    return wire.OffsetCommitRequest(group_id=group, member_id="", topics=topics)


async def answered(client: Client) -> tuple[int, int]:
    """The correlation id of an answer and its error."""
    correlation, response = decode_response(wire.OffsetCommitResponse, VERSION, await client.receive())
    return correlation, response.topics[0].partitions[0].error_code


async def coordinate(client: Client) -> None:
    """Have the node coordinate groups, and wait until it does."""
    await client.broker.ensure_offsets_topic()
    while True:
        client.send(commit("first", 0), VERSION)
        if (await answered(client))[1] == ErrorCode.NONE:
            return
        await asyncio.sleep(0.01)


async def second(client: Client) -> Client:
    """Another connection to the same node."""
    return Client(*await asyncio.open_connection(*client.writer.get_extra_info("peername")), client.broker)


def test_a_commit_before_there_is_a_coordinator_is_told_so(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        client.send(commit("g", 1), VERSION)
        assert (await answered(client))[1] == ErrorCode.NOT_COORDINATOR

    tell(tmp_path, story)


def test_pipelined_commits_are_answered_in_order_each_with_its_own_error(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await coordinate(client)
        asked = [client.send(commit("g", 1), VERSION), client.send(commit("g", 2, partition=9), VERSION)]
        asked.append(client.send(commit("g", 3, topic="absent"), VERSION))
        asked.append(client.send(commit("g", -7), VERSION))
        got = [await answered(client) for _ in asked]
        codes = [ErrorCode.NONE, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2, ErrorCode.NONE]
        assert got == list(zip(asked, codes, strict=True))
        kept = client.broker.groups.find("g")
        assert kept is not None
        found = kept.offsets.get((TOPIC, 0))
        assert found is not None
        assert found.offset == -7

    tell(tmp_path, story)


def test_a_bug_in_one_answer_closes_that_connection_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = group_offsets._commit_response

    def fail_for_one(request: wire.OffsetCommitRequest, *rest: object) -> wire.OffsetCommitResponse:
        if request.group_id == "unlucky":
            raise RuntimeError("a bug")
        return works(request, *rest)  # type: ignore[arg-type]

    async def story(client: Client) -> None:
        await coordinate(client)
        monkeypatch.setattr(group_offsets, "_commit_response", fail_for_one)
        other = await second(client)
        shards = client.broker.config.groups.offsets_partitions
        names = (f"lucky-{number}" for number in range(1000))
        neighbour = next(name for name in names if shard_of(name, shards) == shard_of("unlucky", shards))
        # Of one shard and sent at once, both are written in one batch and answered in one go.
        client.send(commit("unlucky", 1), VERSION)
        other.send(commit(neighbour, 1), VERSION)
        assert (await answered(other))[1] == ErrorCode.NONE
        assert await client.is_closed()
        other.writer.close()

    tell(tmp_path, story)


def test_a_client_that_leaves_before_its_answer_harms_nobody(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await coordinate(client)
        other = await second(client)
        other.send(commit("gone", 5), VERSION)
        await other.writer.drain()
        other.writer.transport.abort()
        client.send(commit("here", 6), VERSION)
        assert (await answered(client))[1] == ErrorCode.NONE

    tell(tmp_path, story)
