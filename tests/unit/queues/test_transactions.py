"""Ack and publish in one transaction: through a real broker, and at the shard that holds what is not decided."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.journal import MemoryJournal
from tests.support.queue_house import QueueHouse, values
from tests.support.virtual_time import run
from tests.unit.queues.desk import SECRET

from penstock.consensus.queue_config import QueueSettings
from penstock.errors import (
    GroupNotFound,
    InvalidRequest,
    PenstockError,
    TransactionEnded,
    TransactionNotFound,
)
from penstock.features.messages.publishing import OutgoingMessage
from penstock.features.queues.core import records
from penstock.features.queues.core.messages import (
    AckDeliveries,
    BeginQueue,
    ExtendLeases,
    GrantLease,
    JudgedReceipts,
    OfferedSpan,
    Receipt,
    ReceiptOutcome,
)
from penstock.features.queues.core.queue import Queue
from penstock.features.queues.core.records import QueueChange
from penstock.features.queues.leases import LeasedRecord
from penstock.features.transactions.joint.publishing import Ticket, publish_into
from penstock.machines.messages import ProducerIdentity, Request
from penstock.machines.shard import TransactionalShard


async def opened(house: QueueHouse, timeout_ms: int = 60_000) -> str:
    return (await house.broker.joint.open(timeout_ms)).id


async def ack_in(
    house: QueueHouse, transaction: str, messages: Sequence[LeasedRecord], writer: str = "main"
) -> list[ReceiptOutcome | PenstockError]:
    receipts = [message.receipt for message in messages]
    verdicts = await house.queues.ack("workers", receipts, transaction=transaction, writer=writer)
    return [verdict.error or verdict.fate for verdict in verdicts]


async def publish_in(house: QueueHouse, ticket: Ticket, *texts: str) -> None:
    messages = [OutgoingMessage(value=text.encode(), partition=0) for text in texts]
    outcomes = await publish_into(house.broker.ports, house.broker.joint, ticket, "results", messages)
    assert not [outcome for outcome in outcomes if isinstance(outcome, PenstockError)]


async def figures(house: QueueHouse) -> tuple[int, int, int]:
    """Committed, in flight, and acked in all."""
    (stats,) = await house.queues.stats("orders", "workers")
    return (
        stats.partitions[0].committed,
        stats.partitions[0].in_flight,
        house.queues.figures.of("orders", "workers").acked,
    )


async def results(house: QueueHouse) -> list[str]:
    return values(await house.take(topic="results", group="readers", visibility_timeout_ms=1))


async def prepare(house: QueueHouse) -> None:
    await house.topic()
    await house.topic("results")
    house.put(*"abcd")


def test_acks_and_messages_are_committed_together() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await prepare(house)
            taken = await house.take(3)
            name = await opened(house)
            assert await ack_in(house, name, taken) == [ReceiptOutcome.DONE] * 3
            await publish_in(house, Ticket(name), "A", "B", "C")
            assert await figures(house) == (0, 3, 0), "nothing is decided"
            assert await results(house) == []
            await house.broker.joint.commit(name)
            assert await figures(house) == (3, 0, 3)
            assert await results(house) == ["A", "B", "C"]
            assert await house.ack(*taken) == [ReceiptOutcome.ALREADY_ACKED] * 3
            assert values(await house.take()) == ["d"]

    run(story)


def test_an_abort_leaves_messages_with_who_has_them() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await prepare(house)
            taken = await house.take(3)
            name = await opened(house)
            await ack_in(house, name, taken)
            await publish_in(house, Ticket(name), "A")
            await house.broker.joint.abort(name)
            assert await results(house) == []
            assert await figures(house) == (0, 3, 0)
            assert values(await house.take()) == ["d"]
            assert await house.ack(*taken) == [ReceiptOutcome.DONE] * 3

    run(story)


def test_a_lease_does_not_end_while_a_transaction_is_open_and_at_once_after_its_abort() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await prepare(house)
            name = await opened(house)
            taken = await house.take(2, visibility_timeout_ms=500)
            assert await ack_in(house, name, taken) == [ReceiptOutcome.DONE] * 2
            await asyncio.sleep(0.7)
            assert values(await house.take()) == ["c", "d"]
            await house.broker.joint.abort(name)
            again = await house.take(wait_ms=5_000)
            assert values(again) == ["a", "b"]
            assert [message.delivery_count for message in again] == [2, 2]
            assert await house.ack(*taken) == [ReceiptOutcome.REDELIVERED] * 2

    run(story)


def test_a_transaction_that_is_open_for_too_long_gives_its_messages_back() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await prepare(house)
            name = await opened(house, timeout_ms=1_000)
            taken = await house.take(4, visibility_timeout_ms=500)
            assert await ack_in(house, name, taken) == [ReceiptOutcome.DONE] * 4
            assert values(await house.take(wait_ms=10_000)) == list("abcd")
            with pytest.raises(TransactionEnded):
                await house.broker.joint.commit(name)

    run(story)


def test_what_is_acked_in_a_transaction_is_nobody_elses() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await prepare(house)
            taken = await house.take(2)
            name, other = await opened(house), await opened(house)
            assert await ack_in(house, name, taken[:1]) == [ReceiptOutcome.DONE]
            assert await ack_in(house, name, taken) == [ReceiptOutcome.DONE] * 2, "again is as good as once"
            assert await ack_in(house, other, taken) == [ReceiptOutcome.IN_TRANSACTION] * 2
            assert await house.ack(*taken) == [ReceiptOutcome.IN_TRANSACTION] * 2
            assert await house.nack(*taken) == [ReceiptOutcome.IN_TRANSACTION] * 2
            receipts = [message.receipt for message in taken]
            assert [each.fate for each in await house.queues.extend("workers", receipts)] == [ReceiptOutcome.DONE] * 2
            await house.broker.joint.abort(other)
            await house.broker.joint.commit(name)
            assert (await figures(house))[0] == 2

    run(story)


def test_only_chosen_writers_acks_count() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await prepare(house)
            mine, yours = await house.take(2), await house.take(2)
            name = await opened(house)
            await ack_in(house, name, mine, "mine")
            await ack_in(house, name, yours, "yours")
            await house.broker.joint.commit(name, writers=("yours",))
            assert await house.ack(*mine, *yours) == [ReceiptOutcome.DONE] * 2 + [ReceiptOutcome.ALREADY_ACKED] * 2

    run(story)


def test_a_writer_that_numbers_its_calls_acks_without_a_number() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await prepare(house)
            taken = await house.take(3)
            name = await opened(house)
            assert await ack_in(house, name, taken[:1]) == [ReceiptOutcome.DONE]
            await publish_in(house, Ticket(name, sequence=0), "A")
            assert await ack_in(house, name, taken[1:]) == [ReceiptOutcome.DONE] * 2
            await publish_in(house, Ticket(name, sequence=1), "B", "C")
            await publish_in(house, Ticket(name, sequence=1), "B", "C")
            await house.broker.joint.commit(name)
            assert await results(house) == ["A", "B", "C"]
            assert (await figures(house))[0] == 3

    run(story)


def test_no_ack_gets_into_a_transaction_that_has_ended() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await prepare(house)
            taken = await house.take(2)
            name = await opened(house)
            await ack_in(house, name, taken[:1])
            producer = house.broker.joint.find(name).writers["main"].producer_id
            await house.broker.joint.commit(name)
            with pytest.raises(TransactionEnded):
                await ack_in(house, name, taken[1:])
            # One that was on its way when the transaction ended is fenced by the marker.
            late = AckDeliveries([_receipt(taken[1])], ProducerIdentity(producer, 0))
            with pytest.raises(PenstockError, match="epoch"):
                await house.queues.coordinator.shard_at(("orders", 0)).request("workers", late)
            with pytest.raises(TransactionNotFound):
                await ack_in(house, "f" * 32, taken)
            with pytest.raises(InvalidRequest):
                await ack_in(house, name, taken, "no such\nwriter")
            assert await figures(house) == (1, 1, 1)

    run(story)


def _receipt(message: LeasedRecord) -> Receipt:
    nonce = message.receipt.rsplit(":", 1)[1]
    return Receipt(message.topic, message.partition, message.offset, message.offset, message.delivery_count, nonce)


def test_receipts_that_are_no_good_take_nothing_into_a_transaction() -> None:
    async def story() -> None:
        async with QueueHouse() as house:
            await prepare(house)
            name = await opened(house)
            with pytest.raises(GroupNotFound):
                await house.queues.ack("workers", [f"orders:0:0:1:1{'0' * 16}"], transaction=name)
            (taken,) = await house.take(1)
            bad = ["nonsense", f"nowhere:0:0:1:1{'0' * 16}", f"orders:0:0:1:1{'0' * 16}"]
            verdicts = await house.queues.ack("workers", bad, transaction=name)
            assert [verdict.fate for verdict in verdicts] == [
                ReceiptOutcome.MALFORMED,
                ReceiptOutcome.FOREIGN,
                ReceiptOutcome.UNKNOWN,
            ]
            await house.broker.joint.commit(name)
            assert await house.ack(taken) == [ReceiptOutcome.DONE]

    run(story)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_crash_loses_nothing_of_an_open_transaction(is_commit: bool, has_snapshot: bool) -> None:
    async def story() -> None:
        first = QueueHouse()
        async with first as house:
            await prepare(house)
            name = await opened(house)
            taken = await house.take(2, visibility_timeout_ms=500)
            assert await ack_in(house, name, taken) == [ReceiptOutcome.DONE] * 2
            await publish_in(house, Ticket(name), "A", "B")
            if has_snapshot:
                shard = house.queues.coordinator.shard_at(("orders", 0))
                await shard.snapshot(shard.machines["workers"])
        async with QueueHouse(first.files) as house:
            await asyncio.sleep(0.6)
            assert values(await house.take()) == ["c", "d"], "what is undecided stays where it is"
            if is_commit:
                await house.broker.joint.commit(name)
                assert await results(house) == ["A", "B"]
                assert await house.take() == []
                assert await house.ack(*taken) == [ReceiptOutcome.ALREADY_ACKED] * 2
            else:
                await house.broker.joint.abort(name)
                assert await results(house) == []
                assert values(await house.take(wait_ms=5_000)) == ["a", "b"]
        async with QueueHouse(first.files) as house:
            assert (await figures(house))[0] == (2 if is_commit else 0), "the log tells how it ended"

    run(story)


def test_a_crash_after_the_decision_ends_in_what_was_decided() -> None:
    async def story() -> None:
        first = QueueHouse()
        async with first as house:
            await prepare(house)
            name = await opened(house)
            await ack_in(house, name, await house.take(4))
            await publish_in(house, Ticket(name), "A")
            # The decision is written, and the node dies before any partition hears of it.
            house.broker.transactions.markers.write = lambda *_: None  # type: ignore[method-assign]
            ending = asyncio.ensure_future(house.broker.joint.commit(name, key="mine"))
            await asyncio.sleep(0.1)
            assert await figures(house) == (0, 4, 0)
            ending.cancel()
        async with QueueHouse(first.files) as house:
            await house.broker.joint.commit(name, key="mine")
            assert (await figures(house))[0] == 4
            assert await results(house) == ["A"]

    run(story)


# -- at the shard ------------------------------------------------------------------------------------------------------


class Queues(TransactionalShard[Queue, QueueChange]):
    def make(self, name: str) -> Queue:
        return Queue(name, "orders", 0, QueueSettings())

    def name_of(self, change: QueueChange) -> str:
        return change.group


class House:
    def __init__(self) -> None:
        self.now_ms = 1_000
        self.journal = MemoryJournal(records)
        self.shard = self.loading()
        self.shard.open(self.shard.read_log())
        for group in ("red", "blue"):
            self.ask(group, BeginQueue(0, SECRET))
        granted = self.ask("red", GrantLease(consumer="ann", offered=[OfferedSpan(0, 9, 1)]))
        self.receipt = Receipt("orders", 0, 0, 9, 1, granted.nonce)

    def loading(self) -> Queues:
        return Queues(self.journal, lambda: self.now_ms, lambda: self.now_ms, lambda _: None)

    def ask(self, group: str, request: Request[Any]) -> Any:
        answers: list[Any] = []
        self.shard.ask(group, request, answers.append)
        return answers[0]

    def ack(self, first: int, last: int, producer_id: int) -> list[ReceiptOutcome]:
        receipt = self.receipt._replace(first=first, last=last)
        judged: JudgedReceipts = self.ask("red", AckDeliveries([receipt], ProducerIdentity(producer_id, 0)))
        return [part.fate for part in judged.receipts[0]]


def test_an_end_that_is_written_while_the_log_is_read_is_not_missed() -> None:
    house = House()
    house.ack(0, 3, 7)
    house.ack(4, 9, 8)
    for has_read_it in (False, True):
        shard = house.loading()
        found = None if has_read_it else shard.read_log()
        if not has_read_it:
            house.journal.end_transaction(7, is_commit=True)
            house.journal.end_transaction(8, is_commit=False)
        shard.end_transaction(7, is_commit=True)
        shard.end_transaction(8, is_commit=False)
        shard.open(found or shard.read_log())
        assert shard.machines["red"].committed == 4
        assert shard.machines["red"].in_flight == 6
        assert 8 not in shard.machines["red"].producers_held()


def test_more_time_for_what_is_in_a_transaction_counts_after_its_abort() -> None:
    house = House()
    assert house.ack(0, 9, 7) == [ReceiptOutcome.DONE]
    house.ask("red", ExtendLeases([house.receipt], 90_000))
    house.now_ms += 60_000
    house.shard.tick()
    house.journal.end_transaction(7, is_commit=False)
    house.shard.end_transaction(7, is_commit=False)
    house.shard.tick()
    queue = house.shard.machines["red"]
    assert queue.in_flight == 10
    house.now_ms += 30_000
    house.shard.tick()
    assert queue.in_flight == 0


def test_transactions_share_a_lease_each_with_its_own_part() -> None:
    house = House()
    assert house.ack(0, 4, 7) == [ReceiptOutcome.DONE]
    assert house.ack(3, 9, 8) == [ReceiptOutcome.IN_TRANSACTION, ReceiptOutcome.DONE]
    house.shard.end_transaction(8, is_commit=True)
    queue = house.shard.machines["red"]
    assert (queue.committed, queue.in_flight) == (0, 5)
    house.shard.end_transaction(7, is_commit=True)
    assert (queue.committed, queue.in_flight, queue.row_count) == (10, 0, 0)
