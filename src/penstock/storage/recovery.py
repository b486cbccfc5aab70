"""Bringing a log back from its directory, after a clean stop or a crash at any moment.

An index file is written only once its segment, and all before it, are on disk. So everything up to the last segment
with a valid one is sealed: taken as it is, and looked at when read. Everything behind it, the *tail*, is scanned: good
batches rebuild the index, the producer table and the epochs; a torn end, bytes behind which nothing valid comes, is
cut; damage with valid batches behind it is kept as a hole. Beyond that only what can be derived again is removed.
Where a sync failed before, the batches of the tail are written over themselves before they are synced and believed.
"""

from __future__ import annotations

import logging
import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import StorageError
from penstock.records import BatchHeader
from penstock.storage.aborted import AbortedTransactions, note_marker
from penstock.storage.config import LogConfig
from penstock.storage.epoch_repair import Dates
from penstock.storage.epochs import LeaderEpochs
from penstock.storage.files import Files
from penstock.storage.index import OFFSETS_IN_SEGMENT_MAX, Index, peek_index, state_missing, stated_size
from penstock.storage.producers import ProducerTable, load_snapshot, snapshot_path
from penstock.storage.ranges import Hole
from penstock.storage.scan import FileBytes, scan
from penstock.storage.segment import OpenSegments, Segment, index_path, log_path
from penstock.storage.segment_list import SegmentList
from penstock.storage.state_files import (
    forget_failed_sync,
    is_cut_noted,
    is_failed_sync_noted,
    load_start,
    note_cut,
    note_failed_sync,
)
from penstock.storage.swap import finish_swaps

log = logging.getLogger(__name__)

EPOCHS_FILE: Final = "leader-epochs"
CONDEMNED: Final = ".deleted"  # ends the names of files that left the log and are removed later
# Of no use: half written when the process died, with what they replace still there; or to be removed anyway.
_UNFINISHED: Final = (".tmp", ".cleaned", CONDEMNED)
_ROOM_FILE: Final = "room.tmp"
_NAME: Final = re.compile(r"(\d{20})\.(log|index|producers)")


@dataclass(slots=True)
class Recovered:
    """A log's state as found on disk, and what had to be done to it."""

    segments: list[Segment]
    producers: ProducerTable
    epochs: LeaderEpochs
    aborted: AbortedTransactions
    listed: SegmentList
    snapshots: list[int]
    unindexed: list[Segment]  # sealed or not, they still need an index file
    bytes_scanned: int
    bytes_cut: int
    is_doubtful: bool  # it may lack batches that were there


def recover(files: Files, directory: Path, config: LogConfig, opened: OpenSegments) -> Recovered:
    """Open every segment in a directory, scanning no more than the crash made necessary."""
    listed = SegmentList(files, directory)
    finish_swaps(files, directory, listed)
    return _Recovery(files, directory, config, opened, listed).run()


def keep_room(files: Files, directory: Path) -> None:
    """Keep room for a new segment before the others are removed. Recovery removes first what keeps it."""
    with closing(files.open(directory / _ROOM_FILE, create=True)) as file:
        file.write(b"\0")  # with its name it takes no less than an empty segment


