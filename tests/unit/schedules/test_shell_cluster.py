"""Schedules across nodes: any node takes any request, and each message comes once whoever leads."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.support.queue_nodes import NODES, QueueNodes, until
from tests.support.virtual_time import run

from penstock.broker.broker import Broker
from penstock.features.schedules.messages import PlacedSchedule, ScheduleOutcome, ScheduleRequest
from penstock.features.schedules.records import ScheduledMessage
from penstock.model import SCHEDULES_TOPIC
from penstock.records import decode_records, iter_batches

HOUR_MS = 3_600_000


async def add(broker: Broker, count: int, delay_ms: int, prefix: str = "m") -> list[PlacedSchedule]:
    due_ms = broker.clock.now_ms() + delay_ms
    messages = [ScheduledMessage("orders", None, b"%d" % at, f"{prefix}{at}".encode()) for at in range(count)]
    return await broker.schedules.add([ScheduleRequest(message=message, due_ms=due_ms) for message in messages])


async def came(broker: Broker, partitions: int = 3) -> Counter[bytes | None]:
    """What is in the topic, by whoever leads it, as seen from one node."""
    found: Counter[bytes | None] = Counter()
    for index in range(partitions):
        offset = 0
        while len((read := await broker.partitions.read("orders", index, offset, 1 << 20)).data):
            for position, header in iter_batches(read.data):
                records = decode_records(read.data[position : position + header.size])
                assert all(
                    record.timestamp >= int(dict(record.headers)["penstock-due"] or b"") for record in records
                ), "one is early"
                found.update(record.value for record in records)
                offset = header.next_offset
    return found


async def await_all(broker: Broker, expected: Counter[bytes | None]) -> None:
    async with asyncio.timeout(25):
        while (found := await came(broker)).total() < expected.total():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert found == expected


def named(count: int, prefix: str = "m") -> Counter[bytes | None]:
    return Counter(f"{prefix}{at}".encode() for at in range(count))


def test_every_node_takes_every_request() -> None:
    async def story() -> None:
        async with QueueNodes() as nodes:
            await nodes.topic()
            placed: list[PlacedSchedule] = []
            for node_id in NODES:
                placed += await add(nodes.brokers[node_id], 20, HOUR_MS, f"{node_id}-")
            await until(lambda: all(SCHEDULES_TOPIC in each.metadata.topics for each in nodes.brokers.values()))
            leaders = {nodes.leader(SCHEDULES_TOPIC, shard).config.node_id for shard in range(8)}
            assert leaders == set(NODES), "shards are spread over nodes"
            for node_id in NODES:
                calendar = nodes.brokers[node_id].schedules
                page = await calendar.page(limit=1000)
                assert {each.id for each in page.schedules} == {each.id for each in placed}
                assert (await calendar.show(placed[5].id)).due_ms == placed[5].due_ms
                assert (await calendar.stats()).pending == 60
                assert calendar.stats_here().pending <= 60
            for at, node_id in enumerate(NODES):
                ids = [each.id for each in placed[at::3]][:10]
                assert await nodes.brokers[node_id].schedules.cancel(ids) == [ScheduleOutcome.DONE] * 10
                moved = placed[at::3][10].id
                await nodes.brokers[node_id].schedules.reschedule(moved, due_ms=1)
                await nodes.brokers[node_id].schedules.run_now(placed[at::3][11].id)
            async with asyncio.timeout(20):
                while (await came(nodes.brokers[1])).total() < 6:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            while (await nodes.brokers[2].schedules.stats()).pending > 24:  # noqa: ASYNC110 - recorded a moment later
                await asyncio.sleep(0.05)
            assert (await nodes.brokers[2].schedules.stats()).pending == 24
            assert (await nodes.brokers[3].schedules.stats()).cancelled_total == 30

    run(story)


def test_a_leader_that_is_cut_off_or_stops_takes_nothing_with_it_and_repeats_nothing() -> None:
    async def story() -> None:
        async with QueueNodes() as nodes:
            await nodes.topic(min_insync_replicas="2")
            await add(nodes.brokers[1], 300, 1_500)
            await add(nodes.brokers[2], 300, 2_500, "n")
            await asyncio.sleep(1.2)
            gone = nodes.leader(SCHEDULES_TOPIC, 0).config.node_id
            nodes.cut_off(gone)
            left = [node_id for node_id in NODES if node_id != gone]
            await until(
                lambda: all(nodes.brokers[left[0]].leader_of(SCHEDULES_TOPIC, at) in left for at in range(8)), 20
            )
            expected = named(300) + named(300, "n")
            await await_all(nodes.brokers[left[0]], expected)
            nodes.exchange.heal()
            await add(nodes.brokers[left[1]], 100, 300, "o")
            await nodes.stop(left[0])
            expected += named(100, "o")
            await await_all(nodes.brokers[left[1]], expected)
            await asyncio.sleep(0.5)
            assert await came(nodes.brokers[left[1]]) == expected, "nothing comes again"
            while (await nodes.brokers[left[1]].schedules.stats()).pending:  # noqa: ASYNC110 - until all are recorded
                await asyncio.sleep(0.05)

    run(story)
