"""One copy of a partition on this node: its log, what of it is stable and committed, and everybody reading it.

What is *stable* would survive a crash of this node, or was never meant to. The *high watermark* is what is stable on
all replicas in sync; readers see up to there. The *last stable offset* is where readers of committed transactions stop:
at the high watermark, at the first record of an open transaction, or of one whose marker is written but not yet below
the high watermark, whichever comes first.

A copy follows a leader elsewhere: it writes what its leader wrote, as it was stored, and learns the watermark from it.
`penstock.broker.partition` is the copy that may lead. Everything runs on the event loop's thread; only syncing happens
elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol
from uuid import UUID

from penstock.broker.decisions import Decided, Decisions
from penstock.cluster.topic_config import TopicSettings
from penstock.errors import CorruptRecords, NotLeader
from penstock.model import TopicPartition, is_internal
from penstock.records import check_batch, iter_batches
from penstock.storage.aborted import AbortedTransaction
from penstock.storage.files import FileSlice
from penstock.storage.holes import OffsetRange
from penstock.storage.log import Log
from penstock.storage.producers import OpenTransaction

logger = logging.getLogger(__name__)

NO_TOPIC: Final = UUID(int=0)


class Syncer(Protocol):
    """Whoever makes logs durable in the background."""

    def request(self, log: Log) -> None: ...


class Replica:
    """A copy that follows."""

    __slots__ = (
        "_decisions",
        "_promised_end",
        "_stable_end",
        "_syncer",
        "_syncs",
        "_watchers",
        "high_watermark",
        "id",
        "is_held",
        "is_internal",
        "is_leader",
        "leader_epoch",
        "log",
        "on_stable",
        "settings",
        "topic_id",
    )

    def __init__(
        self,
        name: TopicPartition,
        log: Log,
        settings: TopicSettings,
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
        self._syncer = syncer
        self._syncs = syncs  # whether what was copied counts only once it is synced
        self.is_leader = False
        self.is_held = False  # its log is being truncated: nobody may touch it
        self.leader_epoch = -1
        self.on_stable: Callable[[], None] | None = None  # there is more that a crash would leave
        self._promised_end = 0  # what is before has to be synced before anything at all behind it is stable
        self._stable_end = log.durable_offset
        self.high_watermark = log.durable_offset
        self._watchers: dict[Callable[[], None], None] = {}
        self._decisions = Decisions()

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
            self._decisions.add(Decided(stable, end), self.high_watermark)

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
                    self._decisions.add(Decided(first_offset, log.end_offset), self.high_watermark)
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
        """The leader says how far the log is committed. That never becomes less, whoever leads."""
        known = min(high_watermark, self.log.end_offset)
        if known > self.high_watermark and not self.is_leader:
            self.high_watermark = known
            if self._watchers:
                self._wake_watchers()

    def on_truncated(self) -> None:
        """The log was cut back, or begun anew elsewhere."""
        self.high_watermark = min(max(self.high_watermark, self.log.start_offset), self.log.end_offset)
        self._decisions.cut(self.log.end_offset)
        self._restabilise()
        self._wake_watchers()

    # -- stability ----------------------------------------------------------------------------------------------------

    @property
    def stable_end(self) -> int:
        """What is before survives a crash of this node, or was never meant to."""
        return self._stable_end

    def _on_stable(self) -> None:
        if self.on_stable is not None:
            self.on_stable()

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

    # -- transactions -------------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Everything before is decided: committed for certain, or named by `aborted_in`."""
        high_watermark = self.high_watermark
        first_open = self.log.producers.first_open
        if first_open is None and not self._decisions:
            return high_watermark
        unstable = high_watermark if first_open is None else first_open
        first_decided = self._decisions.first_offset(high_watermark)
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
