"""Dead letters in a broker that runs in memory: buried once, listed and grouped, whatever breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.queues.graveyard import (
    finished,
    kill_all,
    listed,
    publish,
    receive,
    records,
    run,
    running,
    until,
    until_count,
    until_none_dies,
    values,
)

from penstock.broker.broker import Broker
from penstock.consensus.controller import TopicSpec
from penstock.errors import DeadLetterNotFound, InvalidRequest, NotCoordinator, UnknownTopic
from penstock.features.dead_letters.writer import ensure_dead_letter_topic
from penstock.features.queues.core.messages import ConfirmDeadLetters, Receipt
from penstock.features.redrives.records import DeadLetterFilter
from penstock.records import HEADER_BYTES, Codec, Record, encode_batch
from penstock.records.header import seal
from penstock.testing.files import MemoryFiles

# -- burials -----------------------------------------------------------------------------------------------------------


def test_a_rejected_message_becomes_a_dead_letter_with_all_it_had_and_where_it_came_from() -> None:
    async def story() -> None:
        async with running() as broker:
            await broker.create_topic(TopicSpec(name="orders", partitions=3))
            fields = {"key": b"k", "headers": (("trace", b"\xff"),), "timestamp_ms": 1_000, "partition": 2}
            await publish(broker, "orders", b"first", b"second", **fields)
            await kill_all(broker, "orders", 2, "no such customer")
            dead = await records(broker, "orders.dlq", 2)
            assert [(each.key, each.value, each.timestamp) for each in dead] == [
                (b"k", b"first", 1_000),
                (b"k", b"second", 1_000),
            ]
            headers = dict(dead[1].headers)
            assert headers.pop("trace") == b"\xff"
            assert int(headers.pop("penstock-dlq-time") or b"") > 1_700_000_000_000
            assert headers == {
                "penstock-dlq-topic": b"orders",
                "penstock-dlq-partition": b"2",
                "penstock-dlq-offset": b"1",
                "penstock-dlq-timestamp": b"1000",
                "penstock-dlq-group": b"g",
                "penstock-dlq-tries": b"1",
                "penstock-dlq-reason": b"no such customer",
            }
            topic = broker.metadata.topic("orders.dlq")
            assert (len(topic.partitions), topic.replication_factor) == (3, 1)
            stats = (await broker.queues.stats("orders", "g"))[0].partitions[2]
            assert (stats.committed, stats.dying) == (2, 0)

    run(story())


def test_a_message_as_large_as_its_topic_takes_becomes_a_dead_letter_whole() -> None:
    async def story() -> None:
        async with running() as broker:
            await broker.create_topic(TopicSpec(name="big", partitions=1, configs={"max.message.bytes": "20000"}))
            await publish(broker, "big", bytes(19_900))
            await kill_all(broker, "big", 1, "x" * 1_000)
            assert await values(broker, "big.dlq") == [bytes(19_900)]

    run(story())


def test_dead_letters_are_as_safe_as_their_messages() -> None:
    async def story() -> None:
        safety = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
        async with running() as broker:
            await broker.create_topic(TopicSpec(name="dear", partitions=1, configs=safety))
            await ensure_dead_letter_topic(broker.ports, "dear", "dear.dlq")
            assert safety.items() <= broker.metadata.topic("dear.dlq").configs.items()

    run(story())


def test_a_dead_letter_topic_that_takes_too_little_is_made_to_take_it() -> None:
    async def story() -> None:
        async with running() as broker:
            configs = {"queue.dead.letter.topic": "graves"}
            await broker.create_topic(TopicSpec(name="big", partitions=1, configs=configs))
            await broker.create_topic(TopicSpec(name="graves", partitions=1, configs={"max.message.bytes": "2000"}))
            noise = bytes(at * at * 31 % 251 for at in range(50_000))
            await publish(broker, "big", b"small", noise, b"last")
            await kill_all(broker, "big", 3)
            assert await values(broker, "graves") == [b"small", noise, b"last"]

    run(story())


@pytest.mark.parametrize("lost", ["the confirmation", "the answer of the append"])
def test_a_dead_letter_is_written_once_even_if_nobody_heard_of_it(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node stops after the append and before the confirmation; whoever leads next finds what is there."""
    files = MemoryFiles()

    async def before_the_crash() -> None:
        async with running(files) as broker:
            await broker.create_topic(TopicSpec(name="t", partitions=1))
            await publish(broker, "t", b"0")
            await kill_all(broker, "t", 1)
            if lost == "the confirmation":
                refuse_confirmations(monkeypatch)
            else:
                lose_answers(broker, monkeypatch)
            await publish(broker, "t", *(b"%d" % at for at in range(1, 6)))
            messages = await receive(broker, "t")
            await broker.queues.reject("g", [message.receipt for message in messages[:3]])
            await until_count(broker, "t.dlq", 4)
            await asyncio.sleep(0.05)
            assert (await broker.queues.stats("t", "g"))[0].partitions[0].dying >= 3, "it is not confirmed"
            await broker.queues.reject("g", [message.receipt for message in messages[3:]])

    async def after_it() -> None:
        async with running(files) as broker:
            await until_none_dies(broker, "t")
            assert await values(broker, "t.dlq") == [b"0", b"1", b"2", b"3", b"4", b"5"]

    ended_s = run(before_the_crash())
    monkeypatch.undo()
    run(after_it(), ended_s)


