"""Joint transactions: the leader of a partition of ``__transaction_state`` coordinates those kept there.

They share the topic with transactional ids, and nothing else: ids of the two kinds may be the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID, uuid4

import msgspec

from penstock.config.settings import TransactionSettings
from penstock.consensus.metadata import Topic
from penstock.consensus.records import NO_LEADER
from penstock.errors import (
    CoordinatorLoading,
    LeaderNotAvailable,
    NotCoordinator,
    PeerUnavailable,
    PenstockError,
    RequestTimedOut,
    TransactionEnded,
    TransactionLimitReached,
    TransactionNotFound,
    UnknownTopic,
)
from penstock.features.transactions.joint import records
from penstock.features.transactions.joint.messages import (
    AbortJoint,
    AwaitEnd,
    Begin,
    Begun,
    CommitJoint,
    Enter,
    Entered,
    ExtendJoint,
    JointEnd,
    Open,
    Opened,
    check_writer,
)
from penstock.features.transactions.joint.records import StoredCall, WriterPlace
from penstock.features.transactions.joint.shard import WRITER_EPOCH, JointShard, Turn, turn_of
from penstock.features.transactions.joint.states import JointState
from penstock.features.transactions.joint.transaction import JointTransaction
from penstock.features.transactions.markers import ClusterMarkers
from penstock.features.transactions.records import Reason
from penstock.machines.clocks import PatientClock
from penstock.machines.coordinator import NamedCoordinator
from penstock.machines.journal import PartitionJournal
from penstock.machines.leaders import Leaders, shard_of
from penstock.machines.messages import ProducerIdentity, Rejected
from penstock.machines.shard import resolve
from penstock.model import TRANSACTIONS_TOPIC
from penstock.network.port import Method
from penstock.partitions.partition import Partition
from penstock.partitions.stats import TransactionStats
from penstock.records import decode_records, parse_header
from penstock.supervision import Supervision

_TIMEOUT_SECONDS: Final = 10.0


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Look for records of a producer with the ``count`` sequence numbers from ``base`` on, from an offset on."""

    producer_id: int
    epoch: int
    base: int = 0
    count: int = 0
    start: int = 0


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What is there. Of each record that was found its offset and timestamp, in order; all of these are committed."""

    end_offset: int
    last_sequence: int
    found: tuple[tuple[int, int], ...] = ()


class Inquiry(msgspec.Struct, frozen=True):
    """A search in a partition of another node."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    search: Search


INQUIRE: Final = Method("joint.stored", Inquiry, Holding)


class NumberedSearch:
    """Searches in partitions wherever they are led."""

    def __init__(self, find: Callable[[str, int], Partition], leaders: Leaders) -> None:
        self._find = find
        self._leaders = leaders

    def serve(self) -> None:
        self._leaders.peers.serve(INQUIRE, self._on_inquiry)

    def glance(self, topic: str, index: int, search: Search) -> Holding | None:
        """What can be told at once: where the partition is led here, and no record has to be looked for."""
        assert search.count == 0, "records are not found at a glance"
        if self._leaders.leader_of(topic, index) != self._leaders.node_id:
            return None
        partition = self._find(topic, index)
        partition.check_leader()
        return _glance(partition, search)

    async def search(self, topic: str, index: int, search: Search) -> Holding:
        """Ask the partition's leader, once: the caller can ask again."""
        leaders = self._leaders
        assigned = leaders.metadata.partition(topic, index)
        if assigned.leader == leaders.node_id:
            return await _search(self._find(topic, index), search)
        if assigned.leader == NO_LEADER:
            raise LeaderNotAvailable(f"{topic}-{index} has no leader now. Try again in a moment.")
        topic_id = leaders.metadata.topic(topic).topic_id
        inquiry = Inquiry(topic_id, index, assigned.leader_epoch, search)
        received = await leaders.peers.call(assigned.leader, INQUIRE, inquiry, timeout_s=_TIMEOUT_SECONDS)
        holding: Holding = received.reply
        return holding

    async def _on_inquiry(self, _node_id: int, inquiry: Inquiry, _body: memoryview) -> Holding:
        topic = self._leaders.metadata.topic_by_id(inquiry.topic_id)
        if topic is None:
            raise UnknownTopic("This node does not know the topic, or not yet.")
        partition = self._find(topic.name, inquiry.partition)
        partition.check_leader(inquiry.leader_epoch)
        return await _search(partition, inquiry.search)


