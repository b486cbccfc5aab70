"""One partition on this node: its log, its leadership, and everybody waiting for either to move.

A leader appends; the *stable end* is what it may count on: what is synced, and what was written for producers who asked
for no more than that, as long as nothing before it waits for a sync. The high watermark is the smallest stable end of
all replicas in sync; readers see up to there and ``acks=all`` is answered from there. So a record that was promised to
be durable is never shown before it is. While a node leads, the watermark never goes back.

A new leader knows the watermark as it was told last, and writes nothing to find out more: until its followers have what
it had when it began, it cannot tell where the log is committed to (KIP-207). What holds of every copy, and how one
follows, is in `penstock.broker.replica`.

Everything runs on the event loop's thread; only syncing happens elsewhere, and reports back through `on_synced`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from penstock.broker.decisions import Decided
from penstock.broker.refusals import Refusals
from penstock.broker.replica import NO_TOPIC, Replica, Syncer
from penstock.broker.replication.followers import NO_LIMIT, Assigned, Followers
from penstock.broker.stats import TopicStats
from penstock.cluster.topic_config import TopicSettings
from penstock.errors import (
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidTimestamp,
    LogFailed,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    PenstockError,
    PolicyViolation,
    StorageError,
    UnknownLeaderEpoch,
)
from penstock.model import TopicPartition
from penstock.records import (
    BatchHeader,
    Codec,
    accept_batch,
    decode_records,
    encode_marker,
    parse_header,
    peek_transaction,
    recompress_batch,
    stamp_append_time,
)
from penstock.records.header import CODEC_MASK, NO_TIMESTAMP
from penstock.storage.config import UNBOUNDED
from penstock.storage.log import Log

Committed = Callable[[PenstockError | None], None]


class Appended(NamedTuple):
    """Where a batch went. ``append_time_ms`` is -1 unless the topic stamps its records."""

    base_offset: int
    next_offset: int
    append_time_ms: int


class Tap(Protocol):
    """A follower's fetch, which hears of everything that is new here."""

    def on_appended(self) -> None: ...
    def on_advanced(self) -> None: ...


# What has to be looked into may decompress to so many times the largest batch that its topic takes.
EXPANSION_MAX: Final = 16


