"""A queue with the least around it: what it decides is written as bytes, read back and applied."""

from __future__ import annotations

from typing import Any

from penstock.consensus.queue_config import QueueSettings
from penstock.features.queues.core.messages import (
    AckDeliveries,
    BeginQueue,
    ExtendLeases,
    GrantedLease,
    GrantLease,
    NackDeliveries,
    Receipt,
    ReceiptOutcome,
    RejectDeliveries,
)
from penstock.features.queues.core.queue import Queue
from penstock.features.queues.core.records import QueueChange, from_record, to_record
from penstock.machines.messages import Request
from penstock.records import Record

SECRET = bytes(range(16))
START_MS = 1_000_000


class Desk:
    """Somebody who performs what the queue decides, over a log of ``end`` messages; ``keys`` for key order."""

    def __init__(self, end: int = 100, keys: list[int | None] | None = None, start: int = 0, **limits: Any) -> None:
        self.settings = QueueSettings(**limits)
        self.end = end
        self.keys = keys
        self.now_ms = START_MS
        self.log: list[Record] = []
        self.queue = Queue("group", "orders", 0, self.settings)
        self.ask(BeginQueue(start, SECRET))

    def ask(self, request: Request[Any]) -> Any:
        answers: list[Any] = []
        outcome = self.queue.handle(request, self.now_ms, answers.append)
        self.write(outcome.changes)
        for reply, what in outcome.replies:
            reply(what)
        return answers[0]

    def write(self, changes: list[QueueChange]) -> None:
        for change in changes:
            self.log.append(to_record(change, len(self.log), self.now_ms))
            self.queue.apply(from_record(self.log[-1]), self.now_ms, self.now_ms)

    def wait(self, by_ms: int) -> None:
        """Let time pass, and have the queue see it."""
        self.now_ms += by_ms
        while changes := self.queue.tick(self.now_ms).changes:
            self.write(changes)

    def receive(self, limit: int = 1, consumer: str = "ann", timeout_ms: int | None = None) -> list[Receipt]:
        while (wanted := self.queue.unseen(limit, self.end)) is not None:
            assert self.keys is not None, "a queue without order asks for no keys"
            self.queue.see(wanted.first, self.keys[wanted.first : wanted.last + 1])
        offered = self.queue.offer(consumer, limit, self.end, self.now_ms)
        granted: GrantedLease = self.ask(
            GrantLease(consumer=consumer, offered=offered, visibility_timeout_ms=timeout_ms)
        )
        return [Receipt("orders", 0, *each, granted.nonce) for each in granted.deliveries]

    def ack(self, *receipts: Receipt) -> list[ReceiptOutcome]:
        return self.fates(AckDeliveries(receipts))

    def nack(self, *receipts: Receipt, delay_ms: int | None = None) -> list[ReceiptOutcome]:
        return self.fates(NackDeliveries(receipts, delay_ms))

    def reject(self, *receipts: Receipt, reason: str = "bad") -> list[ReceiptOutcome]:
        return self.fates(RejectDeliveries(receipts, reason))

    def extend(self, *receipts: Receipt, timeout_ms: int | None = None) -> list[ReceiptOutcome]:
        return self.fates(ExtendLeases(receipts, timeout_ms))

    def fates(self, request: Request[Any]) -> list[ReceiptOutcome]:
        """What became of receipts, each of which has a single fate."""
        fates: list[ReceiptOutcome] = []
        for parts in self.ask(request).receipts:
            (part,) = parts
            fates.append(part.fate)
        return fates

    def fail_over(self, clock_ms: int | None = None) -> None:
        """Somebody else leads, who knows nothing but the log."""
        self.queue = Queue("group", "orders", 0, self.settings)
        for record in self.log:
            self.queue.apply(from_record(record), record.timestamp)
        self.now_ms = self.now_ms if clock_ms is None else clock_ms
        self.queue.resume(self.now_ms)


def spans(receipts: list[Receipt]) -> list[tuple[int, int, int]]:
    return [(receipt.first, receipt.last, receipt.delivery_count) for receipt in receipts]
