"""What queues make of logs: gaps, retention, key order, and their own companion log, which is kept short."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from tests.support.queue_house import QueueHouse, values
from tests.support.virtual_time import run, run_in_real_time

from penstock.config.settings import Fsync, StorageSettings
from penstock.features.queues.core.messages import ReceiptOutcome
from penstock.features.queues.core.records import LeaseGranted, LeasesSettled, QueueBegun, QueueChange, QueueSnapshot
from penstock.features.queues.leading import shard as queue_shard
from penstock.features.queues.leading.shard import QueueShard, trim_companion
from penstock.features.queues.leases import LeasedRecord
from penstock.machines.journal import Written
from penstock.partitions.config import PartitionsConfig
from penstock.records import Record, encode_batch
from penstock.testing.files import MemoryFiles


def test_leases_and_acks_survive_a_restart() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(partitions=2)
            house.put("a", "b", "c", "d")
            taken = await house.take(3)
            await house.ack(taken[1])
            await house.nack(taken[2], delay_ms=60_000)
        async with QueueHouse(house.files) as again:
            assert values(await again.take()) == ["d"]
            (stats,) = await again.queues.stats("orders", "workers")
            of_first = stats.partitions[0]
            assert (of_first.in_flight, of_first.waiting, of_first.acked_ahead) == (2, 1, 1)
            assert await again.ack(taken[0]) == [ReceiptOutcome.DONE], "the receipt is of before the restart"
            assert await again.ack(taken[1]) == [ReceiptOutcome.ALREADY_ACKED]
            assert await again.ack(taken[2]) == [ReceiptOutcome.LEASE_OVER]

    run(story)


def test_a_power_cut_may_end_leases_but_loses_no_ack() -> None:
    files = MemoryFiles()
    taken: list[LeasedRecord] = []

    async def before() -> None:
        house = QueueHouse(files, partitions=PartitionsConfig(storage=StorageSettings(fsync=Fsync.EVERY)))
        await house.broker.start()
        await house.topic()
        house.put(*"abcd")
        taken.extend(await house.take(2))
        await asyncio.to_thread(house.broker.partition("orders", 0).log.sync)
        await house.ack(taken[0])
        await house.take(2)

    async def after() -> None:
        async with QueueHouse(
            files.successor(keeps_unsynced=False),
            partitions=PartitionsConfig(storage=StorageSettings(fsync=Fsync.EVERY)),
        ) as again:
            assert "a" not in values(await again.take()), "an ack that was answered is for ever"
            assert await again.ack(*taken) == [ReceiptOutcome.ALREADY_ACKED, ReceiptOutcome.DONE], (
                "so is the lease that came before it"
            )

    run(before, after)  # and nothing is closed


def test_leases_that_ended_while_the_node_was_down_are_delivered_again() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put("a")
            await house.take(visibility_timeout_ms=50)
        await asyncio.sleep(0.1)
        async with QueueHouse(house.files) as again:
            taken = await again.take(wait_ms=1_000)
            assert [message.delivery_count for message in taken] == [2]

    run(story)


def test_what_was_aborted_and_control_records_are_stepped_over() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            partition = house.broker.partition("orders", 0)
            now_ms = house.broker.clock.now_ms()

            def write(producer: int, *texts: str) -> None:
                records = [Record(at, now_ms, None, text.encode(), ()) for at, text in enumerate(texts)]
                batch = encode_batch(
                    records, producer_id=producer, producer_epoch=0, base_sequence=0, is_transactional=True
                )
                partition.append(memoryview(batch), now_ms, is_durable=False)

            def end(producer: int, *, is_commit: bool) -> None:
                partition.end_transaction(
                    producer, 0, is_commit=is_commit, coordinator_epoch=0, now_ms=now_ms, is_durable=False
                )

            house.put("a")
            write(1, "bad", "worse")
            write(2, "b")
            assert values(await house.take()) == ["a"], "nothing of an open transaction, nor behind it"
            end(1, is_commit=False)
            waiting = asyncio.ensure_future(house.take(wait_ms=5_000))
            await asyncio.sleep(0.05)
            end(2, is_commit=True)
            house.put("c")
            taken = await waiting
            taken += await house.take()
            assert values(taken) == ["b", "c"]
            await house.queues.ack("workers", [message.receipt for message in taken])
            (stats,) = await house.queues.stats("orders", "workers")
            assert stats.partitions[0].acked_ahead == 6, "all but the first one, which is in flight"

    run(story)


def test_what_compaction_removed_is_stepped_over() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(cleanup_policy="compact", segment_bytes="2000", min_cleanable_dirty_ratio="0.01")
            for at in range(30):
                house.put(f"old {at}" + "x" * 200, f"kept {at}", keys=["same", f"key {at}"])
            await asyncio.to_thread(house.broker.partition("orders", 0).log.sync)
            await house.broker._housekeeping.tidy_round()
            taken = await house.take(1000)
            kept = [value for value in values(taken) if value.startswith("kept")]
            assert kept == [f"kept {at}" for at in range(30)]
            assert len(taken) < 60, "compaction has removed something"
            assert set(await house.ack(*taken)) == {ReceiptOutcome.DONE}
            (stats,) = await house.queues.stats("orders", "workers")
            assert stats.partitions[0].committed == stats.partitions[0].end == 60

    run(story)


def test_retention_that_removes_messages_ends_what_is_known_of_them() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put(*"abcdef")
            taken = await house.take(2)
            await house.broker.trim("orders", 0, 4)
            assert values(await house.take()) == ["e", "f"]
            assert await house.ack(*taken) == [ReceiptOutcome.ALREADY_ACKED] * 2
            (stats,) = await house.queues.stats("orders", "workers")
            assert (stats.partitions[0].committed, stats.partitions[0].in_flight) == (4, 2)

    run(story)


def test_key_order_holds_back_a_key_and_no_other() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(queue_order="key")
            house.put("a1", "a2", "b1", "a3", "b2", "free", keys=["a", "a", "b", "a", "b", None])
            taken = await house.take()
            assert values(taken) == ["a1", "b1", "free"]
            waiting = asyncio.ensure_future(house.take(wait_ms=5_000))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await house.ack(taken[1])
            assert values(await waiting) == ["b2"]
            await house.nack(taken[0], delay_ms=0)
            assert values(await house.take(wait_ms=1_000)) == ["a1"], "the failed one first, then its key goes on"
            assert await house.take() == []

    run(story)


def test_key_order_survives_a_restart() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(queue_order="key")
            house.put("a1", "a2", keys=["a", "a"])
            (first,) = await house.take()
        async with QueueHouse(house.files) as again:
            assert await again.take() == []
            await again.ack(first)
            assert values(await again.take()) == ["a2"]

    run(story)


def test_settings_of_topic_and_group_count_at_once() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put(*"abc")
            await house.queues.declare("orders", "workers", settings={"in.flight.consumer.max": "1"})
            assert values(await house.take()) == ["a"]
            assert await house.take() == []
            assert values(await house.take(group="others")) == ["a", "b", "c"]
            await house.broker.configure_topic("orders", {"queue.in.flight.consumer.max": "2"})
            assert await house.take() == [], "the group's own setting goes over the topic's"
            house.put("d")
            assert await house.take(group="others") == []
            (stats,) = await house.queues.stats("orders", "workers")
            assert stats.own_settings == {"in.flight.consumer.max": "1"}
            assert stats.settings.in_flight_consumer_max == 1

    run(story)


def test_a_companion_log_is_cut_before_the_oldest_snapshot() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put("resting")
            await house.take(group="resting")
            house.put(*("x" for _ in range(2_000)))
            (shard,) = list(house.queues.coordinator)
            log = shard.journal.partition.log
            for _ in range(400):
                await house.ack(*await house.take(5))
            assert log.end_offset > 800
            await trim_companion(shard, house.broker.topics)
            assert log.start_offset == 0, "that is not worth it yet"
            queue_shard._TRIM_RECORDS_MIN, queue_shard._RESTING_RECORDS = 100, 200  # type: ignore[misc]
            await trim_companion(shard, house.broker.topics)
            assert log.start_offset > 800, "the group that rests got a snapshot too"
            await house.take(1)
        async with QueueHouse(house.files) as again:
            (stats,) = await again.queues.stats("orders", "resting")
            assert stats.partitions[0].in_flight == 1
            (stats,) = await again.queues.stats("orders", "workers")
            assert (stats.partitions[0].committed, stats.partitions[0].in_flight) == (2_000, 1)

    before = queue_shard._TRIM_RECORDS_MIN, queue_shard._RESTING_RECORDS
    try:
        run(story)
    finally:
        queue_shard._TRIM_RECORDS_MIN, queue_shard._RESTING_RECORDS = before  # type: ignore[misc]


def test_pause_resume_seek_purge_forget_and_peek() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(partitions=2)
            house.put(*"abc")
            house.put("d", partition=1)
            (first,) = await house.take(1)
            peeked = await house.queues.peek("orders", "workers", max_messages=10)
            assert [(each.state, each.record.value) for each in peeked] == [
                ("in_flight", b"a"),
                ("ready", b"b"),
                ("ready", b"c"),
                ("ready", b"d"),
            ]
            await house.queues.pause("orders", "workers", "looking into it")
            assert await house.take() == []
            (stats,) = await house.queues.stats("orders", "workers")
            assert (stats.is_paused, stats.pause_reason) == (True, "looking into it")
            waiting = asyncio.ensure_future(house.take(wait_ms=5_000))
            await asyncio.sleep(0.05)
            await house.queues.resume("orders", "workers")
            assert sorted(values(await waiting) + values(await house.take())) == ["b", "c", "d"]
            await house.queues.seek("orders", "workers", "earliest")
            assert await house.ack(first) == [ReceiptOutcome.UNKNOWN]
            assert sorted(values(await house.take())) == ["a", "b", "c", "d"]
            await house.queues.purge("orders", "workers")
            (stats,) = await house.queues.stats("orders", "workers")
            assert [each.committed for each in stats.partitions] == [3, 1]
            await house.queues.forget("orders", "workers")
            assert await house.queues.groups("orders") == []
            assert sorted(values(await house.take())) == ["a", "b", "c", "d"]

    run(story)


def test_a_group_begins_where_it_is_declared_and_in_partitions_that_come_later() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put("old")
            await house.queues.declare("orders", "workers", start="latest", settings={"tries": "7"})
            house.put("new")
            assert values(await house.take()) == ["new"]
            await house.broker.add_partitions("orders", 2)
            house.put("first of all there", partition=1)
            assert values(await house.take()) == ["first of all there"]
            (stats,) = await house.queues.stats("orders", "workers")
            assert [each.partition for each in stats.partitions] == [0, 1]
            (shard, other) = list(house.queues.coordinator)
            assert shard.machines["workers"].settings.tries == other.machines["workers"].settings.tries == 7

    run(story)


def test_a_topic_made_again_has_no_groups_of_the_old_one() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put("a")
            (taken,) = await house.take()
            await house.broker.delete_topic("orders")
            await house.topic()
            assert await house.queues.groups("orders") == []
            house.put("b")
            assert values(await house.take()) == ["b"]
            assert await house.ack(taken) == [ReceiptOutcome.UNKNOWN]

    run(story)


def slow_snapshot(shard: QueueShard, group: str) -> tuple[asyncio.Future[None], threading.Event]:
    """A snapshot that begins now and is not finished before the event."""
    go_on = threading.Event()
    prepare = shard._prepare

    def wait_and_prepare(finish: Callable[[], QueueChange], at_ms: int) -> QueueChange:
        assert go_on.wait(60)
        return prepare(finish, at_ms)

    shard._prepare = wait_and_prepare  # type: ignore[method-assign]
    return asyncio.ensure_future(shard.snapshot(shard.machines[group])), go_on


def test_a_snapshot_stands_for_what_was_before_it_began_and_others_go_on_meanwhile() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put(*"abcdef")
            taken = await house.take(4)
            (shard,) = list(house.queues.coordinator)
            queue = shard.machines["workers"]
            await house.ack(taken[0])
            began = shard.journal.end_offset
            making, go_on = slow_snapshot(shard, "workers")
            await asyncio.sleep(0)
            verdicts = await house.queues.reject("workers", [taken[2].receipt], reason="bad")
            assert [verdict.fate for verdict in verdicts] == [ReceiptOutcome.DONE]
            await house.ack(taken[1])
            await house.nack(taken[3], delay_ms=0)
            assert not making.done()
            go_on.set()
            await making
            assert shard.journal.needed["workers"] == began
            events = [entry.change.event for entry in shard.journal.replay() if isinstance(entry, Written)]
            assert isinstance(events[0], QueueSnapshot)
            assert events[0].upto == began
            assert sum(isinstance(event, LeasesSettled) for event in events[1:]) >= 3
            assert not any(isinstance(event, QueueSnapshot) for event in events[1:])
            before = queue._state.snapshot()
            read = shard.read_log()["workers"]._state.snapshot()
            assert read.rows == before.rows
            assert (read.committed, read.last_lease) == (before.committed, before.last_lease)
        async with QueueHouse(house.files) as again:
            assert values(await again.take()) == ["d", "e", "f"]

    run_in_real_time(story)


def test_a_group_that_is_forgotten_while_its_snapshot_is_made_stays_forgotten() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put("a", "b")
            await house.take(1)
            (shard,) = list(house.queues.coordinator)
            making, go_on = slow_snapshot(shard, "workers")
            await asyncio.sleep(0)
            await house.queues.forget("orders", "workers")
            assert values(await house.take(1)) == ["a"], "it begins anew"
            go_on.set()
            await making
        async with QueueHouse(house.files) as again:
            assert values(await again.take()) == ["b"]

    run_in_real_time(story)


def test_only_what_comes_after_the_last_snapshot_is_read() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            house.put(*"abcdef")
            taken = await house.take(2)
            (shard,) = list(house.queues.coordinator)
            await house.ack(taken[0])
            await shard.snapshot(shard.machines["workers"])
            await house.ack(taken[1])
            await house.take(1, group="others")
            read = [entry.change for entry in shard.journal.replay() if isinstance(entry, Written)]
            assert [(change.group, type(change.event)) for change in read] == [
                ("workers", QueueSnapshot),
                ("workers", LeasesSettled),
                ("others", QueueBegun),
                ("others", LeaseGranted),
            ]
        async with QueueHouse(house.files) as again:
            assert values(await again.take()) == ["c", "d", "e", "f"]
            assert values(await again.take(group="others")) == ["b", "c", "d", "e", "f"]

    run(story)