class Partition(Replica):
    """A replica of a partition, leading or not."""

    __slots__ = (
        "_append_waiters",
        "_limit",
        "_taps",
        "_unwritten",
        "epoch_start",
        "followers",
        "in_sync_count",
        "is_isolated",
        "refusals",
        "stats",
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
        super().__init__(name, log, settings, syncer, topic_id=topic_id, syncs=syncs)
        self.stats = stats
        self.is_isolated = False  # the node has lost the quorum, so it may have been replaced long ago
        self.epoch_start = 0  # where the log ended when this node began to lead
        self.in_sync_count = 1
        self.followers: Followers | None = None
        self._limit = NO_LIMIT  # what followers allow the high watermark to be
        self._append_waiters: deque[tuple[int, Committed]] = deque()
        self._taps: tuple[Tap, ...] = ()
        self.refusals = Refusals()  # of batches that may be sent again
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
        self.heed_followers()

    def resign(self) -> None:
        """Stop leading. Everyone who waits here is sent to look for the new leader."""
        self.is_leader = False
        self.followers = None
        self._limit = NO_LIMIT
        self._fail_waiters(NotLeader(f"This node no longer leads {self.id}."))
        self._wake_watchers()
        self._tell_taps()

    @property
    def is_watermark_known(self) -> bool:
        """Whether the high watermark is at least what any leader before may have shown to anybody (KIP-207)."""
        return self.followers is None or self.high_watermark >= self.epoch_start

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
        self, batch: memoryview, now_ms: int, *, is_durable: bool, is_internal: bool = False, is_thinned: bool = False
    ) -> Appended:
        """Check a producer's batch and write it, patching it in place. `when_committed` tells when it is safe.

        ``is_durable`` keeps it unseen until it is synced; otherwise being written is enough. ``is_internal`` says that
        the broker itself made the batch, which then may name a producer without having a sequence number. Such a batch
        is refused like one with ``acks=all`` where too few replicas are in sync: whoever coordinates waits for its
        records to be committed, and is better told at once. ``is_thinned`` says that records were taken out of a batch
        that was accepted before, so that its offsets have gaps.
        """
        if not self.is_leader:
            self.check_leader()
        settings = self.settings
        if len(batch) > settings.max_message_bytes:
            raise self._too_large(batch)
        if is_internal:
            self.check_in_sync()
        header = parse_header(batch) if is_thinned else accept_batch(batch, is_internal=is_internal)
        if not is_internal:
            check_records(batch, header, settings, now_ms)
        log = self.log
        if header.producer_id >= 0:
            try:
                first = log.producers.check(header)
            except OutOfOrderSequence as error:
                raise self._reason_of_gap(header.producer_id, error) from None
            if self.refusals:
                self.refusals.forget(header.producer_id)
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
        if self._taps:
            for tap in self._taps:
                tap.on_appended()
        return Appended(base_offset, log.end_offset, append_time_ms)

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
        return self._unwritten or self.log.failure or self.refusals.behind(producer_id) or error

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
            self._decisions.add(Decided(first_offset, log.end_offset), self.high_watermark)
        if is_durable:
            self._promised_end = log.end_offset
            self._syncer.request(log)
        else:
            self.on_synced()
        for tap in self._taps:
            tap.on_appended()
        return Appended(base_offset, log.end_offset, -1)

    def lacks_transaction(self, batch: memoryview) -> bool:
        """Whether a batch is transactional while its producer has no transaction of that very epoch open here.

        Then its coordinator has to confirm the transaction before the batch may be appended, or one that arrives late
        would open a transaction that nobody ends (KIP-890). Looks at the header only, and judges nothing.
        """
        named = peek_transaction(batch)
        return named is not None and not self.log.producers.has_open(*named)

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

    def on_synced(self) -> None:
        """The log was synced, or failed to be."""
        failure = self.log.failure
        if failure is not None:
            self._fail_waiters(failure)
            if not self.is_leader:
                super()._on_stable()  # whoever copies has to hear of it too
            return
        durable = self.log.durable_offset
        # Whoever wrote behind the last promise asked for nothing but that it is written.
        stable = self.log.end_offset if durable >= self._promised_end else durable
        if stable > self._stable_end:
            self._stable_end = stable
            self._on_stable()

    def _on_stable(self) -> None:
        if self.is_leader:
            self._advance()
        else:
            super()._on_stable()

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
        for tap in self._taps:
            tap.on_advanced()

    def _fail_waiters(self, error: LogFailed | NotLeader) -> None:
        waiters, self._append_waiters = self._append_waiters, deque()
        for _, done in waiters:
            done(error)

    # -- as leader of followers ---------------------------------------------------------------------------------------

    def heed_followers(self) -> None:
        """Move the watermark as far as they allow by now."""
        self._limit = NO_LIMIT if self.followers is None else self.followers.limit
        self._advance()

    def take_followers(self, followers: Followers | None) -> None:
        """A partition that was alone gets other replicas while it is led."""
        self.followers = followers
        self.heed_followers()

    def assign(self, assigned: Assigned, now: float) -> None:
        """Replicas or the in-sync set have changed while this node leads."""
        if self.followers is not None:
            self.followers.assign(assigned, now)
            self.in_sync_count = len(self.followers.in_sync)
            self.heed_followers()

    def configure(self, settings: TopicSettings) -> None:
        """Take over settings of the topic."""
        self.settings = settings
        self.log.config = settings.log
        if self.followers is not None:
            self.followers.require(settings.min_insync_replicas)
            self.heed_followers()

    def on_fetched(self, node_id: int, node_epoch: int, offset: int, stable: int, now: float) -> bool:
        """A follower fetched from ``offset``, so it has what is before; whether the in-sync set may have to change."""
        followers = self.followers
        if followers is None or not followers.report(node_id, node_epoch, offset, stable, self.log.end_offset, now):
            return False
        self.heed_followers()
        return followers.wants_change(self.high_watermark)

    def on_kept(self, node_id: int, node_epoch: int, stable: int, now: float) -> bool:
        """A follower has synced up to ``stable``; whether the in-sync set may have to change."""
        followers = self.followers
        if followers is None or not followers.report_stable(node_id, node_epoch, stable, self.log.end_offset, now):
            return False
        self.heed_followers()
        return followers.wants_change(self.high_watermark)

    def on_refused(self, node_id: int, node_epoch: int) -> bool:
        """A follower cannot write; whether the in-sync set may have to change."""
        followers = self.followers
        if followers is None or not followers.give_up(node_id, node_epoch):
            return False
        self.heed_followers()
        return followers.wants_change(self.high_watermark)

    def tap(self, tap: Tap) -> None:
        """Tell a follower's fetch of everything new from now on."""
        self._taps = (*self._taps, tap)

    def untap(self, tap: Tap) -> None:
        self._taps = tuple(each for each in self._taps if each is not tap)

    def _tell_taps(self) -> None:
        for tap in self._taps:
            tap.on_appended()


def check_records(batch: memoryview, header: BatchHeader, settings: TopicSettings, now_ms: int) -> None:
    """Refuse a batch with records that break the topic's rules, and say which; looks at no record if it has none.

    Compaction keeps one record a key, so on its topics every record needs one.
    """
    needs_keys = settings.log.is_compacting
    earliest_ms = now_ms - settings.timestamp_before_max_ms
    latest_ms = now_ms + settings.timestamp_after_max_ms
    checks_times = not settings.has_append_time and (
        header.max_timestamp > latest_ms or settings.timestamp_before_max_ms != UNBOUNDED
    )
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