class _Recovery:
    def __init__(
        self, files: Files, directory: Path, config: LogConfig, opened: OpenSegments, listed: SegmentList
    ) -> None:
        self._files = files
        self._directory = directory
        self._config = config
        self._sizes: dict[str, dict[int, int]] = {"log": {}, "index": {}, "producers": {}}
        for entry in files.entries(directory):
            if entry.name.endswith(_UNFINISHED):
                files.remove(directory / entry.name)
            elif match := _NAME.fullmatch(entry.name):
                self._sizes[match[2]][int(match[1])] = entry.size
        self._snapshots = sorted(self._sizes["producers"])
        self._opened = opened
        self._listed = listed
        self._epochs = LeaderEpochs(files, directory / EPOCHS_FILE)
        self._has_epochs = self._epochs.load()
        self._start = load_start(files, directory)
        self._state_missing()
        self._strays = self._name_missing()
        self._segments = self._list_segments()
        self._dates = Dates(self._epochs)
        self._aborted = AbortedTransactions(files, directory)
        self._producers = ProducerTable()
        # Where the file of aborted transactions is of no use: who had one open, from the first batch there is on. The
        # producers' snapshot knows that only as of its own offset.
        self._witness: ProducerTable | None = None
        self._replay_from = 0
        self._bytes_scanned = 0
        self._bytes_cut = 0
        self._is_doubtful = is_cut_noted(files, directory)
        self._has_failed_sync = is_failed_sync_noted(files, directory)
        self._missing = self._note_missing()

    def _state_missing(self) -> None:
        """Write an index for each listed segment that has no file left: from now on that is what tells of it."""
        logs, indexes = self._sizes["log"], self._sizes["index"]
        listed = self._list_what_was()
        for base in listed:
            path = index_path(self._directory, base)
            if base in logs or stated_size(self._files, path, base) >= 0:
                continue
            # How far the last one came nothing tells, but it had no more offsets than a segment can have.
            following = (other for other in {*listed, *logs, *indexes} if other > base)
            end = min(following, default=max(base, self._start) + OFFSETS_IN_SEGMENT_MAX)
            if end > self._start:
                state_missing(self._files, path, base, end)
                indexes[base] = 1

    def _list_what_was(self) -> list[int]:
        """The segments that the log had, as far as that is noted."""
        if self._listed.saved is not None:
            return self._listed.saved
        if self._sizes["log"] or self._sizes["index"]:
            return []
        had_records = self._epochs.items() or any(offset > self._start for offset in self._snapshots)
        return [self._start] if had_records else []

    def _name_missing(self) -> list[int]:
        """Make an empty file where an index tells of a segment that is gone; the indexes that tell of nothing.

        An index is removed, durably, before its segment is. So one without a segment is all that is left of it: from
        now on it is a segment shorter than its index says.
        """
        logs, strays = self._sizes["log"], []
        for base in sorted(base for base in self._sizes["index"] if base not in logs):
            path = index_path(self._directory, base)
            stated = stated_size(self._files, path, base)
            summary = peek_index(self._files, path, base, stated)
            before = max((other for other in logs if other < base), default=None)
            is_within = before is not None and self._make_segment(before, logs[before]).next_offset > base
            if summary is None or stated == 0 or summary.next_offset <= self._start or is_within:
                strays.append(base)
                continue
            log.error(
                "%s is gone, with offsets %d to %d.", log_path(self._directory, base), base, summary.next_offset - 1
            )
            self._files.open(log_path(self._directory, base), create=True)
            self._files.sync_directory(self._directory)
            logs[base] = 0
        return strays

    def _note_missing(self) -> set[int]:
        """Take segments of which nothing is left for damaged; the base offsets of these."""
        missing: set[int] = set()
        for segment in self._segments:
            base = segment.base_offset
            if segment.size or base not in self._sizes["index"]:
                continue
            stated = stated_size(self._files, index_path(self._directory, base), base)
            if stated > 0:
                missing.add(base)
                segment.note_missing(Hole(0, stated))
        if missing:
            self._doubt()
            self._keep_offsets_of_missing_end(missing)
        return missing

    def _keep_offsets_of_missing_end(self, missing: set[int]) -> None:
        """Go on behind the last segment if it is gone: its offsets are not given away a second time."""
        last = self._segments[-1].base_offset
        if last not in missing:
            return
        path = index_path(self._directory, last)
        summary = peek_index(self._files, path, last, stated_size(self._files, path, last))
        assert summary is not None, "it was read a moment ago"
        behind = self._make_segment(summary.next_offset, 0)
        behind.create()
        self._files.sync_directory(self._directory)
        self._segments.append(behind)

    def _list_segments(self) -> list[Segment]:
        return [self._make_segment(base, size) for base, size in sorted(self._sizes["log"].items())]

    def _make_segment(self, base_offset: int, size: int, *, is_sealed: bool = True) -> Segment:
        return Segment(
            self._files,
            self._directory,
            base_offset,
            size,
            index_interval_bytes=self._config.index_interval_bytes,
            is_sealed=is_sealed,
            opened=self._opened,
        )

    def run(self) -> Recovered:
        has_files = has_epochs = self._has_epochs
        if not self._aborted.load():
            has_files = False
            self._witness = ProducerTable()
        end = 0
        tail = self._find_tail()
        if self._segments:
            last = self._segments[-1]
            last.is_sealed = False
            clean_end = self._load_clean(last) if has_files else None
            self._load_producers(self._segments[tail].base_offset, clean_end)
            self._replay_sealed(tail, has_files=has_files, has_epochs=has_epochs)
            if clean_end is None or self._replay_from < clean_end or self._has_failed_sync:
                self._scan_tail(tail)
                self._drop_empty(tail)
                self._go_on_behind_damage()
            self._dates.settle()
            end = self._segments[-1].next_offset
        self._epochs.cut(end)
        self._epochs.save_or_remove()
        self._opened.epochs = self._epochs
        self._aborted.cut(end)
        self._remove_strays(end)
        return Recovered(
            segments=self._segments,
            producers=self._producers,
            epochs=self._epochs,
            aborted=self._aborted,
            listed=self._listed,
            snapshots=self._snapshots,
            unindexed=[
                segment
                for at, segment in enumerate(self._segments)
                if at >= tail or segment.base_offset not in self._sizes["index"]
            ],
            bytes_scanned=self._bytes_scanned,
            bytes_cut=self._bytes_cut,
            is_doubtful=self._is_doubtful,
        )

    def _doubt(self) -> None:
        if not self._is_doubtful:
            self._is_doubtful = True
            note_cut(self._files, self._directory)

    def _find_tail(self) -> int:
        """The first segment that may hold bytes which were never synced."""
        for at in range(len(self._segments) - 2, -1, -1):
            segment = self._segments[at]
            if segment.base_offset in self._missing:
                return at + 1  # its index was written when all of it was on disk
            if segment.base_offset in self._sizes["index"]:
                # One that is damaged, or left from when the log was closed and has grown since, proves nothing.
                return at + 1 if self._load_index(segment) is not None else at
        return 0

    def _load_index(self, segment: Segment) -> Index | None:
        path = index_path(self._directory, segment.base_offset)
        return Index.load(self._files, path, segment.base_offset, segment.size)

    def _load_clean(self, last: Segment) -> int | None:
        """Where the log ended when it was closed in good order, if it was."""
        index = self._load_index(last)
        if index is None:
            return None
        last.adopt(index, is_checked=False)
        return index.next_offset

    def _load_producers(self, tail_start: int, clean_end: int | None) -> None:
        """Start from the newest usable snapshot. One past the tail's start serves only after a clean stop."""
        for offset in reversed(self._snapshots):
            if offset > tail_start and offset != clean_end:
                continue
            table = load_snapshot(self._files, self._directory, offset)
            if table is not None:
                self._producers, self._replay_from = table, offset
                return

    def _replay_sealed(self, tail: int, *, has_files: bool, has_epochs: bool) -> None:
        """Walk sealed segments again where a file that would have spared it is missing or damaged."""
        for segment, following in zip(self._segments[:tail], self._segments[1:], strict=False):
            if has_files and self._replay_from >= following.base_offset:
                continue
            self._bytes_scanned += segment.size
            source = FileBytes(segment.file)
            for found in scan(source, 0, segment.base_offset, following.base_offset):
                if not isinstance(found, Hole):
                    self._note(source, *found)
                    if not has_epochs:
                        self._dates.add(segment, *found)

    def _scan_tail(self, tail: int) -> None:
        # What was saved of the tail may tell of batches that are lost: those that are there know better.
        self._aborted.cut(self._segments[tail].base_offset)
        for at, segment in enumerate(self._segments[tail:], tail):
            end_offset = None if segment is self._segments[-1] else self._segments[at + 1].base_offset
            self._scan(segment, end_offset, may_cut=not self._has_valid_batch_after(at))
        self._files.sync_directory(self._directory)
        if self._has_failed_sync:
            forget_failed_sync(self._files, self._directory)

    def _drop_empty(self, tail: int) -> None:
        """Take away empty segments behind a torn one: their names tell of batches that are lost."""
        while len(self._segments) > tail + 1:
            last, before = self._segments[-1], self._segments[-2]
            if last.size or before.next_offset == last.base_offset:
                return
            self._doubt()
            self._segments.pop()
            self._listed.discard(last.base_offset)
            self._files.remove(index_path(self._directory, last.base_offset))
            self._files.remove(log_path(self._directory, last.base_offset))
            self._files.sync_directory(self._directory)
            before.is_sealed = False

    def _go_on_behind_damage(self) -> None:
        """Write into another file if the last one ends with bytes that cannot be read: they stay as they are."""
        last = self._segments[-1]
        if not any(hole.end == last.size for hole in last.holes):
            return
        # Should the disk give the bytes back some day, offsets from the new segment's name on are not believed there.
        behind = self._make_segment(max(last.next_offset, last.base_offset + 1), 0, is_sealed=False)
        behind.create()
        self._files.sync_directory(self._directory)
        last.is_sealed = True
        self._segments.append(behind)

    def _has_valid_batch_after(self, at: int) -> bool:
        return any(
            not isinstance(found, Hole)
            for segment in self._segments[at + 1 :]
            for found in scan(FileBytes(segment.file), 0, segment.base_offset)
        )

    def _scan(self, segment: Segment, end_offset: int | None, *, may_cut: bool) -> None:
        """Rebuild what is known of a segment of the tail from its bytes."""
        path = index_path(self._directory, segment.base_offset)
        stated = stated_size(self._files, path, segment.base_offset)
        lacks_bytes = stated > segment.size and not may_cut
        if stated > segment.size:
            self._doubt()  # that much was synced before the index was written
        if not lacks_bytes:  # else the index is all that tells so, where the cut is between two batches
            # The index it has, if any, must be gone before the file can grow to the very size that it states.
            self._files.remove(path)
        source = FileBytes(segment.file)
        size = source.size
        self._bytes_scanned += size
        index = Index(segment.base_offset)
        holes: list[Hole] = []
        unproven: Hole | None = None  # a batch behind a gap: the next one has to agree with its offsets
        for found in scan(source, 0, segment.base_offset, end_offset):
            if isinstance(found, Hole):
                holes.append(found)
            else:
                has_gap = found[1].base_offset != index.next_offset and found[1].next_offset != end_offset
                unproven = Hole(found[0], found[0] + found[1].size) if has_gap and not holes else None
                index.add(found[1], found[1].base_offset, found[0], self._config.index_interval_bytes)
                self._note(source, *found)
                self._dates.add(segment, *found)
                if self._has_failed_sync:
                    segment.file.patch(found[0], source.at(found[0], found[1].size))
        if may_cut and holes and holes[-1].end == size:
            self._doubt()
            if source.unreadable_to <= holes[-1].start:  # what a write left unfinished can be read
                size = holes.pop().start
                self._cut(segment, size)
        index.log_size = size
        segment.adopt(index, is_checked=True)
        for hole in holes:
            segment.note_hole(hole)
        if unproven is not None:
            segment.note_misdated(unproven)
        if lacks_bytes:
            segment.note_missing(Hole(size, stated))
        self._sync(segment)

    def _sync(self, segment: Segment) -> None:
        try:
            segment.sync()
        except StorageError:
            note_failed_sync(self._files, self._directory)
            raise

    def _cut(self, segment: Segment, size: int) -> None:
        torn_bytes = segment.file.size - size
        self._bytes_cut += torn_bytes
        log.warning(
            "Cut a torn write of %d bytes off %s: the node stopped before it was complete, so it was never "
            "reported as stored.",
            torn_bytes,
            log_path(self._directory, segment.base_offset),
        )
        segment.file.truncate(size)

    def _note(self, source: FileBytes, position: int, header: BatchHeader) -> None:
        if header.producer_id < 0:
            return
        batch = source.at(position, header.size)
        if header.base_offset >= self._replay_from:
            self._note_producer(self._producers, batch, header, finds_aborted=self._witness is None)
        if self._witness is not None:
            self._note_producer(self._witness, batch, header, finds_aborted=True)

    def _note_producer(
        self, table: ProducerTable, batch: memoryview, header: BatchHeader, *, finds_aborted: bool
    ) -> None:
        if not header.is_control or header.is_gap:
            table.note(header, header.base_offset)
            return
        aborted = note_marker(table, batch, header, header.base_offset)
        if aborted is not None and finds_aborted:
            self._aborted.add(aborted)

    def _remove_strays(self, end_offset: int) -> None:
        """Remove snapshots of offsets that are no more, before the log reaches them again, and indexes of no log."""
        strays = [snapshot_path(self._directory, offset) for offset in self._snapshots if offset > end_offset]
        strays += [index_path(self._directory, base) for base in self._strays]
        self._snapshots = [offset for offset in self._snapshots if offset <= end_offset]
        for path in strays:
            self._files.remove(path)
        if strays:
            self._files.sync_directory(self._directory)
