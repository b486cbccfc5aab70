"""One partition on this node: its log, its leadership, and everybody waiting for either to move.

A leader appends; the *stable end* is what it may count on: what is synced, and what was written for producers who asked
for no more than that. The high watermark is the smallest stable end of all replicas in sync; readers see up to there
and ``acks=all`` is answered from there. So a record that was promised to be durable is never shown before it is.

The *last stable offset* is where readers of committed transactions stop: at the high watermark, at the first record of
an open transaction, or of one whose marker is written but not yet below the high watermark, whichever comes first.

Everything runs on the event loop's thread; only syncing happens elsewhere, and reports back through `on_synced`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.broker.stats import TopicStats
from penstock.cluster.topic_config import TopicSettings
from penstock.errors import (
    FencedLeaderEpoch,
    InvalidRecord,
    LogFailed,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    PenstockError,
    PolicyViolation,
    UnknownLeaderEpoch,
)
from penstock.model import TopicPartition, is_internal
from penstock.records import (
    accept_batch,
    decode_records,
    encode_marker,
    parse_header,
    peek_transaction,
    stamp_append_time,
)
from penstock.storage.aborted import AbortedTransaction
from penstock.storage.files import FileSlice
from penstock.storage.log import Log
from penstock.storage.producers import OpenTransaction

Committed = Callable[[PenstockError | None], None]


class Syncer(Protocol):
    """Whoever makes logs durable in the background."""

    def request(self, log: Log) -> None: ...


class Appended(NamedTuple):
    """Where a batch went. ``append_time_ms`` is -1 unless the topic stamps its records."""

    base_offset: int
    next_offset: int
    append_time_ms: int


class _Decided(NamedTuple):
    """A transaction whose marker is written, and may not be committed yet."""

    first_offset: int
    next_offset: int


class Partition:
    """A replica of a partition, leading or not."""

    __slots__ = (
        "_append_waiters",
        "_decided",
        "_stable_end",
        "_syncer",
        "_watchers",
        "high_watermark",
        "id",
        "in_sync_count",
        "is_internal",
        "is_leader",
        "leader_epoch",
        "log",
        "settings",
        "stats",
    )

    def __init__(
        self, name: TopicPartition, log: Log, settings: TopicSettings, stats: TopicStats, syncer: Syncer
    ) -> None:
        self.id = name
        self.is_internal = is_internal(name.topic)
        self.log = log
        self.settings = settings
        self.stats = stats
        self._syncer = syncer
        self.is_leader = False
        self.leader_epoch = -1
        self.in_sync_count = 1
        self._stable_end = log.durable_offset
        self.high_watermark = log.durable_offset
        self._append_waiters: deque[tuple[int, Committed]] = deque()
        self._watchers: set[Callable[[], None]] = set()
        # In the order of their markers, and only those that began before all that were decided after them: so the
        # first one is always the one that began first.
        self._decided: deque[_Decided] = deque()

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "not leader"
        return f"<Partition {self.id} {role} in epoch {self.leader_epoch}, high watermark {self.high_watermark}>"

    # -- leadership ---------------------------------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """Take up leadership in a new epoch."""
        assert epoch > self.leader_epoch, "a leader epoch never comes back"
        self.is_leader = True
        self.leader_epoch = epoch

    def resign(self) -> None:
        """Stop leading. Everyone who waits here is sent to look for the new leader."""
        self.is_leader = False
        self._fail_waiters(NotLeader(f"This node no longer leads {self.id}."))
        self._wake_watchers()

    def check_leader(self, epoch: int = -1) -> None:
        """Refuse unless this node leads, in the epoch that the caller knows (-1 if it does not care)."""
        if not self.is_leader:
            raise NotLeader(f"This node does not lead {self.id}. Ask for metadata to find out who does.")
        if epoch < 0 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"{self.id} is in leader epoch {self.leader_epoch}; you know {epoch}.")
        raise UnknownLeaderEpoch(f"{self.id} is in leader epoch {self.leader_epoch} here; you know {epoch} already.")

    def check_in_sync(self) -> None:
        """Refuse if too few replicas are in sync for ``acks=all``."""
        if self.in_sync_count < self.settings.min_insync_replicas:
            raise NotEnoughReplicas(
                f"{self.id} has {self.in_sync_count} replicas in sync; min.insync.replicas asks for "
                f"{self.settings.min_insync_replicas}."
            )

    # -- appending ----------------------------------------------------------------------------------------------------

    def append(self, batch: memoryview, now_ms: int, *, is_durable: bool, is_internal: bool = False) -> Appended:
        """Check a producer's batch and write it, patching it in place. `when_committed` tells when it is safe.

        ``is_durable`` keeps it unseen until it is synced; otherwise being written is enough. ``is_internal`` says that
        the broker itself made the batch, which then may name a producer without having a sequence number.
        """
        if not self.is_leader:
            self.check_leader()
        settings = self.settings
        if len(batch) > settings.max_message_bytes:
            raise MessageTooLarge(
                f"The batch has {len(batch)} bytes; {self.id.topic!r} takes up to {settings.max_message_bytes} "
                "(max.message.bytes)."
            )
        header = accept_batch(batch, is_internal=is_internal) if is_internal else accept_batch(batch)
        if settings.log.is_compacting and not is_internal:
            _check_keys(batch)
        log = self.log
        if header.producer_id >= 0:
            first = log.producers.check(header)
            if first is not None:
                return Appended(first, first + header.count, -1)
        append_time_ms = -1
        if settings.has_append_time:
            append_time_ms = now_ms
            stamp_append_time(batch, now_ms)
            header = parse_header(batch)
        base_offset = log.append(batch, header, self.leader_epoch)
        stats = self.stats
        stats.messages_produced += header.count
        stats.bytes_produced += len(batch)
        if is_durable:
            self._syncer.request(log)
        else:
            self._stable_end = log.end_offset
            self._advance()
        return Appended(base_offset, log.end_offset, append_time_ms)

    def append_from_client(self, batch: memoryview, now_ms: int, *, is_durable: bool) -> Appended:
        """Append on behalf of a client, who may not write to what the broker keeps its own state in."""
        if self.is_internal:
            raise PolicyViolation(f"{self.id.topic!r} holds the broker's own state; only the broker writes to it.")
        return self.append(batch, now_ms, is_durable=is_durable)

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
            self._decide(_Decided(first_offset, log.end_offset))
        self._settle(is_durable=is_durable)
        return Appended(base_offset, log.end_offset, -1)

    def _decide(self, ended: _Decided) -> None:
        decided = self._decided
        self._forget_committed()
        while decided and decided[-1].first_offset > ended.first_offset:
            decided.pop()  # began later and is committed earlier, so it never is what readers wait for
        decided.append(ended)

    def _forget_committed(self) -> None:
        decided, high_watermark = self._decided, self.high_watermark
        while decided and decided[0].next_offset <= high_watermark:
            decided.popleft()

    @property
    def last_stable_offset(self) -> int:
        """Everything before is decided: committed for certain, or named by `aborted_in`."""
        high_watermark = self.high_watermark
        first_open = self.log.producers.first_open
        if first_open is None and not self._decided:
            return high_watermark
        self._forget_committed()
        unstable = high_watermark if first_open is None else first_open
        if self._decided:
            unstable = min(unstable, self._decided[0].first_offset)
        # Retention may have passed the beginning of an open transaction.
        return min(high_watermark, max(unstable, self.log.start_offset))

    def lacks_transaction(self, batch: memoryview) -> bool:
        """Whether a batch is transactional while its producer has no transaction of that very epoch open here.

        Then its coordinator has to confirm the transaction before the batch may be appended, or one that arrives late
        would open a transaction that nobody ends (KIP-890). Looks at the header only, and judges nothing.
        """
        named = peek_transaction(batch)
        return named is not None and not self.log.producers.has_open(*named)

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

    def _settle(self, *, is_durable: bool) -> None:
        """See to it that what was just written becomes stable: by a sync, or at once."""
        if is_durable:
            self._syncer.request(self.log)
        else:
            self._stable_end = self.log.end_offset
            self._advance()

    def when_committed(self, offset: int, done: Committed) -> None:
        """Call ``done`` once everything before ``offset`` is committed, at once if it is, or with what went wrong."""
        if self.high_watermark >= offset:
            done(None)
        elif self.log.failure is not None:
            done(self.log.failure)
        else:
            self._append_waiters.append((offset, done))

    def on_synced(self) -> None:
        """The log was synced, or failed to be."""
        failure = self.log.failure
        if failure is not None:
            self._fail_waiters(failure)
            return
        if self.log.durable_offset > self._stable_end:
            self._stable_end = self.log.durable_offset
            self._advance()

    def _advance(self) -> None:
        """Move the high watermark. With a single replica in sync its stable end is everybody's."""
        if self._stable_end <= self.high_watermark:
            return
        self.high_watermark = self._stable_end
        waiters = self._append_waiters
        while waiters and waiters[0][0] <= self.high_watermark:
            waiters.popleft()[1](None)
        if self._watchers:
            self._wake_watchers()

    def _fail_waiters(self, error: LogFailed | NotLeader) -> None:
        waiters, self._append_waiters = self._append_waiters, deque()
        for _, done in waiters:
            done(error)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, is_committed_only: bool = False) -> FileSlice | None:
        """Batches below the high watermark from ``offset`` on; None where the reader has seen everything there is.

        ``is_committed_only`` stops at the last stable offset. What was aborted before it is among the batches still.
        """
        limit = self.last_stable_offset if is_committed_only else self.high_watermark
        return self.log.read(offset, max_bytes, limit)

    def watch(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever there may be more to read, until `unwatch`."""
        self._watchers.add(wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._watchers.discard(wake)

    def _wake_watchers(self) -> None:
        for wake in tuple(self._watchers):
            wake()


def _check_keys(batch: memoryview) -> None:
    """Compaction keeps one record a key, so on its topics every record needs one."""
    if any(record.key is None for record in decode_records(batch)):
        raise InvalidRecord("Every record of a compacted topic needs a key; at least one in this batch has none.")
