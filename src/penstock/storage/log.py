"""A partition's log: batches in segments, one writer, many readers.

Threads: one owner thread appends, reads, rolls and trims. `sync` alone may run in another thread, one at a time; it
makes durable whatever was appended before it began. Offsets only grow: ``start_offset`` ≤ ``end_offset``,
``durable_offset`` ≤ ``end_offset``, and everything between start and end can be read, except for damage, which is
reported (`DamagedRecords`) and never passed in silence, and
for what compaction has removed. Files: docs/formats/log-directory.md.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import DamagedRecords, DiskFull, LogFailed, OffsetOutOfRange, StorageError, TooManyOpenFiles
from penstock.records import CONTROL_BIT, BatchHeader, assign
from penstock.storage.aborted import note_marker
from penstock.storage.config import LogConfig
from penstock.storage.files import Files, FileSlice
from penstock.storage.index import OFFSETS_IN_SEGMENT_MAX
from penstock.storage.producers import save_snapshot, snapshot_path
from penstock.storage.ranges import OffsetRange
from penstock.storage.recovery import CONDEMNED, keep_room, recover
from penstock.storage.retention import count_expired, has_expired, is_aged
from penstock.storage.segment import OpenSegments, Segment, index_path, log_path
from penstock.storage.segments import Dated, Segments, TimestampOffset, find_dated, largest_timestamp
from penstock.storage.state_files import forget_cut, load_start, note_failed_sync, save_start
from penstock.storage.swap import Swap

log = logging.getLogger(__name__)

_SNAPSHOTS_KEPT: Final = 2  # a damaged newest one costs a scan, not the table

__all__ = ["Log", "TimestampOffset"]


class PlainSync(NamedTuple):
    """A file to sync, and the offset up to which the log is durable then."""

    descriptor: int
    end_offset: int


class Log:
    """The log in one directory. Open it with `Log.open`."""

    def __init__(self, files: Files, directory: Path, config: LogConfig) -> None:
        self.files = files
        self.directory = directory
        self.config = config
        self.failure: LogFailed | None = None
        self.on_refused: Callable[[Log], None] = lambda _: None  # the disk takes no more; may be told in any thread
        self.is_released = False
        self.lost: tuple[OffsetRange, ...] = ()  # what no replica has any more: readers go past it
        self._condemned: list[tuple[int, Path]] = []  # when to remove which file
        self._pinned_from: int | None = None  # base offset of the first segment under compaction
        self._swaps: list[Swap] = []  # what compaction has left to do to the files
        self._undeleted: list[Segment] = []  # dropped, oldest first; a restart would find their files again
        self._deleting = threading.Lock()
        self.read_anew()

    def read_anew(self) -> None:
        """Take the state from the directory, as after a restart. No `sync` and no compaction may be under way."""
        self.opened = OpenSegments()
        found = recover(self.files, self.directory, self.config, self.opened)
        self._swaps, self._undeleted = [], []
        self.producers = found.producers
        self.epochs = found.epochs
        self.aborted = found.aborted
        self._listed = found.listed
        self.bytes_cut = found.bytes_cut
        self.is_doubtful = found.is_doubtful  # it may lack batches that were there, and the controller does not know
        self._snapshots = found.snapshots
        # Segments that may hold bytes not yet durable or have no index file yet, oldest first.
        self._dirty = found.unindexed
        for segment in [each for each in self._dirty if each.is_sealed]:
            segment.seal()
        start = load_start(self.files, self.directory)
        segments = found.segments
        if not segments or segments[-1].next_offset < start:
            # Deleting records up to the end is durable at once, also where the records themselves were not yet.
            segments.append(self._new_segment(start))
        self._segments = Segments(segments)
        self.start_offset = max(start, segments[0].base_offset)
        self.aborted.drop_below(self.start_offset)
        self.end_offset = self._segments.active.next_offset
        self.durable_offset = self.end_offset  # recovery synced what it scanned
        self._pending_snapshots: dict[int, bytes] = {}  # by the offset they stand for
        self._is_directory_dirty = True

    @classmethod
    def open(cls, files: Files, directory: Path, config: LogConfig) -> Log:
        """Open or create the log in ``directory``, recovering it if it was not closed."""
        files.make_directory(directory)
        return cls(files, directory, config)

    def __repr__(self) -> str:
        return f"<Log {self.directory} {self.start_offset}..{self.end_offset} in {len(self._segments)} segments>"

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._segments.listed()

    @property
    def settled_segments(self) -> list[Segment]:
        """The oldest segments, as far as they are sealed, durable and indexed: nothing of them is written any more."""
        dirty = set(self._dirty)
        return list(takewhile(lambda segment: segment not in dirty, self._segments))

    @property
    def is_sealing(self) -> bool:
        """Whether a full segment waits for a sync to be sealed."""
        return len(self._dirty) > 1

    @property
    def corrupt_bytes(self) -> int:
        return sum(segment.holes.size_bytes for segment in self._segments)

    @property
    def lost_offsets(self) -> int:
        return sum(lost.next - max(lost.first, self.start_offset) for lost in self.lost)

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, batch: memoryview, header: BatchHeader, leader_epoch: int) -> int:
        """Give a batch its offsets, patching it in place, and write it at the end; its base offset."""
        base_offset = self.end_offset
        assign(batch, base_offset, leader_epoch)
        self._write(batch, header, base_offset, leader_epoch)
        return base_offset

    def append_stored(self, batch: memoryview, header: BatchHeader) -> None:
        """Write a batch exactly as a leader stored it. Offsets may leave a gap but never go back."""
        assert header.base_offset >= self.end_offset, "a follower must not overwrite its own log"
        self._write(batch, header, header.base_offset, header.leader_epoch)

    def _write(self, batch: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int) -> None:
        if self.failure is not None:
            raise self.failure
        active = self._segments.active
        next_offset = base_offset + header.last_offset_delta + 1
        try:
            if (
                active.size + len(batch) > self.config.segment_bytes
                or active.index_bytes >= self.config.segment_index_bytes
                or next_offset - active.base_offset > OFFSETS_IN_SEGMENT_MAX
            ):
                self._roll(base_offset)
                active = self._segments.active
            active.append(batch, header, base_offset)
        except DiskFull:
            self.on_refused(self)
            raise
        if leader_epoch > self.epochs.latest:
            self.epochs.begin(leader_epoch, base_offset)
        if header.producer_id >= 0:
            if header.attributes & CONTROL_BIT and not header.is_gap:
                self._end_transaction(batch, header, base_offset)
            else:
                self.producers.note(header, base_offset)
        self.end_offset = next_offset

    def _end_transaction(self, batch: memoryview, header: BatchHeader, base_offset: int) -> None:
        aborted = note_marker(self.producers, batch, header, base_offset)
        if aborted is not None:
            self.aborted.add(aborted)

    def roll(self) -> None:
        """Seal the active segment and begin a new one. The next `sync` makes both facts durable."""
        self._roll(self.end_offset)

    def _roll(self, base_offset: int) -> None:
        sealed = self._segments.active
        if not sealed.size:
            return
        self._is_directory_dirty = True  # first: whatever fails below, the new file's name has to become durable
        self._segments.add(self._new_segment(base_offset))
        sealed.seal()
        self._pending_snapshots[sealed.next_offset] = self.producers.encode(sealed.next_offset)
        for old in list(self._pending_snapshots)[:-_SNAPSHOTS_KEPT]:
            self._pending_snapshots.pop(old, None)

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(
            self.files,
            self.directory,
            base_offset,
            index_interval_bytes=self.config.index_interval_bytes,
            opened=self.opened,
        )
        segment.create(self.config.segment_bytes if self.config.preallocate else 0)
        self._dirty.append(segment)
        return segment

    def sync(self) -> int:
        """Make everything appended so far durable; the offset up to which it is.

        A sync that fails leaves it unknown which bytes are on disk, so the log takes no more writes (`LogFailed`)
        until a restart has recovered it. Where a file could not even be opened (`TooManyOpenFiles`) no sync has failed,
        and it can be tried again. Runs in any thread, one at a time.
        """
        if self.failure is not None:
            raise self.failure
        end = self.end_offset  # before the list: what is written up to here lies in segments listed below
        dirty = list(self._dirty)
        sealed = [segment for segment in dirty if segment.is_sealed]  # now: one sealed later has bytes not synced here
        try:
            for segment in dirty:
                segment.sync()
            if self._is_directory_dirty:
                self._is_directory_dirty = False
                named = self._segments.base_offsets()
                self.files.sync_directory(self.directory)
                self._listed.add(lambda: named & self._segments.base_offsets())
        except TooManyOpenFiles:
            self._is_directory_dirty = True
            raise
        except StorageError as error:
            raise self._fail(error.message) from error
        self.epochs.try_to_save()
        self.durable_offset = end
        if sealed:
            self._finish_sealing(sealed)
        return end

    def begin_sync(self) -> PlainSync | None:
        """What `sync` comes down to, if that is to sync one file; for those who can have it done without a thread."""
        if self.failure is not None or self._is_directory_dirty or len(self._dirty) != 1 or not self.epochs.is_saved:
            return None
        end = self.end_offset  # before the file: what is written up to here lies in it, or the list had grown
        active = self._dirty[0]
        descriptor = -1 if active.is_sealed else active.file.sync_descriptor()
        return None if descriptor < 0 else PlainSync(descriptor, end)

    def finish_sync(self, end_offset: int, error: int) -> None:
        """The file that `begin_sync` gave is synced, or the kernel said why it could not be."""
        if error:
            self._fail(f"{os.strerror(error)}.")
        else:
            self.durable_offset = end_offset

    def _fail(self, why: str) -> LogFailed:
        return self.fail(f"A sync of {self.directory} failed ({why})")

    def fail(self, why: str) -> LogFailed:
        """Take no more writes, because it is not known any more what is on disk."""
        self.failure = LogFailed(
            f"{why} Nothing more is written there until the node is restarted; check the disk first."
        )
        log.error("%s", self.failure.message)
        note_failed_sync(self.files, self.directory)
        self.on_refused(self)
        return self.failure

    def _finish_sealing(self, sealed: list[Segment]) -> None:
        """Write what spares sealed segments a scan. Where that fails they are scanned, or sealed by a later sync."""
        try:
            for segment in sealed:
                self._save_producers(segment.next_offset, self._pending_snapshots.get(segment.next_offset))
                self._pending_snapshots.pop(segment.next_offset, None)
                self.epochs.save()
                self.aborted.save()
                segment.save_index()
                segment.settle()
                self._forget_dirty(segment)
        except StorageError as error:
            log.warning("A sealed segment of %s has no index yet: %s", self.directory, error.message)

    def _save_producers(self, offset: int, snapshot: bytes | None) -> None:
        if snapshot is None:
            return
        save_snapshot(self.files, self.directory, offset, snapshot)
        self._snapshots = sorted({*self._snapshots, offset})
        for old in self._snapshots[:-_SNAPSHOTS_KEPT]:
            self.files.remove(snapshot_path(self.directory, old))
        self._snapshots = self._snapshots[-_SNAPSHOTS_KEPT:]

    def _forget_dirty(self, segment: Segment) -> None:
        try:
            self._dirty.remove(segment)
        except ValueError:
            return  # dropped, or settled by the other thread, in the meantime

    def close(self) -> None:
        """Sync everything and leave what lets the next start skip the scan."""
        if self.failure is not None:
            return
        self.sync()
        try:
            self._save_producers(self.end_offset, self.producers.encode(self.end_offset))
            self.aborted.save()
            self._segments.active.save_index()
        except StorageError as error:
            log.warning("The next start has to scan the last segment of %s: %s", self.directory, error.message)

    def release(self) -> None:
        """Let go of every file at once: nothing is written or read here any more.

        Slices that were handed out keep their files until they are sent. No `sync` and no compaction may be under way.
        """
        self.is_released = True
        self.failure = self.failure or LogFailed(
            f"{self.directory} is not in use here any more. Ask for metadata again."
        )
        for segment in (*self._segments, *self._dirty, *self._undeleted):
            segment.discard()

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, limit_offset: int) -> FileSlice | None:
        """Whole batches from the one that holds ``offset`` on, none at or past ``limit_offset``.

        At least one batch, however large, or None if there is nothing to read yet. ``limit_offset`` must be a batch
        boundary, as the high watermark and the log's end are. What is found ends before damage; a read *at* damage
        raises `DamagedRecords`, unless the range is one of those that are ``lost`` everywhere.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"Offset {offset} is not in {self.directory.parent.name}-{self.directory.name}, which holds "
                f"{self.start_offset} to {self.end_offset}."
            )
        found = self._segments.read(offset, max_bytes, limit_offset, self.end_offset)
        if self.opened.has_damage:
            self._check_stepped_over(offset, found, limit_offset)
        return found

    def _check_stepped_over(self, offset: int, found: FileSlice | None, limit_offset: int) -> None:
        """Refuse to pass damage in silence, unless no replica has what was there."""
        for damage in self._segments.damage_before(offset, found, self.end_offset):
            if damage.first >= limit_offset:
                return
            if not self._is_lost(damage):
                raise self._damaged(damage)

    def _damaged(self, damage: OffsetRange) -> DamagedRecords:
        return DamagedRecords(
            f"Offsets {damage.first} to {damage.next - 1} of {self.directory.parent.name}-{self.directory.name} are "
            "damaged on this node. Try again: a sound replica takes over, or the records are reported as lost.",
            *damage,
        )

    def _is_lost(self, damage: OffsetRange) -> bool:
        return any(lost.first <= damage.first and damage.next <= lost.next for lost in self.lost)

    def damage(self) -> list[OffsetRange]:
        """The offsets whose records are known to be damaged here, whether other replicas have them or not."""
        return list(self._segments.damage(self.end_offset)) if self.opened.has_damage else []

    def lost_at(self, offset: int) -> OffsetRange | None:
        """The range that holds ``offset`` and that no replica has any more."""
        return next((lost for lost in self.lost if offset in lost), None)

    def forget_doubt(self) -> None:
        """The controller knows that this log was cut. Runs in any thread."""
        self.is_doubtful = False
        forget_cut(self.files, self.directory)

    def first_damage(self) -> int | None:
        """The offset from which on records are known to be damaged; None if all that was looked at is good."""
        for segment in self._segments:
            for hole in segment.damage:
                return segment.offset_before(hole.start)
        return None

    def find_dated(self, offset: int, timestamp: int) -> Dated | None:
        """The first batch from an offset on that may hold a record at or after ``timestamp``."""
        return find_dated(self.segments, max(offset, self.start_offset), timestamp)

    def find_time(self, timestamp: int) -> TimestampOffset | None:
        """The first record whose timestamp is at or after ``timestamp``; `DamagedRecords` if damage may hide it."""
        found, dated = None, self.find_dated(self.start_offset, timestamp)
        while dated is not None and (found := dated.find(timestamp)) is None:
            dated = self.find_dated(dated.header.next_offset, timestamp)
        self.check_before(found)
        return found

    def check_before(self, found: TimestampOffset | None) -> None:
        """`DamagedRecords` if damage may hide a record before the one that a search by time found."""
        for damage in self.damage():
            is_before = damage.first < (self.end_offset if found is None else found.offset)
            if is_before and damage.next > self.start_offset and not self._is_lost(damage):
                raise self._damaged(damage)

    @property
    def largest_timestamp(self) -> int:
        """Of all records, as their batches tell it; -1 if there are none."""
        return largest_timestamp(self.segments, self.start_offset)

    def batches(self, offset: int) -> Iterator[FileSlice]:
        """Every batch from the one that holds ``offset`` on, one slice each; stops at damage as `read` does."""
        for batch in self._segments.batches(offset):
            if self.opened.has_damage:
                self._check_stepped_over(offset, batch, self.end_offset)
            yield batch
            offset = batch.next_offset
        if self.opened.has_damage:
            self._check_stepped_over(offset, None, self.end_offset)

    def good_batches(self, offset: int) -> Iterator[FileSlice]:
        """The same past all damage, for what compares or shows copies. No reader may take this for all there is."""
        return self._segments.batches(offset)

    # -- shrinking ----------------------------------------------------------------------------------------------------

    def save_start(self, offset: int) -> None:
        """Note durably where the log is about to begin, so that `trim` need not. Runs in any thread."""
        save_start(self.files, self.directory, offset)

    def trim(self, offset: int, *, is_saved: bool = False) -> list[Segment]:
        """Move the log's start up to ``offset``, durably; the segments that fell out, for `delete_files`."""
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"Cannot delete records before offset {offset}: the log holds {self.start_offset} to {self.end_offset}."
            )
        if offset == self.start_offset:
            return []
        if not is_saved:
            self.save_start(offset)
        self.start_offset = offset
        self.aborted.drop_below(offset)
        if offset == self.end_offset:
            self._roll_if_possible()
        return self._drop(self._segments.count_below(offset))

    def roll_aged(self, now_ms: int) -> None:
        """Seal the active segment if it has been written to for long enough, and forget silent producers."""
        if is_aged(self._segments.active, self.config, now_ms):
            self._roll_if_possible()
        self.producers.expire(now_ms, self.config.producer_expiry_ms)

    def expire(self, now_ms: int, limit_offset: int | None = None) -> list[Segment]:
        """Drop whole segments that retention no longer covers; they are left for `delete_files`.

        None is dropped that reaches past ``limit_offset``, up to which the log is committed.
        """
        self.roll_aged(now_ms)
        active = self._segments.active
        if active.size and has_expired(active, self.config, now_ms):
            self._roll_if_possible()
        count = count_expired(self.segments, self.start_offset, self.config, now_ms)
        if limit_offset is not None:
            count = min(count, self._segments.count_below(limit_offset))
        dropped = self._drop(count)
        self.start_offset = max(self.start_offset, self.segments[0].base_offset)
        self.aborted.drop_below(self.start_offset)
        return dropped

    def _roll_if_possible(self) -> None:
        try:
            self.roll()
        except StorageError as error:
            log.warning("The active segment of %s cannot be sealed yet: %s", self.directory, error.message)

    def _drop(self, count: int) -> list[Segment]:
        held = [swap.base_offset for swap in tuple(self._swaps)]
        if self._pinned_from is not None:
            held.append(self._pinned_from)
        if held:
            count = min(count, self._segments.count_below(min(held)))
        dropped = self._segments.drop(count)
        for segment in dropped:
            self._forget_dirty(segment)
            self.opened.forget(segment)
        return dropped

    @property
    def has_undeleted_files(self) -> bool:
        """Whether files of dropped segments are still there, because the disk refused to delete them."""
        return bool(self._undeleted)

    def delete_files(self, segments: list[Segment], now_ms: int = 0) -> None:
        """Remove the files of dropped segments, oldest first, or put that off for as long as the settings say.

        Runs in any thread; readers keep what they hold. What fails is left for the next call: to go on with younger
        ones would leave a gap for a restart to find.
        """
        with self._deleting:
            self._undeleted += segments
            if self._undeleted:
                # Their successor's name must be durable first: a crash could leave nothing to tell where the log was.
                self.files.sync_directory(self.directory)
                self._listed.discard(0, self._undeleted[-1].base_offset + 1)
            while self._undeleted:
                if self.config.file_delete_delay_ms:
                    self._condemn(self._undeleted[0], now_ms + self.config.file_delete_delay_ms)
                else:
                    self._remove_files(self._undeleted[0])
                self.files.sync_directory(self.directory)  # one by one, so that no crash leaves a gap
                self._undeleted.pop(0)
            self._listed.try_to_save()  # there may be room for it now

    def _condemn(self, segment: Segment, due_ms: int) -> None:
        """Take a segment's file out of the log, and remove it later; the next start removes it in any case."""
        path = log_path(self.directory, segment.base_offset)
        condemned = path.with_name(path.name + CONDEMNED)
        self.files.remove(index_path(self.directory, segment.base_offset))
        if self.files.exists(path):  # a try before this one may have come so far
            self.files.rename(path, condemned)
            self._condemned.append((due_ms, condemned))

    def has_condemned(self, now_ms: int) -> bool:
        """Whether files wait for `remove_condemned` whose time has come."""
        return bool(self._condemned) and self._condemned[0][0] <= now_ms

    def remove_condemned(self, now_ms: int) -> None:
        """Remove the files whose time has come. Runs in any thread."""
        with self._deleting:
            while self.has_condemned(now_ms):
                self.files.remove(self._condemned[0][1])
                del self._condemned[0]

    def _remove_files(self, segment: Segment) -> None:
        self.files.remove(index_path(self.directory, segment.base_offset))
        self.files.sync_directory(self.directory)  # an index that outlives its segment tells that it is missing
        self.files.remove(log_path(self.directory, segment.base_offset))

    def pin(self, base_offset: int | None) -> None:
        """Keep segments from ``base_offset`` on from being dropped while they are rewritten; None ends it."""
        self._pinned_from = base_offset

    def leave_swap(self, swap: Swap) -> None:
        """Keep what is left to do to the files until `settle_swaps` has done it."""
        self._swaps.append(swap)

    @property
    def has_unsettled_swaps(self) -> bool:
        """Whether compaction left something to do. Until it is done its segments are not dropped."""
        return bool(self._swaps)

    def settle_swaps(self) -> None:
        """Finish or undo what compaction left. What the disk refuses is left for the next call. Runs in any thread."""
        while self._swaps:
            swap = self._swaps[0]
            if swap.is_decided:
                self._listed.discard(swap.base_offset + 1, swap.end_offset)
            swap.settle()
            self._swaps.pop(0)

    def replace_segments(self, old: list[Segment], new: list[Segment]) -> None:
        """Put compacted segments where the ones they stand for were."""
        self._segments.replace(old, new)
        for segment in old:
            self.opened.forget(segment)

    def truncate(self, offset: int) -> None:
        """Cut everything from ``offset`` on, as a follower does whose history parted from its leader's.

        The batch that holds ``offset`` goes too. No `sync` and no compaction may be under way. What is left is read
        anew, as after a restart.
        """
        assert self._pinned_from is None, "compaction must be done or abandoned before the log is truncated"
        if offset >= self.end_offset:
            return
        self.settle_swaps()  # first: a restart finishes them, whatever lies in their range by then
        if offset < self.start_offset:
            save_start(self.files, self.directory, offset)
        kept = [segment for segment in self._segments if segment.base_offset <= offset]
        for snapshot in [snapshot for snapshot in self._snapshots if snapshot > offset]:
            self.files.remove(snapshot_path(self.directory, snapshot))
        self._listed.discard(offset + 1)
        for segment in reversed(self.segments[len(kept) :]):
            self._remove_files(segment)
            self.files.sync_directory(self.directory)  # one by one, so that no crash leaves a gap
        if kept:
            self._cut(kept[-1], offset)
        self.read_anew()

    def begin_at(self, offset: int) -> None:
        """Forget everything and go on from ``offset``, as a follower does whose leader has nothing older any more.

        No `sync` and no compaction may be under way.
        """
        assert self._pinned_from is None, "compaction must be done or abandoned before the log begins anew"
        self.settle_swaps()
        assert offset >= self.end_offset, "what the leader still has is never thrown away"
        keep_room(self.files, self.directory)
        save_start(self.files, self.directory, offset)  # first: whatever a crash leaves lies before it, and is not read
        for snapshot in self._snapshots:
            self.files.remove(snapshot_path(self.directory, snapshot))
        self._listed.discard(0)
        for segment in reversed(self.segments):
            self._remove_files(segment)
        self.epochs.cut(0)
        self.epochs.save()
        self.files.sync_directory(self.directory)
        self.read_anew()

    def _cut(self, segment: Segment, offset: int) -> None:
        position = segment.position_to_cut(offset)
        self.files.remove(index_path(self.directory, segment.base_offset))
        self.files.sync_directory(self.directory)
        segment.file.truncate(position)
        segment.sync()
