"""Dead letters that are sent back: what is meant and nothing else, once, whatever breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.queues.graveyard import (
    finished,
    kill_all,
    listed,
    publish,
    records,
    run,
    running,
    until_count,
    values,
)

from penstock.consensus.controller import TopicSpec
from penstock.errors import InvalidRequest, NotCoordinator, RedriveRunning, UnknownTopic
from penstock.features.redrives.ledger import SettlePlan
from penstock.features.redrives.records import DeadLetterFilter, JobState
from penstock.testing.files import MemoryFiles


def test_a_redrive_sends_back_what_is_meant_and_only_once() -> None:
    async def story() -> None:
        async with running() as broker:
            await broker.create_topic(TopicSpec(name="t", partitions=2))
            await publish(broker, "t", b"a", b"b", b"c", partition=1, headers=(("h", b"1"),))
            await kill_all(broker, "t", 3, "one")
            await publish(broker, "t", b"d", partition=0)
            await kill_all(broker, "t", 1, "two")
            rehearsal = await broker.dead_letters.rehearse("t", DeadLetterFilter(reason="one"))
            assert (rehearsal.matched, rehearsal.targets, rehearsal.stranded) == (3, {"t": 3}, 0)
            assert await values(broker, "t", 1) == [b"a", b"b", b"c"], "nothing was sent"
            job = await finished(
                broker, "t", await broker.dead_letters.redrive("t", DeadLetterFilter(reason="one"), by="me")
            )
            assert (job.state, job.moved, job.failed, job.by) == (JobState.DONE, 3, 0, "me")
            sent = (await records(broker, "t", 1))[3:]
            assert [(each.value, each.headers) for each in sent] == [
                (value, (("h", b"1"), ("penstock-redriven", b"1"))) for value in (b"a", b"b", b"c")
            ]
            assert [each.record.value for each in await listed(broker, "t")] == [b"d"]
            assert len(await listed(broker, "t", has_redriven=True)) == 4
            count = await broker.dead_letters.count("t")
            assert (count.total, count.redriven, count.dead) == (4, 3, 1)
            again = await finished(broker, "t", await broker.dead_letters.redrive("t", DeadLetterFilter(reason="one")))
            assert again.moved == 0
            # What dies again can be sent back again, and tells of it.
            await kill_all(broker, "t", 3, "still")
            await finished(
                broker, "t", await broker.dead_letters.redrive("t", DeadLetterFilter(reason="still"), limit=2)
            )
            assert [dict(each.headers)["penstock-redriven"] for each in (await records(broker, "t", 1))[6:]] == [
                b"2"
            ] * 2
            assert len(await listed(broker, "t", DeadLetterFilter(reason="still"))) == 1

    run(story())


@pytest.mark.parametrize("lost", ["the settlement", "the answer of the append"])
def test_a_redrive_that_a_crash_interrupts_goes_on_and_sends_nothing_twice(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryFiles()
    count = 700  # several steps

    async def before_the_crash() -> None:
        async with running(files) as broker:
            await broker.create_topic(TopicSpec(name="t", partitions=1))
            await publish(broker, "t", *(b"%d" % at for at in range(count)))
            await kill_all(broker, "t", count)
            sent = 0
            if lost == "the settlement":
                real = broker._redrives.ask

                async def ask(name: str, request: Any) -> Any:
                    nonlocal sent
                    sent += isinstance(request, SettlePlan)
                    if isinstance(request, SettlePlan) and sent > 1:
                        raise NotCoordinator("The node is gone.")
                    return await real(name, request)

                monkeypatch.setattr(broker._redrives, "ask", ask)
            else:
                append = broker.partitions.append

                async def lose(*args: Any, **how: Any) -> Any:
                    nonlocal sent
                    appended = await append(*args, **how)
                    sent += 1
                    if sent > 1:
                        raise NotCoordinator("The node is gone.")
                    return appended

                monkeypatch.setattr(broker.partitions, "append", lose)
            await broker.dead_letters.redrive("t")
            await until_count(broker, "t", count + 400)
            await asyncio.sleep(0.7)  # long enough for a second attempt
            assert len(await records(broker, "t")) == count + 400, "it does not get on"

    async def after_it() -> None:
        async with running(files) as broker:
            jobs = await broker.dead_letters.redrives("t")
            job = await finished(broker, "t", jobs[0])
            assert (job.moved, job.failed, job.state) == (count, 0, JobState.DONE)
            assert (await values(broker, "t"))[count:] == [b"%d" % at for at in range(count)]
            assert await listed(broker, "t") == []

    ended_s = run(before_the_crash())
    monkeypatch.undo()
    run(after_it(), ended_s)


def test_a_slow_redrive_tells_how_far_it_is_and_can_be_cancelled() -> None:
    async def story() -> None:
        async with running() as broker:
            await broker.create_topic(TopicSpec(name="t", partitions=1))
            await publish(broker, "t", *(b"%d" % at for at in range(20)))
            await kill_all(broker, "t", 20)
            job = await broker.dead_letters.redrive("t", rate=2.0)
            with pytest.raises(RedriveRunning):
                await broker.dead_letters.redrive("t")
            await until_count(broker, "t", 21)
            await broker.dead_letters.cancel("t", job.id)
            job = await finished(broker, "t", job)
            assert job.state is JobState.CANCELLED
            assert 1 <= job.moved < 5, "two a second"
            assert len(await listed(broker, "t")) == 20 - job.moved

    run(story())


def test_a_redrive_to_another_topic_and_one_that_has_nowhere_to_go() -> None:
    async def story() -> None:
        async with running() as broker:
            await broker.create_topic(TopicSpec(name="t", partitions=1))
            await broker.create_topic(TopicSpec(name="elsewhere", partitions=3))
            await publish(broker, "t", b"a", b"b")
            await kill_all(broker, "t", 2)
            with pytest.raises(UnknownTopic):
                await broker.dead_letters.redrive("t", target="nowhere")
            with pytest.raises(InvalidRequest):
                await broker.dead_letters.redrive("t", target="t.dlq")
            with pytest.raises(InvalidRequest):
                await broker.dead_letters.redrive("t", rate=0)
            places = DeadLetterFilter(places=[(0, 1)])
            await finished(broker, "t", await broker.dead_letters.redrive("t", places, target="elsewhere"))
            assert [value for at in range(3) for value in await values(broker, "elsewhere", at)] == [b"b"]
            await broker.delete_topic("t")
            job = await finished(broker, "t", await broker.dead_letters.redrive("t"))
            assert (job.moved, job.failed) == (0, 1)
            assert job.error is not None
            assert "'t'" in job.error
            assert len(await listed(broker, "t")) == 1, "it is still there"

    run(story())
