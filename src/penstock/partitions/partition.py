"""One replica of a partition on this node: its log, its leadership, and what waits for either to move.

What is *stable* would survive a crash of this node, or was never meant to: what is synced, and what was written for
producers that asked for no more than that, as long as nothing before it waits for a sync. The *high watermark* is the
smallest stable end of all replicas in sync; readers see up to there and ``acks=all`` is answered from there. So a
record that was promised to be durable is never shown before it is. While a node leads, the watermark never goes back.
The *last stable offset* is where readers of committed transactions stop: at the high watermark, at the first record of
an open transaction, or of one whose marker is written but not committed, whichever comes first.

A leader appends. A new leader knows the watermark as it was told last, and writes nothing to find out more: until its
followers have what it had when it began, it cannot tell where the log is committed to (KIP-207). A follower writes what
its leader wrote, as it was stored, and learns the watermark from it.

Everything runs on the event loop's thread; only syncing happens elsewhere, and reports back through `on_synced`.

`UncommittedMarkers`: transactions whose markers are written and may not be committed yet. Readers of committed data
wait for them as they wait for open ones: a marker that is lost again decided nothing.

`RefusedBatches`: producers whose batch was refused for now, so that what they sent behind it gets the same answer. A
producer has several batches on their way. If the first is refused because this node does not lead yet, or because too
few replicas are in sync, and that changes before the second is looked at, the second seems to come out of order. Some
clients then begin a new epoch for all that they have on its way anywhere, and what had arrived is stored twice
(librdkafka). As an answer that says to try again it does no harm: they send both again, in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from penstock.consensus.topic_config import TopicSettings
from penstock.errors import (
    CorruptRecords,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidTimestamp,
    LogFailed,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    OffsetNotAvailable,
    OutOfOrderSequence,
    PenstockError,
    PolicyViolation,
    StorageError,
    UnknownLeaderEpoch,
)
from penstock.model import TopicPartition, is_internal
from penstock.partitions.replication.followers import NO_LIMIT, Followers, ReplicaAssignment
from penstock.partitions.stats import TopicStats
from penstock.records import (
    BatchHeader,
    Codec,
    accept_batch,
    check_batch,
    decode_records,
    encode_marker,
    iter_batches,
    parse_header,
    peek_producer,
    peek_transaction,
    recompress_batch,
    stamp_append_time,
)
from penstock.records.header import CODEC_MASK, NO_TIMESTAMP
from penstock.storage.aborted import AbortedTransaction
from penstock.storage.config import UNBOUNDED
from penstock.storage.files import FileSlice
from penstock.storage.log import Log
from penstock.storage.producers import OpenTransaction
from penstock.storage.ranges import OffsetRange

# As many as a producer has on their way at most, so that a producer that really lost a batch is told.
_BEHIND_MAX: Final = 5
_PRODUCERS_MAX: Final = 1_000


class MarkedTransaction(NamedTuple):
    """A transaction from its first batch to behind its marker."""

    first_offset: int
    next_offset: int


class UncommittedMarkers:
    """In the order of their markers, and only those that began before all that were decided after them.

    So the first one is always the one that began first.
    """

    __slots__ = ("_marked",)

    def __init__(self) -> None:
        self._marked: deque[MarkedTransaction] = deque()

    def __len__(self) -> int:
        return len(self._marked)

    def add(self, ended: MarkedTransaction, high_watermark: int) -> None:
        marked = self._marked
        self.forget(high_watermark)
        while marked and marked[-1].first_offset > ended.first_offset:
            marked.pop()  # began later and is committed earlier, so it never is what readers wait for
        marked.append(ended)

    def forget(self, high_watermark: int) -> None:
        """Let go of those that are committed."""
        marked = self._marked
        while marked and marked[0].next_offset <= high_watermark:
            marked.popleft()

    def first_offset(self, high_watermark: int) -> int | None:
        """Where the first one began whose marker is not committed."""
        self.forget(high_watermark)
        return self._marked[0].first_offset if self._marked else None

    def cut(self, end_offset: int) -> None:
        """The log was truncated. What was decided behind its end is waited for until all that is left is committed."""
        clipped = [MarkedTransaction(ended.first_offset, min(ended.next_offset, end_offset)) for ended in self._marked]
        self._marked = deque(ended for ended in clipped if ended.first_offset < end_offset)


class RefusedBatches:
    """The last refusal of each producer, of one partition."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[int, tuple[PenstockError, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._last)

    def note(self, batch: memoryview, error: PenstockError) -> None:
        """A producer's batch was refused, and may be sent again."""
        producer_id = peek_producer(batch)
        if producer_id < 0:
            return
        if len(self._last) >= _PRODUCERS_MAX:
            self._last.clear()
        self._last[producer_id] = (error, _BEHIND_MAX)

    def behind(self, producer_id: int) -> PenstockError | None:
        """The error for a batch that the one before is missing for, if that one was refused."""
        error, left = self._last.pop(producer_id, (None, 0))
        if error is not None and left > 1:
            self._last[producer_id] = (error, left - 1)
        return error

    def forget(self, producer_id: int) -> None:
        """A batch of the producer was taken."""
        self._last.pop(producer_id, None)


