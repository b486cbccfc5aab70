"""Batches into partitions as their producers made them, for the doors whose clients encode on their own side.

Records are never looked at. Batches of one partition keep their order: once one could not be written, those behind it
are not tried; one that is wrong in itself, or stored already, holds none back. A partition that is led here is
appended to at once; for any other its leader is asked. Everything counts only once it is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Final

from penstock.errors import (
    CorruptRecords,
    DuplicateSequence,
    InvalidRecord,
    InvalidRequest,
    PenstockError,
    ProducerFenced,
    RequestTimedOut,
    TransactionEnded,
    UnknownPartition,
)
from penstock.features.messages.publishing import COMMIT_TIMEOUT_MS, check_writable, ensure_topic
from penstock.features.transactions.joint.coordinator import JointCoordinator
from penstock.features.transactions.joint.messages import check_writer
from penstock.features.transactions.joint.publishing import check_still_open
from penstock.features.transactions.joint.shard import WRITER_EPOCH
from penstock.machines.ports import Ports
from penstock.partitions.partition import Appended, Partition
from penstock.records import accept_batch, peek_transaction

BatchOutcome = Appended | PenstockError
Identity = tuple[int, int]  # producer id and epoch
Stampable = bytearray | memoryview

# The batch itself is wrong, or stored already: those behind it need not be.
_ITS_OWN: Final = (InvalidRequest, CorruptRecords, DuplicateSequence)


async def append_batches(
    ports: Ports,
    topic: str,
    batches: Sequence[tuple[int, Stampable]],
    *,
    timeout_ms: int = COMMIT_TIMEOUT_MS,
) -> list[BatchOutcome]:
    """Append (partition, batch) pairs and tell of each what became of it; raises only where the topic is the problem.

    The batches are stamped in place. Cancelling gives up the wait, not the batches.
    """
    check_writable(topic)
    begun = perf_counter()
    await ensure_topic(ports, topic)
    return await _deliver(ports, _Delivery(ports, topic, batches), begun, timeout_ms)


async def append_staged(
    ports: Ports,
    joint: JointCoordinator,
    transaction: str,
    writer: str,
    topic: str,
    batches: Sequence[tuple[int, Stampable]],
    *,
    timeout_ms: int = COMMIT_TIMEOUT_MS,
) -> list[BatchOutcome]:
    """The same into a joint transaction, by a writer that was enrolled: batches carry who it is, and are numbered.

    Sending a batch again is safe. No consumer sees it before the transaction is committed.
    """
    check_writable(topic)
    check_writer(writer)
    begun = perf_counter()
    joint.check_open(transaction)  # before a topic is created for nothing
    found = await ensure_topic(ports, topic)
    partitions = frozenset(index for index, _ in batches)
    if partitions and max(partitions) >= len(found.partitions):
        count = len(found.partitions)
        raise UnknownPartition(f"Topic {topic!r} has {count} partitions; there is no partition {max(partitions)}.")
    entered = await joint.enter(transaction, writer, found, partitions)
    identity = (entered.writer.producer_id, WRITER_EPOCH)
    check_still_open(ports, joint, transaction, found)  # and nothing in between
    outcomes = await _deliver(ports, _Delivery(ports, topic, batches, identity), begun, timeout_ms)
    return [_told(transaction, outcome) for outcome in outcomes]


def _told(transaction: str, outcome: BatchOutcome) -> BatchOutcome:
    if isinstance(outcome, ProducerFenced):
        return TransactionEnded(f"Transaction {transaction!r} ended before the batch was written.")
    return outcome


async def _deliver(ports: Ports, delivery: _Delivery, begun: float, timeout_ms: int) -> list[BatchOutcome]:
    delivery.append_all()
    ports.stats.append_latency.observe(perf_counter() - begun)
    await delivery.wait_committed(timeout_ms)
    ports.stats.produce_latency.observe(perf_counter() - begun)
    return delivery.close()


class _Delivery:
    """One call's batches, and what became of each."""

    def __init__(
        self, ports: Ports, topic: str, batches: Sequence[tuple[int, Stampable]], identity: Identity | None = None
    ) -> None:
        """``identity`` is the writer of a transaction whose batches these are, None for those of no transaction."""
        self._ports = ports
        self._topic = topic
        self._batches = batches
        self._identity = identity
        self._outcomes: list[BatchOutcome | None] = [None] * len(batches)
        self._waiting: list[tuple[asyncio.Future[PenstockError | None], list[int]]] = []

    def append_all(self) -> None:
        positions: dict[int, list[int]] = {}
        for position, (index, _) in enumerate(self._batches):
            positions.setdefault(index, []).append(position)
        for index, found in positions.items():
            partition = self._ports.partitions.local(self._topic, index)
            if partition is None:
                self._waiting.append((asyncio.ensure_future(self._send(index, found)), found))
            else:
                self._append(partition, found)

    def _append(self, partition: Partition, positions: list[int]) -> None:
        ports = self._ports
        is_durable = ports.syncs_before_ack
        next_offset = -1
        for at, position in enumerate(positions):
            batch = memoryview(self._batches[position][1])
            try:
                self._check(batch)
                partition.check_in_sync()
                appended = partition.append_from_client(batch, ports.clock.now_ms(), is_durable=is_durable)
            except _ITS_OWN as error:
                self._fail([position], error)
            except PenstockError as error:
                self._fail(positions[at:], error)
                break
            else:
                self._outcomes[position] = appended
                next_offset = max(next_offset, appended.next_offset)  # one that was there before may lie behind
        if next_offset > partition.high_watermark:
            self._await_commit(partition, next_offset, positions)

    def _check(self, batch: memoryview) -> None:
        """What is in a transaction needs its coordinator's word first, which holds for one writer and no other."""
        named = peek_transaction(batch)
        if named == self._identity:
            return
        if self._identity is None:
            raise InvalidRecord(
                "Batches of transactions are not taken here. Publish into a joint transaction with "
                "Penstock-Transaction, or use Kafka's protocol."
            )
        raise InvalidRecord(
            f"A batch for this transaction is transactional, of producer {self._identity[0]} in epoch "
            f"{self._identity[1]}: the writer's own. This one is not."
        )

    def _await_commit(self, partition: Partition, offset: int, positions: list[int]) -> None:
        self._waiting.append((partition.committed(offset), positions))

    async def _send(self, index: int, positions: list[int]) -> PenstockError | None:
        """Have the leader of a partition append them, one after the other."""
        for at, position in enumerate(positions):
            batch = self._batches[position][1]
            try:
                self._ports.metadata.partition(self._topic, index)
                self._check(memoryview(batch))
                accept_batch(memoryview(batch))
                self._outcomes[position] = await self._ports.partitions.append(
                    self._topic, index, batch, timeout_ms=COMMIT_TIMEOUT_MS
                )
            except _ITS_OWN as error:
                self._fail([position], error)
            except PenstockError as error:
                self._fail(positions[at:], error)
                break
        return None

    async def wait_committed(self, timeout_ms: int) -> None:
        """Wait until what was written is committed; what is not by then has timed out."""
        pending = [future for future, _ in self._waiting if not future.done()]
        if len(pending) == 1 and not isinstance(pending[0], asyncio.Task):
            await _in_time(pending[0], timeout_ms)
        elif pending:
            await asyncio.wait(pending, timeout=timeout_ms / 1000)
        for future, positions in self._waiting:
            error = future.result() if future.done() else _timed_out(timeout_ms)
            if error is not None:
                future.cancel()
                self._fail([at for at in positions if not isinstance(self._outcomes[at], PenstockError)], error)

    def _fail(self, positions: Sequence[int], error: PenstockError) -> None:
        for position in positions:
            self._outcomes[position] = error
        if positions and self._topic in self._ports.metadata.topics:
            self._ports.stats.topic(self._topic).count_error(error.code)

    def close(self) -> list[BatchOutcome]:
        outcomes = [outcome for outcome in self._outcomes if outcome is not None]
        assert len(outcomes) == len(self._batches), "every batch has an outcome"
        return outcomes


async def _in_time(committed: asyncio.Future[PenstockError | None], timeout_ms: int) -> None:
    """Wait for one commit, as nearly every call does, without all that waiting for several takes."""

    def expire() -> None:
        if not committed.done():
            committed.set_result(_timed_out(timeout_ms))

    timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, expire)
    try:
        await committed
    finally:
        timer.cancel()


def _timed_out(timeout_ms: int) -> RequestTimedOut:
    return RequestTimedOut(
        f"The batch was not committed within {timeout_ms} ms. It may still be; sending it again is safe if it has "
        "sequence numbers, and may make it appear twice if not."
    )