def refuse_confirmations(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.features.queues.leading.shard import QueueShard

    real = QueueShard.request

    async def request(self: Any, group: str, asked: Any, *more: Any) -> Any:
        if isinstance(asked, ConfirmDeadLetters) and asked.ids:
            raise NotCoordinator("The node is gone.")
        return await real(self, group, asked, *more)

    monkeypatch.setattr(QueueShard, "request", request)


def lose_answers(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    real = broker.partitions.append

    async def append(topic: str, *args: Any, **how: Any) -> Any:
        await real(topic, *args, **how)
        if topic.endswith(".dlq"):
            raise NotCoordinator("The node is gone.")

    monkeypatch.setattr(broker.partitions, "append", append)


@asynccontextmanager
async def held_up(broker: Broker) -> AsyncIterator[None]:
    """No dead letter can be written meanwhile."""
    real = broker.partitions.append

    async def append(topic: str, *args: Any, **how: Any) -> Any:
        raise UnknownTopic("Not now.")

    broker.partitions.append = append  # type: ignore[method-assign]
    yield
    broker.partitions.append = real  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("rejected", "expected"),
    [
        (["2 3 4 5", "6 7 8 9"], [5, 6, 7, 8, 9]),
        (["7", "2", "9", "6", "5 8"], [7, 9, 6, 5, 8]),
        (["9", "4", "3", "6", "2"], [9, 6]),
        (["2 3 4"], []),
    ],
)
def test_a_part_that_was_trimmed_before_it_could_be_written_is_gone_and_the_rest_is_not(
    rejected: list[str], expected: list[int]
) -> None:
    async def story() -> None:
        async with running() as broker:
            await broker.create_topic(TopicSpec(name="t", partitions=1))
            await publish(broker, "t", *(b"%d" % at for at in range(10)))
            await kill_all(broker, "t", 2)
            async with held_up(broker):
                receipts = {message.offset: message.receipt for message in await receive(broker, "t")}
                for turn in rejected:
                    await broker.queues.reject("g", [receipts[int(word)] for word in turn.split()])
                await broker.trim("t", 0, 5)
                await asyncio.sleep(0.05)
            await until_none_dies(broker, "t")
            assert await values(broker, "t.dlq") == [b"0", b"1", *(b"%d" % at for at in expected)]

    run(story())


def test_a_batch_that_nobody_can_unpack_holds_up_no_other_dead_letter() -> None:
    async def story() -> None:
        async with running() as broker:
            await broker.create_topic(TopicSpec(name="t", partitions=1))
            await publish(broker, "t", b"before")
            batch = encode_batch([Record(0, 5, None, bytes(500)), Record(1, 5, None, b"x")], codec=Codec.GZIP)
            batch[HEADER_BYTES] ^= 0xFF
            seal(batch)
            await broker.partitions.append("t", 0, batch, timeout_ms=5_000)
            await publish(broker, "t", b"after")
            leases = await broker.queues.receive("t", "g", consumer="c", max_messages=10)
            spans = [(lease, span) for lease in leases for span in lease.deliveries]
            receipts = [str(Receipt("t", 0, first, last, count, at.nonce)) for at, (first, last, count) in spans]
            await broker.queues.reject("g", receipts, reason="cannot be read")
            await until_none_dies(broker, "t")
            found = await listed(broker, "t")
            assert [(each.origin.offset, each.record.value) for each in found] == [
                (0, b"before"),
                (1, None),
                (2, None),
                (3, b"after"),
            ]
            assert "unpacked" in str(dict(found[1].record.headers)["penstock-dlq-error"])
            job = await finished(broker, "t", await broker.dead_letters.redrive("t"))
            assert (job.moved, job.failed) == (2, 2)

    run(story())


def test_a_group_with_a_dead_letter_topic_of_its_own_is_found_by_its_name() -> None:
    async def story() -> None:
        async with running() as broker:
            await broker.create_topic(TopicSpec(name="t", partitions=1))
            await publish(broker, "t", b"a", b"b")
            await broker.queues.declare("t", "own", settings={"dead.letter.topic": "graves"})
            messages = await receive(broker, "t", "own")
            await broker.queues.reject("own", [message.receipt for message in messages], reason="bad")
            await until(lambda: are_buried(broker))
            await kill_all(broker, "t", 2, group="other")
            assert [each.origin.group for each in await listed(broker, "t")] == ["other"] * 2
            assert [each.origin.group for each in await listed(broker, "t", DeadLetterFilter(group="other"))] == [
                "other"
            ] * 2
            mine = DeadLetterFilter(group="own")
            assert [each.record.value for each in await listed(broker, "t", mine)] == [b"a", b"b"]
            assert [each.messages for each in (await broker.dead_letters.reasons("t", mine)).reasons] == [2]
            assert (await broker.dead_letters.get("t", 0, 1, group="own")).record.value == b"b"
            assert (await broker.dead_letters.rehearse("t", mine)).matched == 2
            job = await broker.dead_letters.redrive("t", mine)
            assert [each.id for each in await broker.dead_letters.redrives("t", group="own")] == [job.id]
            await until(lambda: is_over(broker))
            assert await listed(broker, "t", mine) == []
            assert len(await listed(broker, "t")) == 2, "the other group's stay dead"

    async def are_buried(broker: Broker) -> bool:
        return len(await listed(broker, "t", DeadLetterFilter(group="own"))) == 2

    async def is_over(broker: Broker) -> bool:
        (job,) = await broker.dead_letters.redrives("t", group="own")
        return job.state.is_over and job.moved == 2

    run(story())


def test_dead_letters_have_no_dead_letters_of_their_own() -> None:
    async def story() -> None:
        async with running() as broker:
            await broker.create_topic(TopicSpec(name="t", partitions=1))
            await publish(broker, "t", b"a", b"b")
            await kill_all(broker, "t", 2)
            await broker.queues.declare("t.dlq", "h", settings={"retry.base.ms": "0", "retry.cap.ms": "0"})
            for _ in range(5):  # it is delivered more often than a message of an ordinary queue
                messages = await receive(broker, "t.dlq", "h")
                await broker.queues.nack("h", [message.receipt for message in messages], delay_ms=0)
            messages = await receive(broker, "t.dlq", "h")
            assert {message.delivery_count for message in messages} == {6}
            await broker.queues.reject("h", [message.receipt for message in messages])

            async def is_done() -> bool:
                return (await broker.queues.stats("t.dlq", "h"))[0].partitions[0].committed == 2

            await until(is_done)
            assert "t.dlq.dlq" not in broker.metadata.topics
            assert len(await listed(broker, "t")) == 2, "they are still dead"

    run(story())


# -- looking -----------------------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_page_by_page_and_by_what_they_are() -> None:
    async def story() -> None:
        async with running() as broker:
            await broker.create_topic(TopicSpec(name="t", partitions=2))
            assert (await broker.dead_letters.page("t")).messages == []
            await publish(broker, "t", b"a", b"b", b"c", partition=0, key=b"k")
            await kill_all(broker, "t", 3, "Timeout of the bank")
            await broker.queues.declare("t", "other", start="latest")
            await publish(broker, "t", b"d", b"e", partition=1)
            await kill_all(broker, "t", 2, "no stock", group="other")
            pages, cursor = [], None
            while True:
                page = await broker.dead_letters.page("t", limit=2, cursor=cursor)
                pages.append([each.record.value for each in page.messages])
                cursor = page.cursor
                if cursor is None:
                    break
            assert [value for each in pages for value in each] == [b"a", b"b", b"c", b"d", b"e"]
            assert len(pages[0]) == 2

            async def found(**fields: Any) -> list[bytes | None]:
                return [each.record.value for each in await listed(broker, "t", DeadLetterFilter(**fields))]

            assert await found(group="other") == [b"d", b"e"]
            assert await found(reason="no stock") == [b"d", b"e"]
            assert await found(reason="no") == []
            assert await found(reason_contains="BANK") == [b"a", b"b", b"c"]
            assert await found(key=b"k", first_offset=1, last_offset=1) == [b"b"]
            assert await found(partition=1, first_offset=1) == [b"e"]
            assert await found(until_ms=1_000) == []
            assert len(await found(since_ms=1_000)) == 5
            assert await found(places=[(0, 2), (1, 0)]) == [b"c", b"d"]
            assert len(await listed(broker, "t.dlq")) == 5, "by the name of the topic that they are in"
            told = await broker.dead_letters.reasons("t")
            assert [(each.reason, each.messages) for each in told.reasons] == [
                ("Timeout of the bank", 3),
                ("no stock", 2),
            ]
            assert told.is_complete
            assert told.scanned == told.total == 5
            one = await broker.dead_letters.get("t", 1, 1)
            assert (one.record.value, one.origin.offset, one.message.headers) == (b"e", 1, ())
            with pytest.raises(DeadLetterNotFound):
                await broker.dead_letters.get("t", 1, 2)
            with pytest.raises(DeadLetterNotFound):
                await broker.dead_letters.get("t", 7, 0)
            with pytest.raises(UnknownTopic):
                await broker.dead_letters.page("nothing")
            with pytest.raises(InvalidRequest):
                await broker.dead_letters.page("t", cursor="x:1")

    run(story())