logger = logging.getLogger(__name__)

NO_TOPIC: Final = UUID(int=0)
# A batch that has to be decoded may decompress to so many times the largest batch that its topic takes.
EXPANSION_MAX: Final = 16

Committed = Callable[[PenstockError | None], None]
Batches = Iterable[tuple[str, Iterable[tuple[int, memoryview | None]]]]  # of a request, by topic and partition


class Syncer(Protocol):
    """Makes logs durable in the background."""

    def request(self, log: Log) -> None: ...


class Appended(NamedTuple):
    """Where a batch went. ``append_time_ms`` is -1 unless the topic stamps its records."""

    base_offset: int
    next_offset: int
    append_time_ms: int


class LogListener(Protocol):
    """A follower's fetch, which is told of everything that is new in the log."""

    def on_appended(self) -> None: ...
    def on_advanced(self) -> None: ...


class Partition:
    """A replica of a partition, leading or not."""

    __slots__ = (
        "_append_waiters",
        "_limit",
        "_listeners",
        "_promised_end",
        "_stable_end",
        "_syncer",
        "_syncs",
        "_uncommitted_markers",
        "_unwritten",
        "_watchers",
        "epoch_start",
        "followers",
        "high_watermark",
        "id",
        "in_sync_count",
        "is_held",
        "is_internal",
        "is_isolated",
        "is_leader",
        "leader_epoch",
        "log",
        "on_stable",
        "refused",
        "settings",
        "stats",
        "topic_id",
    )

    def __init__(
        self,
        name: TopicPartition,
        log: Log,
        settings: TopicSettings,
        stats: TopicStats,
        syncer: Syncer,
        *,
        topic_id: UUID = NO_TOPIC,
        syncs: bool = True,
    ) -> None:
        self.id = name
        self.topic_id = topic_id
        self.is_internal = is_internal(name.topic)
        self.log = log
        self.settings = settings
        self.stats = stats
        self._syncer = syncer
        self._syncs = syncs  # whether what was copied counts only once it is synced
        self.is_leader = False
        self.is_held = False  # its log is being truncated and must not be touched
        self.is_isolated = False  # the node has lost the quorum, so it may have been replaced long ago
        self.leader_epoch = -1
        self.epoch_start = 0  # where the log ended when this node began to lead
        self.in_sync_count = 1
        self.followers: Followers | None = None
        self.on_stable: Callable[[], None] | None = None  # there is more that a crash would leave
        self._promised_end = 0  # what is before has to be synced before anything at all behind it is stable
        self._stable_end = log.durable_offset
        self.high_watermark = log.durable_offset
        self._limit = NO_LIMIT  # what followers allow the high watermark to be
        self._append_waiters: deque[tuple[int, Committed]] = deque()
        self._listeners: tuple[LogListener, ...] = ()
        self._watchers: dict[Callable[[], None], None] = {}
        self._uncommitted_markers = UncommittedMarkers()
        self.refused = RefusedBatches()
        self._unwritten: StorageError | None = None  # why the last batch could not be written, if it could not

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "not leader"
        return f"<Partition {self.id} {role} in epoch {self.leader_epoch}, high watermark {self.high_watermark}>"

    # -- leadership ---------------------------------------------------------------------------------------------------

    def lead(self, epoch: int, followers: Followers | None = None) -> None:
        """Take up leadership in a new epoch, which begins at the end of the log."""
        assert epoch > self.leader_epoch, "a leader epoch never comes back"
        self.is_leader = True
        self.leader_epoch = epoch
        self.epoch_start = self.log.end_offset
        self.followers = followers
        self.on_stable = None
        self._restabilise()
        self.apply_followers()

    def resign(self) -> None:
        """Stop leading. Everyone who waits here is sent to look for the new leader."""
        self.is_leader = False
        self.followers = None
        self._limit = NO_LIMIT
        self._fail_waiters(NotLeader(f"This node no longer leads {self.id}."))
        self._wake_watchers()
        self._notify_listeners()

    @property
    def is_watermark_known(self) -> bool:
        """Whether the high watermark is at least what any leader before may have shown to a reader (KIP-207)."""
        return self.followers is None or self.high_watermark >= self.epoch_start

    def check_leader(self, epoch: int = -1) -> None:
        """Refuse unless this node leads, in the epoch that the caller knows (-1 if it does not care)."""
        if not self.is_leader:
            raise NotLeader(f"This node does not lead {self.id}. Ask for metadata to find out who does.")
        if epoch >= 0 and epoch != self.leader_epoch:
            raise self._other_epoch(epoch)

    def check_follower(self, epoch: int, offset: int) -> None:
        """Refuse unless a consumer that knows the leader of ``epoch`` may read from ``offset`` of this follower."""
        if self.is_held:
            raise NotLeader(f"{self.id} is being brought in line with its leader here. Ask the leader.")
        if epoch >= 0 and epoch != self.leader_epoch:
            raise self._other_epoch(epoch)
        if offset > self.log.end_offset:
            raise OffsetNotAvailable(f"This replica of {self.id} has not got as far as offset {offset} yet.")

    def _other_epoch(self, epoch: int) -> FencedLeaderEpoch | UnknownLeaderEpoch:
        known = self.leader_epoch
        if epoch < known:
            return FencedLeaderEpoch(f"{self.id} is in leader epoch {known}; you know {epoch}.")
        return UnknownLeaderEpoch(f"{self.id} is in leader epoch {known} here; you know {epoch} already.")

    def check_in_sync(self) -> None:
        """Refuse if too few replicas are in sync for ``acks=all``, or if that is not known any more."""
        if self.is_isolated:
            raise self._isolated()
        if self.in_sync_count < self.settings.min_insync_replicas:
            raise NotEnoughReplicas(
                f"{self.id} has {self.in_sync_count} replicas in sync; min.insync.replicas asks for "
                f"{self.settings.min_insync_replicas}."
            )

    def _isolated(self) -> NotLeader:
        return NotLeader(
            f"This node has lost the cluster, so another one may lead {self.id} by now. Ask other nodes for metadata."
        )

    def isolate(self) -> bool:
        """The node has lost the cluster: what waits to be committed here is answered now; whether anything did.

        It may be committed yet, if this node turns out to lead still; producers send it again and it is there once.
        """
        self.is_isolated = True
        if not self.is_leader or not self._append_waiters:
            return False
        self._fail_waiters(self._isolated())
        return True

    # -- appending ----------------------------------------------------------------------------------------------------

    def append(
        self,
        batch: memoryview,
        now_ms: int,
        *,
        is_durable: bool,
        is_internal: bool = False,
        is_thinned: bool = False,
        is_checked: bool = False,
    ) -> Appended:
        """Check a producer's batch and write it, patching it in place. `when_committed` tells when it is safe.

        ``is_durable`` keeps it unseen until it is synced; otherwise being written is enough. ``is_internal`` says that
        the broker itself made the batch, which then may name a producer without having a sequence number. Such a batch
        is refused like one with ``acks=all`` where too few replicas are in sync: its coordinator waits for the records
        to be committed, and is better refused at once. ``is_thinned`` says that records were taken out of a batch that
        was accepted before, so that its offsets have gaps. ``is_checked`` says that `check_records` has seen it.
        """
        if not self.is_leader:
            self.check_leader()
        settings = self.settings
        if len(batch) > settings.max_message_bytes:
            raise self._too_large(batch)
        if is_internal:
            self.check_in_sync()
        header = parse_header(batch) if is_thinned else accept_batch(batch, is_internal=is_internal)
        if not is_internal and not is_checked:
            check_records(batch, header, settings, now_ms)
        log = self.log
        if header.producer_id >= 0:
            first = self._stored_before(header)
            if first is not None:
                return Appended(first, first + header.last_offset_delta + 1, -1)
        codec = settings.compression.codec
        if codec is not None and header.attributes & CODEC_MASK != codec and header.count:
            batch, header = self._recompress(batch, codec)
        append_time_ms = -1
        if settings.has_append_time:
            append_time_ms = now_ms
            stamp_append_time(batch, now_ms)
            header = parse_header(batch)
        try:
            base_offset = log.append(batch, header, self.leader_epoch)
        except StorageError as error:
            self._unwritten = error
            raise
        self._unwritten = None
        stats = self.stats
        stats.messages_produced += 0 if header.is_gap else header.count
        stats.bytes_produced += len(batch)
        if is_durable:
            self._promised_end = log.end_offset
            self._syncer.request(log)
        elif log.durable_offset >= self._promised_end:
            self._stable_end = log.end_offset
            self._advance()
        if settings.log.flush_messages != UNBOUNDED or not settings.log.flush_ms:
            self._flush_if_due()
        self._notify_listeners()
        return Appended(base_offset, log.end_offset, append_time_ms)

    def _stored_before(self, header: BatchHeader) -> int | None:
        """Where a producer's batch is, if it was appended before; it is refused if it does not follow the last one."""
        try:
            first = self.log.producers.check(header)
        except OutOfOrderSequence as error:
            raise self._reason_of_gap(header.producer_id, error) from None
        if self.refused:
            self.refused.forget(header.producer_id)
        return first

    def _recompress(self, batch: memoryview, codec: Codec) -> tuple[memoryview, BatchHeader]:
        """The batch as the topic stores it, which may be larger than the topic takes."""
        stored = memoryview(recompress_batch(batch, codec, self.settings.compression.level))
        if len(stored) > self.settings.max_message_bytes:
            raise self._too_large(stored)
        return stored, parse_header(stored)

    def _too_large(self, batch: memoryview) -> MessageTooLarge:
        return MessageTooLarge(
            f"The batch has {len(batch)} bytes; {self.id.topic!r} takes up to {self.settings.max_message_bytes} "
            "(max.message.bytes)."
        )

    def _reason_of_gap(self, producer_id: int, error: OutOfOrderSequence) -> PenstockError:
        """Why a batch does not follow on the last one: what kept the one before it out, if that may pass."""
        return self._unwritten or self.log.failure or self.refused.behind(producer_id) or error

    def append_from_client(
        self, batch: memoryview, now_ms: int, *, is_durable: bool, is_checked: bool = False
    ) -> Appended:
        """Append on behalf of a client, who may not write to what the broker keeps its own state in."""
        if self.is_internal:
            raise PolicyViolation(f"{self.id.topic!r} holds the broker's own state; only the broker writes to it.")
        return self.append(batch, now_ms, is_durable=is_durable, is_checked=is_checked)

    # -- transactions -------------------------------------------------------------------------------------------------

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        coordinator_epoch: int,
        now_ms: int,
        is_durable: bool,
    ) -> Appended:
        """Write the marker that commits or aborts what the producer wrote here since its last one.

        It is written also where nothing is open, because it fences: an epoch above the one known here raises it, and
        the next batch of the producer begins at sequence 0. `ProducerFenced` if a newer epoch is known already.
        """
        self.check_leader()
        self.check_in_sync()
        log = self.log
        log.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        first_offset = log.producers.open.get(producer_id)
        marker = memoryview(
            encode_marker(
                producer_id,
                producer_epoch,
                is_commit=is_commit,
                coordinator_epoch=coordinator_epoch,
                timestamp_ms=now_ms,
            )
        )
        base_offset = log.append(marker, parse_header(marker), self.leader_epoch)
        if first_offset is not None:
            self._uncommitted_markers.add(MarkedTransaction(first_offset, log.end_offset), self.high_watermark)
        if is_durable:
            self._promised_end = log.end_offset
            self._syncer.request(log)
        else:
            self.on_synced()
        for listener in self._listeners:
            listener.on_appended()
        return Appended(base_offset, log.end_offset, -1)

    def lacks_transaction(self, batch: memoryview) -> bool:
        """Whether a batch is transactional while its producer has no transaction of that very epoch open here.

        Then its coordinator has to confirm the transaction before the batch may be appended, or one that arrives late
        would open a transaction that never ends (KIP-890). Looks at the header only, and judges nothing.
        """
        named = peek_transaction(batch)
        return named is not None and not self.log.producers.has_open(*named)

    @property
    def last_stable_offset(self) -> int:
        """Everything before is decided: committed for certain, or named by `aborted_in`."""
        high_watermark = self.high_watermark
        first_open = self.log.producers.first_open
        if first_open is None and not self._uncommitted_markers:
            return high_watermark
        unstable = high_watermark if first_open is None else first_open
        first_decided = self._uncommitted_markers.first_offset(high_watermark)
        if first_decided is not None:
            unstable = min(unstable, first_decided)
        # Retention may have passed the beginning of an open transaction.
        return min(high_watermark, max(unstable, self.log.start_offset))

    def transactions(self) -> list[OpenTransaction]:
        """The open transactions, oldest first."""
        return self.log.producers.transactions()

    def aborted_in(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that a reader of these offsets may meet, by their first offset.

        Damage can leave it unknown where a slice ends (-1); it ends no later than at the last stable offset.
        """
        found = self.log.aborted.between(first_offset, end_offset if end_offset >= 0 else self.last_stable_offset)
        return sorted(found, key=lambda entry: entry.first_offset) if len(found) > 1 else found

    # -- committing ---------------------------------------------------------------------------------------------------

    def when_committed(self, offset: int, done: Committed) -> None:
        """Call ``done`` once everything before ``offset`` is committed, at once if it is, or with what went wrong."""
        if self.high_watermark >= offset:
            done(None)
        elif self.log.failure is not None:
            done(self.log.failure)
        elif not self.is_leader:
            done(NotLeader(f"This node no longer leads {self.id}."))
        elif self.is_isolated and self.followers is not None:
            done(self._isolated())
        else:
            self._append_waiters.append((offset, done))

    def committed(self, offset: int) -> asyncio.Future[PenstockError | None]:
        """Done once everything before ``offset`` is committed, with what went wrong if anything did."""
        future: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if not future.done():
                future.set_result(error)

        self.when_committed(offset, done)
        return future

    def on_synced(self) -> None:
        """The log was synced, or failed to be."""
        failure = self.log.failure
        if failure is not None:
            self._fail_waiters(failure)
            if not self.is_leader:
                self._on_stable()  # the fetcher has to hear of it too
            return
        durable = self.log.durable_offset
        # What was written behind the last promise was promised no more than to be written.
        stable = self.log.end_offset if durable >= self._promised_end else durable
        if stable > self._stable_end:
            self._stable_end = stable
            self._on_stable()

    def _on_stable(self) -> None:
        if self.is_leader:
            self._advance()
        elif self.on_stable is not None:
            self.on_stable()

    def _advance(self) -> None:
        """Move the high watermark, as far as this node and all that are in sync with it allow."""
        stable = self._stable_end
        if stable > self._limit:
            stable = self._limit
        if stable <= self.high_watermark:
            return
        self.high_watermark = stable
        waiters = self._append_waiters
        while waiters and waiters[0][0] <= stable:
            waiters.popleft()[1](None)
        if self._watchers:
            self._wake_watchers()
        for listener in self._listeners:
            listener.on_advanced()

    def _fail_waiters(self, error: LogFailed | NotLeader) -> None:
        waiters, self._append_waiters = self._append_waiters, deque()
        for _, done in waiters:
            done(error)

    # -- what is stable -----------------------------------------------------------------------------------------------

    @property
    def stable_end(self) -> int:
        """What is before survives a crash of this node, or was never meant to."""
        return self._stable_end

    def _restabilise(self) -> None:
        """Find the stable end anew, in a log whose batches were written by another node or in another role."""
        log = self.log
        if self._syncs:
            self._promised_end = log.end_offset
            self._stable_end = min(log.durable_offset, log.end_offset)
            if self._stable_end < log.end_offset and log.failure is None and not self.is_held:
                self._syncer.request(log)
        else:
            self._promised_end = 0
            self._stable_end = log.end_offset

    # -- as leader of followers ---------------------------------------------------------------------------------------

    def apply_followers(self) -> None:
        """Move the watermark as far as they allow by now."""
        self._limit = NO_LIMIT if self.followers is None else self.followers.limit
        self._advance()

    def take_followers(self, followers: Followers | None) -> None:
        """A partition that was alone gets other replicas while it is led."""
        self.followers = followers
        self.apply_followers()

    def assign(self, assigned: ReplicaAssignment, now: float) -> None:
        """Replicas or the in-sync set have changed while this node leads."""
        if self.followers is not None:
            self.followers.assign(assigned, now)
            self.in_sync_count = len(self.followers.in_sync)
            self.apply_followers()

    def configure(self, settings: TopicSettings) -> None:
        """Take over settings of the topic."""
        self.settings = settings
        self.log.config = settings.log
        if self.followers is not None:
            self.followers.require(settings.min_insync_replicas)
            self.apply_followers()

    def on_fetched(self, node_id: int, node_epoch: int, offset: int, stable: int, now: float) -> bool:
        """A follower fetched from ``offset``, so it has what is before; whether the in-sync set may have to change."""
        followers = self.followers
        if followers is None or not followers.report(node_id, node_epoch, offset, stable, self.log.end_offset, now):
            return False
        self.apply_followers()
        return followers.wants_change(self.high_watermark)

    def on_kept(self, node_id: int, node_epoch: int, stable: int, now: float) -> bool:
        """A follower has synced up to ``stable``; whether the in-sync set may have to change."""
        followers = self.followers
        if followers is None or not followers.report_stable(node_id, node_epoch, stable, self.log.end_offset, now):
            return False
        self.apply_followers()
        return followers.wants_change(self.high_watermark)

    def on_refused(self, node_id: int, node_epoch: int) -> bool:
        """A follower cannot write; whether the in-sync set may have to change."""
        followers = self.followers
        if followers is None or not followers.give_up(node_id, node_epoch):
            return False
        self.apply_followers()
        return followers.wants_change(self.high_watermark)

    def listen(self, listener: LogListener) -> None:
        """Notify a follower's fetch of everything new from now on."""
        self._listeners = (*self._listeners, listener)

    def unlisten(self, listener: LogListener) -> None:
        self._listeners = tuple(each for each in self._listeners if each is not listener)

    def _notify_listeners(self) -> None:
        for listener in self._listeners:
            listener.on_appended()

    # -- following ----------------------------------------------------------------------------------------------------

    def follow(self, epoch: int) -> None:
        """Know of a leader elsewhere, or of none; what it wrote comes by `append_stored`."""
        assert not self.is_leader, "who leads has to resign first"
        self.leader_epoch = max(self.leader_epoch, epoch)
        self._restabilise()

    def restore(self, high_watermark: int, last_stable_offset: int) -> None:
        """Take over what was known before a restart, of a log whose end may not be committed.

        Which transactions were decided behind the watermark is not known any more. So until all of the log is
        committed, readers of committed data stop where they had to stop then.
        """
        start, end = self.log.start_offset, self.log.end_offset
        self.high_watermark = min(max(high_watermark, start), end)
        if self.high_watermark < end:
            stable = min(max(last_stable_offset, start), self.high_watermark)
            self._uncommitted_markers.add(MarkedTransaction(stable, end), self.high_watermark)

    def append_stored(self, data: memoryview, leader_epoch: int) -> None:
        """Write whole batches as the leader of that epoch stored them. Where one is bad, those before it are written.

        They must go on where the log ends, except for gaps that compaction left, and be of no later epoch than the
        leader's and of no earlier one than the batch before.
        """
        if self.is_leader or leader_epoch != self.leader_epoch:
            raise NotLeader(f"{self.id} no longer follows the leader of epoch {leader_epoch}.")
        log = self.log
        before = log.end_offset
        try:
            for position, found in iter_batches(data):
                batch = data[position : position + found.size]
                header = check_batch(batch)
                if header.base_offset < log.end_offset or not log.epochs.latest <= header.leader_epoch <= leader_epoch:
                    raise CorruptRecords(
                        f"The leader of {self.id} sent offset {header.base_offset} of epoch {header.leader_epoch} "
                        f"where {log.end_offset} is due, after epoch {log.epochs.latest}."
                    )
                first_offset = log.producers.open.get(header.producer_id) if header.is_control else None
                log.append_stored(batch, header)
                if first_offset is not None:
                    self._uncommitted_markers.add(MarkedTransaction(first_offset, log.end_offset), self.high_watermark)
        finally:
            if log.end_offset > before:
                self._stabilise()

    def _stabilise(self) -> None:
        if self._syncs:
            self._promised_end = self.log.end_offset
            self._syncer.request(self.log)
        else:
            self._stable_end = self.log.end_offset
            self._flush_if_due()
            self._on_stable()

    def _flush_if_due(self) -> None:
        """Have the log synced once so much is not that the topic's settings ask for it."""
        log = self.log
        if log.end_offset - log.durable_offset >= log.config.flush_messages or not log.config.flush_ms:
            self._syncer.request(log)

    def learn(self, high_watermark: int) -> None:
        """The leader says how far the log is committed. That never becomes less, whichever node leads."""
        known = min(high_watermark, self.log.end_offset)
        if known > self.high_watermark and not self.is_leader:
            self.high_watermark = known
            if self._watchers:
                self._wake_watchers()

    def on_truncated(self) -> None:
        """The log was cut back, or begun anew elsewhere."""
        self.high_watermark = min(max(self.high_watermark, self.log.start_offset), self.log.end_offset)
        self._uncommitted_markers.cut(self.log.end_offset)
        self._restabilise()
        self._wake_watchers()

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, is_committed_only: bool = False) -> FileSlice | None:
        """Batches below the high watermark from ``offset`` on; None where the reader has seen everything there is.

        ``is_committed_only`` stops at the last stable offset. What was aborted before it is among the batches still.
        """
        if self.is_held:
            return None
        limit = self.last_stable_offset if is_committed_only else self.high_watermark
        return self.log.read(offset, max_bytes, limit)

    def note_lost(self, lost: tuple[OffsetRange, ...]) -> None:
        """The cluster knows which records no replica has any more. Readers that stand before them may go on."""
        if lost == self.log.lost:
            return
        for first, following in sorted(set(lost) - set(self.log.lost)):
            logger.error(
                "Offsets %d to %d of %s are lost: no replica has these records any more. Readers go past them.",
                first,
                following - 1,
                self.id,
            )
        self.log.lost = lost
        self._wake_watchers()

    def watch(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever there may be more to read, until `unwatch`."""
        self._watchers[wake] = None

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._watchers.pop(wake, None)

    def _wake_watchers(self) -> None:
        for wake in tuple(self._watchers):
            wake()


def check_records(batch: memoryview, header: BatchHeader, settings: TopicSettings, now_ms: int) -> None:
    """Refuse a batch with records that break the topic's rules, and say which; looks at no record if it has none.

    Compaction keeps one record a key, so on its topics every record needs one.
    """
    needs_keys, checks_times = settings.log.is_compacting, _checks_times(header, settings, now_ms)
    earliest_ms = now_ms - settings.timestamp_before_max_ms
    latest_ms = now_ms + settings.timestamp_after_max_ms
    if not needs_keys and not checks_times:
        return
    keyless: list[tuple[int, str]] = []
    untimely: list[tuple[int, str]] = []
    for position, record in enumerate(decode_records(batch, EXPANSION_MAX * settings.max_message_bytes)):
        if needs_keys and record.key is None:
            keyless.append((position, "A record of a compacted topic needs a key."))
        if checks_times and not earliest_ms <= record.timestamp <= latest_ms and record.timestamp != NO_TIMESTAMP:
            untimely.append((position, f"Timestamp {record.timestamp} is not within {earliest_ms} to {latest_ms}."))
    if untimely:
        raise InvalidTimestamp(
            f"{len(untimely)} of the batch's records are too old or too far ahead for this topic "
            "(message.timestamp.before.max.ms, message.timestamp.after.max.ms).",
            untimely,
        )
    if keyless:
        raise InvalidRecord(
            f"Every record of a compacted topic needs a key; {len(keyless)} in this batch have none.", keyless
        )


def looks_at_records(header: BatchHeader, settings: TopicSettings, now_ms: int) -> bool:
    """Whether `check_records` has to decode a batch."""
    return settings.log.is_compacting or _checks_times(header, settings, now_ms)


def _checks_times(header: BatchHeader, settings: TopicSettings, now_ms: int) -> bool:
    if settings.has_append_time:
        return False
    latest_ms = now_ms + settings.timestamp_after_max_ms
    return header.max_timestamp > latest_ms or settings.timestamp_before_max_ms != UNBOUNDED


class LeadershipListener(Protocol):
    """Keeps state beside a partition's log: coordinators, queues."""

    def on_leadership_gained(self, partition: Partition) -> None: ...
    def on_leadership_lost(self, partition: Partition) -> None: ...
