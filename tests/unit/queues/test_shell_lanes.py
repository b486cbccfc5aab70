"""Lanes through a real broker: labels from batches, the index of a backlog, partitions, retries and restarts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.queue_house import QueueHouse, values
from tests.support.virtual_time import run

from penstock.features.queues.leading.sources import lane_of_records
from penstock.priorities import NORMAL, PRIORITIES, lane_of_headers, with_priority
from penstock.records import Codec, Record, encode_batch, encode_values
from penstock.records.batch import open_batch
from penstock.testing.files import MemoryFiles

LANES = {"queue_lanes": "on"}
Header = tuple[str, bytes | None]


def put(
    house: QueueHouse,
    *messages: tuple[str, str | None],
    partition: int = 0,
    codec: Codec = Codec.NONE,
    headers: Sequence[tuple[str, bytes]] = (),
) -> None:
    """Publish values and their priorities as one batch."""
    now_ms = house.broker.clock.now_ms()
    records = [
        Record(at, now_ms, None, value.encode(), with_priority(tuple(headers), priority))
        for at, (value, priority) in enumerate(messages)
    ]
    batch = memoryview(encode_batch(records, codec=codec))
    house.broker.partition("orders", partition).append(batch, now_ms, is_durable=False)


def put_many(house: QueueHouse, count: int, priority: str, partition: int = 0) -> None:
    now_ms = house.broker.clock.now_ms()
    batch = encode_values([priority.encode()] * count, now_ms, headers=with_priority((), priority))
    house.broker.partition("orders", partition).append(memoryview(batch), now_ms, is_durable=False)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_mixed_batch_is_handed_out_by_priority(codec: Codec) -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(**LANES)
            put(house, ("d", "low"), ("c", None), ("b", "high"), ("e", "background"), ("a", "critical"), codec=codec)
            assert values(await house.take()) == ["a", "b", "c", "d", "e"], "an answer has the most urgent first"

    run(story)


def test_a_critical_message_comes_first_past_a_long_backlog() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(**LANES)
            for _ in range(60):
                put_many(house, 1_000, "background")
            put(house, ("now", "critical"))
            taken: list[str] = []
            while "now" not in taken:  # the first receives may come before the index is that far
                taken += values(await house.take(1))
                await asyncio.sleep(0.005)
            assert len(taken) < 50
            assert await house.take(1), "the others are still there"

    run(story)


def test_lanes_that_are_not_on_change_nothing() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            put(house, ("a", "low"), ("b", "critical"))
            assert values(await house.take()) == ["a", "b"]

    run(story)


def test_a_group_may_have_lanes_of_its_own() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic()
            put(house, ("a", "low"), ("b", "critical"))
            await house.queues.declare("orders", "urgent", settings={"lanes": "on"})
            assert values(await house.take(1, group="urgent")) == ["b"]
            assert values(await house.take(1, group="plain")) == ["a"]

    run(story)


def test_a_retry_comes_back_in_its_lane() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(**LANES)
            put_many(house, 100, "background")
            put(house, ("urgent", "critical"))
            (first,) = await house.take(1)
            assert (first.value, first.delivery_count) == (b"urgent", 1)
            await house.nack(first, delay_ms=0)
            (again,) = await house.take(1)
            assert (again.value, again.delivery_count) == (b"urgent", 2)

    run(story)


def test_whoever_takes_over_knows_the_lanes_again() -> None:
    files = MemoryFiles()

    async def before() -> None:
        async with QueueHouse(files) as house:
            await house.topic(**LANES)
            put(house, ("b1", "background"), ("c1", "critical"), ("b2", "background"), ("c2", "critical"))
            assert values(await house.take(1)) == ["c1"]

    async def after() -> None:
        async with QueueHouse(files) as house:
            assert values(await house.take(1)) == ["c2"]
            (stats,) = await house.queues.stats("orders", "workers")
            lanes = {lane.lane: lane for lane in stats.partitions[0].lanes}
            assert (lanes["critical"].in_flight, lanes["background"].ready) == (2, 2)

    run(before, after)


def test_partitions_with_critical_messages_come_first_but_not_for_ever() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(partitions=3, **LANES)
            for partition in range(3):
                put_many(house, 500, "critical" if partition == 2 else "background", partition)
            await house.take(3)  # everybody is looked at
            served = Counter(values([message for _ in range(60) for message in await house.take(1)]))
            assert served["critical"] > 40, served
            assert served["background"] > 5, served

    run(story)


def test_one_noisy_tenant_does_not_hold_up_another() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(queue_fair_by="header:tenant")
            put(house, *[("noisy", None)] * 500, headers=[("tenant", b"a")])
            put(house, *[("quiet", None)] * 5, headers=[("tenant", b"b")])
            await house.take(10)
            assert Counter(values(await house.take(20)))["quiet"] == 5

    run(story)


def test_figures_are_told_for_each_lane() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await house.topic(**LANES)
            put_many(house, 10, "critical")
            put_many(house, 5, "low")
            taken = await house.take(4)
            await house.ack(taken[0])
            (stats,) = await house.queues.stats("orders", "workers")
            lanes = {lane.lane: lane for lane in stats.partitions[0].lanes}
            assert list(lanes) == list(PRIORITIES)
            assert (lanes["critical"].ready, lanes["critical"].in_flight, lanes["critical"].served) == (6, 3, 4)
            assert (lanes["low"].ready, lanes["low"].served, lanes["low"].last_served_ms) == (5, 0, None)
            assert lanes["critical"].served_per_second > 0
            assert lanes["low"].oldest_ms is not None
            assert lanes["normal"].oldest_ms is None
            assert stats.partitions[0].unseen == 0

    run(story)


PIECES = (b"", b"penstock-priority", b"\x22penstock-priority\x10critical", b"x" * 200, b"critical")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PIECES),
            st.lists(
                st.tuples(
                    st.sampled_from(["penstock-priority", "Penstock-Priority", "x"]),
                    st.sampled_from([None, b"critical", b"LOW", b"high", b"?", b""]),
                ),
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_batch_that_seems_to_have_one_lane_has_it(
    messages: list[tuple[bytes, list[tuple[str, bytes | None]]]],
) -> None:
    records = [Record(at, 1_000, None, value, tuple(headers)) for at, (value, headers) in enumerate(messages)]
    header, data = open_batch(encode_batch(records))
    found = lane_of_records(header.count, data, 0, len(data))
    if found is not None:
        assert {lane_of_headers(record.headers) for record in records} == {found}


@pytest.mark.parametrize("priority", [None, *PRIORITIES])
def test_a_batch_of_one_priority_is_recognised_at_a_glance(priority: str | None) -> None:
    header, data = open_batch(encode_values([b"v" * 300] * 700, 1_000, headers=with_priority((), priority)))
    expected = NORMAL if priority is None else PRIORITIES.index(priority)
    assert lane_of_records(header.count, data, 0, len(data)) == expected