async def _search(partition: Partition, search: Search) -> Holding:
    partition.check_leader()
    holding = _glance(partition, search)
    count = min(max(holding.last_sequence + 1 - search.base, 0), search.count)
    if count == 0:
        return holding
    start = max(search.start, partition.log.start_offset)
    found = await asyncio.to_thread(_read, partition, search.producer_id, search.base, count, start)
    if found:
        await _committed(partition, found[-1][0] + 1)
    return msgspec.structs.replace(holding, found=tuple(found))


def _glance(partition: Partition, search: Search) -> Holding:
    last = partition.log.producers.last_sequence_of(search.producer_id, search.epoch)
    return Holding(end_offset=partition.log.end_offset, last_sequence=last)


async def _committed(partition: Partition, offset: int) -> None:
    try:
        error = await asyncio.wait_for(partition.committed(offset), _TIMEOUT_SECONDS / 2)
    except TimeoutError:
        raise RequestTimedOut(
            f"Messages in {partition.id} are written but not committed yet. Repeat the call to hear when they are."
        ) from None
    if error is not None:
        raise error


def _read(partition: Partition, producer_id: int, base: int, count: int, start: int) -> list[tuple[int, int]]:
    """Offset and timestamp of the producer's records with these sequence numbers. Runs in any thread."""
    found: list[tuple[int, int]] = []
    for batch in partition.log.batches(start):
        data = memoryview(batch.read())
        header = parse_header(data)
        if header.producer_id != producer_id or header.is_control:
            continue
        shift = header.base_sequence - header.base_offset
        found += [
            (record.offset, record.timestamp)
            for record in decode_records(data)
            if base <= record.offset + shift < base + count
        ]
        if len(found) >= count:
            break
    return found


_LOADING_POLL_SECONDS: Final = 0.02
_LOADING_POLLS_MAX: Final = 500
_END_PATIENCE_SECONDS: Final = 30.0
_ENTER_SECONDS: Final = 3.0
_NAMES_A_SHARD: Final = 20  # drawn in search of one that belongs to a certain one, if need be


class Lease(NamedTuple):
    """A transaction that is open, and until when, by the wall clock."""

    id: str
    timeout_ms: int
    expires_ms: int


class EnterAcks(msgspec.Struct, frozen=True):
    """A writer is about to ack messages: the partitions that will hold that."""

    transaction: str
    writer: str
    topic_id: UUID
    partitions: tuple[int, ...]


class EnteredAcks(msgspec.Struct, frozen=True):
    """Who the writer is in the logs."""

    producer_id: int
    epoch: int

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)


ENTER_ACKS: Final = Method("joint.enter_acks", EnterAcks, EnteredAcks)


