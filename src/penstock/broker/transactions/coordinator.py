"""Transactions as a whole: whoever leads a partition of ``__transaction_state`` coordinates those kept there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.broker.coordination.coordinator import Coordinator
from penstock.broker.coordination.journal import PartitionJournal
from penstock.broker.coordination.messages import AnswerT, ProducerIdentity, Rejected, Request
from penstock.broker.partition import Partition
from penstock.broker.stats import TransactionStats
from penstock.broker.transactions import records
from penstock.broker.transactions.config import TransactionConfig
from penstock.broker.transactions.epochs import is_last
from penstock.broker.transactions.markers import LocalMarkers, OffsetsEnd
from penstock.broker.transactions.messages import AddPartitions, End, Init, Verify, Where
from penstock.broker.transactions.records import NO_PRODUCER
from penstock.broker.transactions.shard import TransactionShard
from penstock.broker.transactions.transaction import Transaction
from penstock.clock import Clock
from penstock.errors import InvalidProducerIdMapping, InvalidRequest, PenstockError
from penstock.model import TRANSACTIONS_TOPIC


class TransactionCoordinator(Coordinator[TransactionShard]):
    """All transactional ids whose partitions this node leads."""

    topic = TRANSACTIONS_TOPIC
    what = "transaction"

    def __init__(
        self,
        config: TransactionConfig,
        clock: Clock,
        stats: TransactionStats,
        find: Callable[[str, int], Partition],
        groups: OffsetsEnd,
        allocate_producer_id: Callable[[], Awaitable[int]],
        *,
        syncs: bool,
    ) -> None:
        super().__init__(clock)
        self._config = config
        self._stats = stats
        self._allocate_producer_id = allocate_producer_id
        self._syncs = syncs
        self.markers = LocalMarkers(find, groups, clock, _later, syncs=syncs)

    def make_shard(self, partition: Partition) -> TransactionShard:
        return TransactionShard(
            PartitionJournal(partition, records, syncs=self._syncs),
            self._config,
            self.markers,
            self._stats,
            self._time.now_ms,
            self._clock.now_ms,
            asyncio.get_running_loop().call_soon,
            epoch=partition.leader_epoch,
        )

    async def ask(self, name: str, request: Request[AnswerT]) -> AnswerT:
        """The answer to a request, as soon as it holds; whoever comes early waits a moment for the log to be read."""
        await self.await_shard(name)
        return await super().ask(name, request)

    async def init(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None = None
    ) -> ProducerIdentity:
        """Start a producer, fencing every other instance of it."""
        if not transactional_id:
            raise InvalidRequest("A transactional id must not be empty.")
        await self.await_shard(transactional_id)
        self.shard(transactional_id)  # whoever asks the wrong node does not cost a producer id
        fresh = await self._allocate_producer_id()
        return await self.ask(transactional_id, Init(timeout_ms=timeout_ms, fresh_producer_id=fresh, expected=expected))

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, *, is_commit: bool, bumps: bool
    ) -> ProducerIdentity:
        """Commit or abort; who the producer is in its next transaction."""
        began = self._clock.monotonic()
        fresh = await self._allocate_producer_id() if bumps and is_last(producer.epoch) else NO_PRODUCER
        request = End(producer=producer, is_commit=is_commit, bumps=bumps, fresh_producer_id=fresh)
        successor = await self.ask(transactional_id, request)
        if is_commit:
            self._stats.commit_latency.observe(self._clock.monotonic() - began)
        return successor

    def admit(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[Where],
        reply: Callable[[frozenset[Where] | Rejected], None],
        *,
        adds: bool,
    ) -> None:
        """Find out whether a producer may write to partitions: those are answered that are not in its transaction.

        If ``adds``, they are taken into it instead. ``reply`` is called in the very turn in which the answer holds:
        what it writes to those partitions is there before the marker of any end that is decided after this.
        """
        request = AddPartitions(producer, partitions) if adds else Verify(producer, partitions)
        try:
            if not self._shard_count():
                raise InvalidProducerIdMapping(f"Nobody has the transactional id {transactional_id!r}.")
            self.shard(transactional_id).ask(transactional_id, request, lambda answer: reply(answer or frozenset()))
        except PenstockError as error:
            reply(Rejected(error))

    def find(self, transactional_id: str) -> Transaction | None:
        """The transactional id as it is at this moment, or None where nobody has it."""
        return self.shard(transactional_id).machines.get(transactional_id)

    def all_transactions(self) -> list[Transaction]:
        """Every transactional id coordinated here; `CoordinatorLoading` while some are not known yet."""
        return [each for shard in self.loaded_shards() for each in shard.machines.values()]


def _later(seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, work)
