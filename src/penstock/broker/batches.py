"""Batches into partitions as their producers made them, for the doors whose clients encode on their own side.

Records are never looked at. Batches of one partition keep their order: once one could not be written, those behind it
are not tried; one that is wrong in itself keeps nobody back. A partition that is led here is appended to at once; for
any other its leader is asked. Everything counts only once it is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Final

from penstock.broker.broker import Broker
from penstock.broker.partition import Appended, Partition
from penstock.broker.publishing import COMMIT_TIMEOUT_MS, check_writable, ensure_topic
from penstock.broker.reach import led_here
from penstock.errors import CorruptRecords, InvalidRecord, InvalidRequest, PenstockError, RequestTimedOut
from penstock.records import accept_batch, peek_transaction

BatchOutcome = Appended | PenstockError
Stampable = bytearray | memoryview

_WRONG: Final = (InvalidRequest, CorruptRecords)  # the batch itself; those behind it need not be


async def append_batches(
    broker: Broker,
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
    await ensure_topic(broker, topic)
    delivery = _Delivery(broker, topic, batches)
    delivery.append_all()
    broker.stats.append_latency.observe(perf_counter() - begun)
    await delivery.wait_committed(timeout_ms)
    broker.stats.produce_latency.observe(perf_counter() - begun)
    return delivery.close()


class _Delivery:
    """One call's batches, and what became of each."""

    def __init__(self, broker: Broker, topic: str, batches: Sequence[tuple[int, Stampable]]) -> None:
        self._broker = broker
        self._topic = topic
        self._batches = batches
        self._outcomes: list[BatchOutcome | None] = [None] * len(batches)
        self._waiting: list[tuple[asyncio.Future[PenstockError | None], list[int]]] = []

    def append_all(self) -> None:
        positions: dict[int, list[int]] = {}
        for position, (index, _) in enumerate(self._batches):
            positions.setdefault(index, []).append(position)
        for index, found in positions.items():
            partition = led_here(self._broker, self._topic, index)
            if partition is None:
                self._waiting.append((asyncio.ensure_future(self._send(index, found)), found))
            else:
                self._append(partition, found)

    def _append(self, partition: Partition, positions: list[int]) -> None:
        broker = self._broker
        is_durable = broker.syncs_before_ack
        next_offset = -1
        for at, position in enumerate(positions):
            batch = memoryview(self._batches[position][1])
            try:
                _refuse_transaction(batch)
                partition.check_in_sync()
                appended = partition.append_from_client(batch, broker.clock.now_ms(), is_durable=is_durable)
            except _WRONG as error:
                self._fail([position], error)
            except PenstockError as error:
                self._fail(positions[at:], error)
                break
            else:
                self._outcomes[position] = appended
                next_offset = max(next_offset, appended.next_offset)  # one that was there before may lie behind
        if next_offset > partition.high_watermark:
            self._await_commit(partition, next_offset, positions)

    def _await_commit(self, partition: Partition, offset: int, positions: list[int]) -> None:
        committed: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if not committed.done():
                committed.set_result(error)

        partition.when_committed(offset, done)
        self._waiting.append((committed, positions))

    async def _send(self, index: int, positions: list[int]) -> PenstockError | None:
        """Have the leader of a partition append them, one after the other."""
        for at, position in enumerate(positions):
            batch = self._batches[position][1]
            try:
                self._broker.metadata.partition(self._topic, index)
                _refuse_transaction(memoryview(batch))
                accept_batch(memoryview(batch))
                self._outcomes[position] = await self._broker.remote.append(
                    self._topic, index, batch, timeout_ms=COMMIT_TIMEOUT_MS
                )
            except _WRONG as error:
                self._fail([position], error)
            except PenstockError as error:
                self._fail(positions[at:], error)
                break
        return None

    async def wait_committed(self, timeout_ms: int) -> None:
        """Wait until what was written is committed; what is not by then has timed out."""
        pending = [future for future, _ in self._waiting if not future.done()]
        if pending:
            await asyncio.wait(pending, timeout=timeout_ms / 1000)
        for future, positions in self._waiting:
            error = future.result() if future.done() else _timed_out(timeout_ms)
            if error is not None:
                future.cancel()
                self._fail([at for at in positions if not isinstance(self._outcomes[at], PenstockError)], error)

    def _fail(self, positions: Sequence[int], error: PenstockError) -> None:
        for position in positions:
            self._outcomes[position] = error
        if positions and self._topic in self._broker.metadata.topics:
            self._broker.stats.topic(self._topic).count_error(error.code)

    def close(self) -> list[BatchOutcome]:
        outcomes = [outcome for outcome in self._outcomes if outcome is not None]
        assert len(outcomes) == len(self._batches), "every batch has an outcome"
        return outcomes


def _refuse_transaction(batch: memoryview) -> None:
    """What is in a transaction needs its coordinator's word first, which this way in does not ask for."""
    if peek_transaction(batch) is not None:
        raise InvalidRecord(
            "Batches of transactions are not taken here. Publish into a joint transaction with Penstock-Transaction, "
            "or use Kafka's protocol."
        )


def _timed_out(timeout_ms: int) -> RequestTimedOut:
    return RequestTimedOut(
        f"The batch was not committed within {timeout_ms} ms. It may still be; sending it again is safe if it has "
        "sequence numbers, and may make it appear twice if not."
    )
