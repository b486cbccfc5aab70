"""The flood breaker, held against a twin that remembers every single outcome."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.queues.graveyard import publish, receive, run, running, until

from penstock.consensus.controller import TopicSpec
from penstock.consensus.queue_config import QueueSettings
from penstock.errors import NotCoordinator
from penstock.features.dead_letters.writer import Breaker, Breakers
from penstock.features.queues.core.state import QueueTally
from penstock.supervision import Supervision

WINDOW_MS = 1_000
STEP_MS = WINDOW_MS // 20

steps = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 20), st.integers(0, 20)), max_size=60)


@given(steps=steps, share=st.floats(0.05, 1.0), least=st.integers(1, 60))
def test_a_breaker_opens_when_the_share_of_failures_in_the_window_is_too_large(
    steps: list[tuple[int, int, int]], share: float, least: int
) -> None:
    settings = QueueSettings(breaker_share=share, breaker_min=least, breaker_window_ms=WINDOW_MS)
    breaker = Breaker()
    told: list[tuple[int, int, int]] = []
    now_ms = 0
    for later_ms, succeeded, failed in steps:
        now_ms += later_ms
        told.append((now_ms, succeeded, failed))
        flood = breaker.note(succeeded, failed, settings, now_ms)
        # What ended at the very edge of the window may count or not: a window moves on in steps.
        surely = [each for each in told if each[0] > now_ms - WINDOW_MS]
        perhaps = [each for each in told if each[0] > now_ms - WINDOW_MS - STEP_MS]
        ended, failures = sum(ok + bad for _, ok, bad in surely), sum(bad for _, _, bad in surely)
        if len(surely) == len(perhaps):
            assert (flood is not None) == (ended >= least and failures > share * ended)
        if flood is not None:
            assert flood.ended >= least
            assert flood.failed > share * flood.ended
            assert failures <= flood.failed <= sum(bad for _, _, bad in perhaps)


def test_a_share_of_nothing_is_a_breaker_that_never_opens() -> None:
    assert Breaker().note(0, 1_000_000, QueueSettings(), 0) is None


def test_memory_of_a_breaker_does_not_grow_with_time() -> None:
    breaker = Breaker()
    settings = QueueSettings(breaker_share=1.0, breaker_window_ms=WINDOW_MS)
    for now_ms in range(0, 100_000, 7):
        breaker.note(1, 1, settings, now_ms)
    assert len(breaker._slots) <= 22


class _Clock:
    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_pause_that_fails_is_tried_again_with_the_next_failure(is_failing: bool) -> None:
    async def story() -> None:
        paused: list[tuple[str, str, str]] = []

        async def pause(topic: str, group: str, reason: str) -> None:
            paused.append((topic, group, reason))
            if is_failing:
                raise NotCoordinator("not now")

        breakers = Breakers(_Clock(), pause, Supervision(_Clock()))
        settings = QueueSettings(breaker_share=0.5, breaker_min=4)
        breakers.note("t", "g", settings, QueueTally(acked=1, nacked=1, rejected=1, expired=1))
        breakers.note("t", "g", settings, QueueTally(nacked=1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(paused) == 1
        assert "3 of 4" in paused[0][2]
        breakers.note("t", "g", settings, QueueTally(nacked=1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(paused) == (2 if is_failing else 1), "after a pause it counts from nothing"
        assert breakers.opened["t", "g"] == (0 if is_failing else 1)

    asyncio.run(story())


def test_a_group_that_fails_too_often_is_paused_and_says_why() -> None:
    async def story() -> None:
        async with running() as broker:
            configs = {"queue.breaker.share": "0.5", "queue.breaker.min": "10"}
            await broker.create_topic(TopicSpec(name="t", partitions=1, configs=configs))
            await publish(broker, "t", *(b"%d" % at for at in range(30)))
            messages = await receive(broker, "t")
            receipts = [message.receipt for message in messages]
            await broker.queues.ack("g", receipts[:5])
            await broker.queues.nack("g", receipts[5:10])
            assert not (await broker.queues.stats("t", "g"))[0].is_paused, "half of them is not more than half"
            await broker.queues.nack("g", receipts[10:12])

            async def is_paused() -> bool:
                return (await broker.queues.stats("t", "g"))[0].is_paused

            async def is_told() -> bool:
                return broker.queues.breakers.opened["t", "g"] == 1

            await until(is_paused)
            await until(is_told)
            reason = (await broker.queues.stats("t", "g"))[0].pause_reason
            assert "7 of 12 deliveries failed" in reason
            await broker.queues.resume("t", "g")
            await broker.queues.nack("g", receipts[12:20])
            await asyncio.sleep(0.05)
            assert not await is_paused(), "it counts from nothing"

    run(story())
