"""Queues behind the shard that keeps every other machine: written, applied, and only then told."""

from __future__ import annotations

from typing import Any

from tests.support.journal import MemoryJournal

from penstock.consensus.queue_config import QueueSettings
from penstock.features.queues.core import records
from penstock.features.queues.core.messages import (
    AckDeliveries,
    BeginQueue,
    GrantLease,
    OfferedSpan,
    Receipt,
    ReceiptOutcome,
)
from penstock.features.queues.core.queue import Queue
from penstock.features.queues.core.records import QueueChange
from penstock.machines.messages import Rejected, Request
from penstock.machines.shard import Machine, Shard


class QueueShard(Shard[Queue, QueueChange]):
    def make(self, name: str) -> Queue:
        return Queue(name, "orders", 0, QueueSettings())

    def name_of(self, change: QueueChange) -> str:
        return change.group


class House:
    def __init__(self) -> None:
        self.now_ms = 1_000
        self.journal = MemoryJournal(records)
        self.restart()

    def restart(self) -> None:
        self.shard = QueueShard(self.journal, lambda: self.now_ms, lambda: self.now_ms, lambda _: None)
        self.shard.open(self.shard.read_log())

    def ask(self, group: str, request: Request[Any]) -> list[Any]:
        answers: list[Any] = []
        self.shard.ask(group, request, answers.append)
        return answers


def test_a_queue_is_a_machine_like_any_other() -> None:
    machine: Machine[QueueChange] = Queue("group", "orders", 0, QueueSettings())
    assert machine.is_forgettable


def test_groups_read_the_same_partition_each_for_itself() -> None:
    house = House()
    for group in ("red", "blue"):
        house.ask(group, BeginQueue(0, group.ljust(16).encode()))
    (red,) = house.ask("red", GrantLease(consumer="ann", offered=[OfferedSpan(0, 4, 1)]))
    (blue,) = house.ask("blue", GrantLease(consumer="ann", offered=[OfferedSpan(0, 2, 1)]))
    (judged,) = house.ask("blue", AckDeliveries([Receipt("orders", 0, 0, 2, 1, red.nonce)]))
    assert judged.receipts[0][0].fate is ReceiptOutcome.UNKNOWN, "the receipt is of another group"
    house.ask("red", AckDeliveries([Receipt("orders", 0, 0, 4, 1, red.nonce)]))
    house.restart()
    assert house.shard.machines["red"].committed == 5
    assert house.shard.machines["blue"].committed == 0
    (judged,) = house.ask("blue", AckDeliveries([Receipt("orders", 0, 0, 2, 1, blue.nonce)]))
    assert judged.receipts[0][0].fate is ReceiptOutcome.DONE


def test_nobody_hears_of_an_ack_that_could_be_lost() -> None:
    house = House()
    house.ask("red", BeginQueue(0, bytes(16)))
    (granted,) = house.ask("red", GrantLease(consumer="ann", offered=[OfferedSpan(0, 0, 1)]))
    receipt = Receipt("orders", 0, 0, 0, 1, granted.nonce)
    house.journal.is_slow = True
    answers = house.ask("red", AckDeliveries([receipt]))
    assert answers == []
    house.journal.crash()
    house.restart()
    assert house.shard.machines["red"].in_flight == 1, "the ack was lost with the node, the lease was not"
    house.journal.is_slow = False
    house.journal.is_full = True
    (refused,) = house.ask("red", AckDeliveries([receipt]))
    assert isinstance(refused, Rejected)
    house.journal.is_full = False
    (judged,) = house.ask("red", AckDeliveries([receipt]))
    assert judged.receipts[0][0].fate is ReceiptOutcome.DONE


def test_time_passes_for_queues_when_the_shard_ticks() -> None:
    house = House()
    house.ask("red", BeginQueue(0, bytes(16)))
    house.ask("red", GrantLease(consumer="ann", offered=[OfferedSpan(0, 4, 1)]))
    house.now_ms += 30_000
    house.shard.tick()
    queue = house.shard.machines["red"]
    assert queue.in_flight == 0
    assert queue.offer("ben", 9, 5, house.now_ms) == [OfferedSpan(0, 4, 2)]