class JointCoordinator(NamedCoordinator[JointShard]):
    """All joint transactions whose partitions this node leads."""

    topic = TRANSACTIONS_TOPIC
    what = "joint transactions"

    def __init__(
        self,
        config: TransactionSettings,
        time: PatientClock,
        stats: TransactionStats,
        markers: ClusterMarkers,
        exists: Callable[[WriterPlace], bool],
        ensure_topic: Callable[[], Awaitable[object]],
        allocate_producer_id: Callable[[], Awaitable[int]],
        new_id: Callable[[], UUID] = uuid4,
        *,
        syncs: bool,
        supervision: Supervision,
    ) -> None:
        super().__init__(markers.leaders, time, supervision)
        self._config = config
        self._stats = stats
        self._markers = markers
        self._exists = exists
        self._ensure_topic = ensure_topic
        self._allocate_producer_id = allocate_producer_id
        self._new_id = new_id
        self._syncs = syncs
        self.holdings = NumberedSearch(markers.local.find, markers.leaders)
        self._turns: dict[tuple[str, str], _Turn] = {}

    def make_shard(self, partition: Partition) -> JointShard:
        return JointShard(
            PartitionJournal(partition, records, syncs=self._syncs),
            self._config,
            self._markers,
            self._exists,
            self._stats,
            self._time.now_ms,
            self._clock.now_ms,
            asyncio.get_running_loop().call_soon,
            epoch=partition.leader_epoch,
        )

    def start(self) -> None:
        super().start()
        self.holdings.serve()
        self._leaders.peers.serve(ENTER_ACKS, self._on_enter_acks)

    # -- looking ------------------------------------------------------------------------------------------------------

    async def loaded(self) -> None:
        """Wait until everything is read from the log, as after a start; the next request hears if it was not."""
        for _ in range(_LOADING_POLLS_MAX):
            if not any(shard.is_loading for shard in self._shards.values()):
                return
            await asyncio.sleep(_LOADING_POLL_SECONDS)

    def find(self, transaction_id: str) -> JointTransaction:
        """The transaction as it is at this moment; `TransactionNotFound` if there is none."""
        found = self.shard(transaction_id).machines.get(transaction_id) if self.shard_count else None
        if found is None:
            raise self._unknown(transaction_id)
        return found

    def _unknown(self, transaction_id: str) -> PenstockError:
        if not self.shard_count and not self._leaders.is_alone:
            return CoordinatorLoading("This node does not know yet who coordinates transactions.")
        return TransactionNotFound(f"There is no transaction {transaction_id!r}, or it ended too long ago.")

    def all_transactions(self) -> list[JointTransaction]:
        """Every joint transaction coordinated here; `CoordinatorLoading` while some are not known yet."""
        return [each for shard in self.loaded_shards() for each in shard.machines.values()]

    def open_count(self) -> int:
        """How many have not ended; `CoordinatorLoading` while some are not known yet."""
        return sum(len(shard.open_ids) for shard in self.loaded_shards())

    def open_series_count(self) -> int:
        """How many of those belong to a series; there is one of each at most."""
        return sum(shard.open_series_count() for shard in self.loaded_shards())

    def expires_ms(self, transaction: JointTransaction) -> int | None:
        """When an open transaction will have been open for too long, by the wall clock."""
        return self._wall_ms(transaction.deadline_ms) if transaction.state is JointState.OPEN else None

    def _wall_ms(self, deadline_ms: float) -> int:
        return self._clock.now_ms() + int(deadline_ms - self._time.now_ms())

    # -- from the beginning to the end --------------------------------------------------------------------------------

    async def open(self, timeout_ms: int) -> Lease:
        """Open a transaction."""
        await self._ensure_topic()
        await self.loaded()
        self._check_room()
        name = self._name(self._shards)
        return self._lease(name, await self.ask(name, Open(timeout_ms, self._clock.now_ms())))

    def _check_room(self) -> None:
        if self.open_count() >= self._config.joint_open_max:
            raise TransactionLimitReached(
                f"{self._config.joint_open_max} joint transactions are open, as many as this node allows. End some."
            )

    def _name(self, shards: Container[int]) -> str:
        """An id that no other has, of a transaction that belongs to one of these shards if any does."""
        count = self.shard_count
        for _ in range(_NAMES_A_SHARD * count):
            name = self._new_id().hex
            if shard_of(name, count) in shards:
                return name
        raise NotCoordinator("This node coordinates no joint transactions now; open it by another node.")

    async def extend(self, transaction_id: str, timeout_ms: int | None = None) -> Lease:
        """Let a transaction's time start anew, or give it another one."""
        await self.loaded()
        self.find(transaction_id)
        return self._lease(transaction_id, await self.ask(transaction_id, ExtendJoint(timeout_ms)))

    def _lease(self, name: str, opened: Opened) -> Lease:
        return Lease(name, opened.timeout_ms, self._wall_ms(opened.deadline_ms))

    async def commit(
        self, transaction_id: str, *, key: str | None = None, writers: tuple[str, ...] | None = None
    ) -> JointEnd:
        """Commit what these writers wrote, None for all, and abort the rest; returns when readers see all of it."""
        began = self._clock.monotonic()
        await self.loaded()
        self.find(transaction_id)
        await self.ask(transaction_id, CommitJoint(key, writers))
        ended = await self._ended(transaction_id)
        self._stats.commit_latency.observe(self._clock.monotonic() - began)
        return ended

    async def abort(self, transaction_id: str, reason: Reason = Reason.CLIENT) -> JointEnd:
        """Abort what everybody wrote; returns when that holds for every partition."""
        await self.loaded()
        self.find(transaction_id)
        await self.ask(transaction_id, AbortJoint(reason))
        return await self._ended(transaction_id)

    async def _ended(self, transaction_id: str) -> JointEnd:
        try:
            return await asyncio.wait_for(self.ask(transaction_id, AwaitEnd()), _END_PATIENCE_SECONDS)
        except TimeoutError:
            raise RequestTimedOut(
                f"The end of transaction {transaction_id} is decided, but some partition has not taken it yet. "
                "Send the same call again to hear when it has."
            ) from None

    # -- series -------------------------------------------------------------------------------------------------------

    async def head_of(self, series: str) -> JointTransaction | None:
        """The last transaction of a series; None if the series never had one, or that was too long ago."""
        if not self.shard_count:
            return None
        await self.await_shard(series)
        await self.settled(series)
        return self.shard(series).head_of(series)

    async def begin(self, series: str, number: int, run: str, timeout_ms: int) -> Lease | None:
        """Open the transaction of a number of a series, or join it; None if that number is committed already.

        Of two runs of a series the one that came last is right: what the other left open is aborted, and it is refused.
        """
        await self._ensure_topic()
        await self.await_shard(series)
        await self.loaded()
        shard = self.shard(series)
        head = shard.head_of(series)
        fresh = ""
        if turn_of(None if head is None else head.stored, number, run) is Turn.OPEN:
            self._check_room()
            fresh = self._name((shard_of(series, self.shard_count),))  # so that one node decides on both, in one log
        future: asyncio.Future[Begun | Rejected] = asyncio.get_running_loop().create_future()
        shard.begin(Begin(series, number, run, timeout_ms), fresh, partial(resolve, future))
        answer = await future
        if isinstance(answer, Rejected):
            raise answer.error
        if answer.transaction is None:
            await self._await_head(series, number)
            return None
        found = self.find(answer.transaction)
        return Lease(found.id, timeout_ms, self._wall_ms(found.deadline_ms))

    async def commit_number(
        self, series: str, number: int, run: str, *, transaction: str | None, writers: tuple[str, ...]
    ) -> bool:
        """Commit a number of a series with what these writers wrote, and abort the rest; False if it was before.

        ``transaction`` is the one that they wrote into, None if no writer wrote anything.
        """
        if transaction is None and not writers:
            lease = await self.begin(series, number, run, self._config.timeout_max_ms)
            transaction = None if lease is None else lease.id
        await self.await_shard(series)
        head = self.shard(series).head_of(series) if self.shard_count else None
        stored = None if head is None else head.stored
        turn = turn_of(stored, number, run)
        if turn is Turn.DONE:
            await self._await_head(series, number)
            return False
        if head is None or turn is Turn.OPEN or head.id != transaction:
            raise TransactionEnded(
                f"Nothing was committed: transaction {transaction} for number {number} of series {series!r} was "
                "aborted before. Write that number again."
            )
        await self.ask(head.id, CommitJoint(None, writers))
        await self._ended(head.id)
        return True

    async def abort_number(self, series: str, number: int, run: str) -> None:
        """Abort what was written for a number of a series, if that is still open."""
        if not self.shard_count:
            return
        await self.await_shard(series)
        head = self.shard(series).head_of(series)
        if head is not None and turn_of(head.stored, number, run) is Turn.JOIN:
            await self.ask(head.id, AbortJoint())
            await self._ended(head.id)

    async def _await_head(self, series: str, number: int) -> None:
        """Return once a number that is decided to be committed is seen by all readers."""
        await self.settled(series)
        head = self.shard(series).head_of(series)
        part = None if head is None or head.stored is None else head.stored.part
        if head is not None and part is not None and part.number == number:
            await self._ended(head.id)

    async def enroll(self, transaction_id: str, writer: str) -> ProducerIdentity:
        """Let a writer in that numbers its batches itself: as whom."""
        check_writer(writer)
        known = self.check_open(transaction_id).writers.get(writer)
        fresh = await self._allocate_producer_id() if known is None else known.producer_id
        request = Enter(writer=writer, fresh_producer_id=fresh, topic="", topic_id="", partitions=frozenset())
        entered = await self.ask(transaction_id, request)
        return ProducerIdentity(entered.writer.producer_id, WRITER_EPOCH)

    # -- writers ------------------------------------------------------------------------------------------------------

    def check_open(self, transaction_id: str) -> JointTransaction:
        """The transaction, if it can be written into at this very moment."""
        found = self.find(transaction_id)
        found.check_open()
        return found

    async def enter(
        self,
        transaction_id: str,
        writer: str,
        topic: Topic,
        partitions: frozenset[int],
        call: StoredCall | None = None,
        *,
        acks: bool = False,
    ) -> Entered:
        """Note durably that a writer is about to write to these partitions."""
        known = self.check_open(transaction_id).writers.get(writer)
        fresh = await self._allocate_producer_id() if known is None else known.producer_id
        request = Enter(
            writer=writer,
            fresh_producer_id=fresh,
            topic=topic.name,
            topic_id=str(topic.topic_id),
            partitions=partitions,
            call=call,
            acks=acks,
        )
        return await self.ask(transaction_id, request)

    async def enter_acks(
        self, transaction_id: str, writer: str, topic: Topic, partitions: frozenset[int]
    ) -> ProducerIdentity:
        """As whom a writer acks in a transaction that any node coordinates; it knows of the partitions then.

        From then on they hear of its end: what arrives there later is fenced by the marker.
        """
        check_writer(writer)
        where = self._leaders.where(TRANSACTIONS_TOPIC, transaction_id)
        if where is None:
            raise self._unknown(transaction_id)
        request = EnterAcks(transaction_id, writer, topic.topic_id, tuple(sorted(partitions)))
        try:
            received = await self._leaders.ask(where, ENTER_ACKS, request, timeout_s=_ENTER_SECONDS)
        except (LeaderNotAvailable, PeerUnavailable) as error:
            raise NotCoordinator(error.message) from error
        entered: ProducerIdentity = received.reply.producer
        return entered

    async def _on_enter_acks(self, _node_id: int, request: EnterAcks, _body: memoryview) -> EnteredAcks:
        # Only what this node knows of: what it does not it would take for deleted when the end comes.
        topic = self._leaders.metadata.topic_by_id(request.topic_id)
        if topic is None or max(request.partitions) >= len(topic.partitions):
            raise CoordinatorLoading("The coordinator of the transaction does not know these partitions yet.")
        await self.await_shard(request.transaction)
        entered = await self.enter(request.transaction, request.writer, topic, frozenset(request.partitions), acks=True)
        return EnteredAcks(entered.writer.producer_id, WRITER_EPOCH)

    @asynccontextmanager
    async def turn(self, transaction_id: str, writer: str) -> AsyncIterator[None]:
        """Let the numbered calls of one writer pass one after the other."""
        at = (transaction_id, writer)
        turn = self._turns.setdefault(at, _Turn())
        turn.wanted_by += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.wanted_by -= 1
            if not turn.wanted_by:
                del self._turns[at]


class _Turn:
    """Whose call it is, and how many wait for theirs or have it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.wanted_by = 0
