"""Log compaction: of each key only the last value stays, at its offset.

A pass has four steps, so that the long one can run beside the owner of the log:

1. `plan_compaction` (owner thread) picks sealed segments, and None if a pass is not worth it yet.
2. `run` (any thread) learns the last offset of every key in the dirty part, up to a limit on memory, and rewrites
   the segments without what is superseded, small ones together, beside the old ones. Then it decides, durably, that
   the new ones count (see ``swap``).
3. `apply` (owner thread) makes the log read the new segments.
4. `finish` (any thread) puts the new files in the old ones' place and notes how far it came.

An error in `run` leaves the log reading the old segments, one in `finish` the new ones; either way what is left to do
to the files is kept by the log (`Log.settle_swaps`) and done before anything else is done to them.

Offsets never change. These stay: records without a key, batches whose records cannot be decoded, segments with damage,
as an empty batch every batch that the producer table remembers (or a retry would be stored twice), and a tombstone
until ``delete_retention_ms`` after the pass that first met it.

A pass ends below the first open transaction, so each one it meets is decided. Records of aborted ones go. A marker goes
once no record of its transaction is left, unless it is the last one of a producer that the table remembers, or ends an
aborted transaction that the log's index names: readers who are told of the transaction wait for that marker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import CorruptRecords, MessageTooLarge, StorageError, UnsupportedCompression
from penstock.records import BatchHeader, Record, decode_records, filter_batch, parse_header, read_marker
from penstock.storage.config import LogConfig
from penstock.storage.files import Files
from penstock.storage.index import OFFSETS_IN_SEGMENT_MAX
from penstock.storage.log import Log
from penstock.storage.ranges import Hole
from penstock.storage.scan import FileBytes, scan
from penstock.storage.segment import Segment, SegmentWriter, log_path
from penstock.storage.state_files import load_json, save_json
from penstock.storage.swap import Swap

CLEANED_FILE: Final = "cleaned-to"
_MARKS_MAX: Final = 32


class CleanedMark(NamedTuple):
    """At ``time_ms`` everything below ``offset`` was compacted, and so many tombstones were still there."""

    offset: int
    time_ms: int
    tombstones: int


class CleanedTo:
    """The marks of one log, oldest first."""

    def __init__(self, marks: list[CleanedMark]) -> None:
        self.marks = marks

    @classmethod
    def load(cls, files: Files, directory: Path) -> CleanedTo:
        return cls(load_json(files, directory / CLEANED_FILE, list[CleanedMark]) or [])

    def save(self, files: Files, directory: Path) -> None:
        save_json(files, directory / CLEANED_FILE, self.marks)

    @property
    def offset(self) -> int:
        """Everything below has been compacted at least once."""
        return self.marks[-1].offset if self.marks else 0

    def tombstones_below(self, now_ms: int, delete_retention_ms: int) -> int:
        """The offset below which tombstones have been kept for long enough."""
        return max((mark.offset for mark in self._due(now_ms, delete_retention_ms)), default=0)

    def has_due_tombstones(self, now_ms: int, delete_retention_ms: int) -> bool:
        return any(mark.tombstones for mark in self._due(now_ms, delete_retention_ms))

    def after_pass(self, offset: int, now_ms: int, tombstones: int, delete_retention_ms: int) -> CleanedTo:
        """The marks once another pass is done. Old ones are merged into later ones, so that few are left."""
        limit = self.tombstones_below(now_ms, delete_retention_ms)
        kept = [CleanedMark(limit, now_ms - delete_retention_ms, 0)] if limit else []
        kept += [mark for mark in self.marks if limit < mark.offset]
        if offset > self.offset:
            kept.append(CleanedMark(offset, now_ms, tombstones))
        if len(kept) > _MARKS_MAX:
            # Dropping every other one keeps tombstones a little longer, until the next mark is due.
            kept = [*kept[:-1][1::2], kept[-1]]
        return CleanedTo(kept)

    def _due(self, now_ms: int, delete_retention_ms: int) -> list[CleanedMark]:
        return [mark for mark in self.marks if now_ms - mark.time_ms >= delete_retention_ms]


log = logging.getLogger(__name__)

KEYS_MAX: Final = 500_000  # in one pass, at about 180 bytes each
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Rewritten:
    """One new segment, the old ones it stands for, and how it takes their place."""

    old: list[Segment]
    new: Segment
    swap: Swap


def plan_compaction(
    owner: Log,
    now_ms: int,
    *,
    limit_offset: int | None = None,
    keys_max: int = KEYS_MAX,
) -> Compaction | None:
    """A pass over the log's sealed segments below ``limit_offset`` (the last stable offset), if one is worth its cost.

    Without a limit it is everything durable before the first open transaction.
    """
    assert not owner.has_unsettled_swaps, "what the last pass left is settled before the next one begins"
    config = owner.config
    limit = owner.durable_offset if limit_offset is None else limit_offset
    first_open = owner.producers.first_open
    segments = _eligible(owner, now_ms, limit if first_open is None else min(limit, first_open))
    cleaned_to = CleanedTo.load(owner.files, owner.directory)
    dirty_bytes = sum(segment.size for segment, end in segments if end > cleaned_to.offset)
    total_bytes = sum(segment.size for segment, _ in segments)
    is_dirty = dirty_bytes > 0 and dirty_bytes >= config.min_dirty_ratio * total_bytes
    is_due = cleaned_to.has_due_tombstones(now_ms, config.delete_retention_ms)
    is_due = is_due or _has_overdue(segments, cleaned_to.offset, now_ms - config.max_compaction_lag_ms)
    if not segments or not (is_dirty or is_due):
        return None
    owner.pin(segments[0][0].base_offset)
    return Compaction(owner, segments, cleaned_to, now_ms, keys_max)


def _has_overdue(segments: list[tuple[Segment, int]], cleaned_to: int, limit_ms: int) -> bool:
    """Whether a segment that no pass has seen begins with a record older than ``limit_ms``."""
    if limit_ms <= 0:
        return False
    return any(segment.oldest_ms < limit_ms for segment, end in segments if end > cleaned_to and segment.size)


def _eligible(owner: Log, now_ms: int, limit_offset: int) -> list[tuple[Segment, int]]:
    """Sealed segments that are on disk, below the limit and old enough, each with the offset where the next begins."""
    lag_ms = owner.config.min_compaction_lag_ms
    found = []
    for segment, following in zip(owner.settled_segments, owner.segments[1:], strict=False):
        end = following.base_offset
        if end > limit_offset or (lag_ms and segment.newest_ms > now_ms - lag_ms):
            break
        found.append((segment, end))
    return found


class Compaction:
    """One pass over one log. Made by `plan_compaction`; run it, apply it also where that failed, and finish it."""

    def __init__(
        self,
        owner: Log,
        segments: list[tuple[Segment, int]],
        cleaned_to: CleanedTo,
        now_ms: int,
        keys_max: int,
    ) -> None:
        self._owner = owner
        self._files: Files = owner.files
        self._directory: Path = owner.directory
        self._config: LogConfig = owner.config
        self._segments = segments
        self._cleaned_to = cleaned_to
        self._now_ms = now_ms
        self._keys_max = keys_max
        self._aborted = owner.aborted.ranges()
        self._remembered = owner.producers.remembered()
        self._undone: set[int] = set()  # producers with records kept since their last marker
        self._last_offsets: dict[bytes, int] = {}
        self._drop_tombstones_below = cleaned_to.tombstones_below(now_ms, self._config.delete_retention_ms)
        self._damaged: set[int] = set()
        self._tombstones = 0
        self._mapped_to = 0
        self._swaps: list[Swap] = []
        self.rewritten: list[Rewritten] = []

    # -- any thread ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Write the new segments beside the old ones, and let them count. After an error `apply` what does already."""
        try:
            self._mapped_to = self._map_keys()
            for group in self._groups():
                rewritten = self._rewrite(group)
                if rewritten is not None:
                    self.rewritten.append(rewritten)
            for rewritten in self.rewritten:
                rewritten.swap.decide()
        except Exception:
            self._undo()
            raise

    def _undo(self) -> None:
        """Remove at once what does not count; where that fails too, the log sees to it later."""
        for swap in [each for each in self._swaps if not each.is_decided]:
            try:
                swap.settle()
            except StorageError as error:
                log.warning("Files that compaction wrote in vain are still there: %s", error.message)
            else:
                self._swaps.remove(swap)

    def _map_keys(self) -> int:
        """Learn the last offset of every key in the dirty part; where it ended."""
        reached = self._cleaned_to.offset
        for segment, end in self._segments:
            if end <= self._cleaned_to.offset:
                continue
            for batch, header in self._batches(segment, end):
                if header.next_offset <= self._cleaned_to.offset:
                    continue
                if len(self._last_offsets) + header.count > self._keys_max and self._last_offsets:
                    return header.base_offset
                self._map_batch(batch, header)
            reached = end
        return reached

    def _map_batch(self, batch: memoryview, header: BatchHeader) -> None:
        if header.is_control or header in self._aborted:
            return
        for record in self._decode(batch):
            if record.key is not None:
                self._last_offsets[_digest(record.key)] = record.offset

    def _groups(self) -> Iterator[list[tuple[Segment, int]]]:
        """Neighbours that fit into one segment together. One with damage stays as it is, alone."""
        group: list[tuple[Segment, int]] = []
        size = 0
        for segment, end in self._segments:
            if segment.base_offset >= self._mapped_to:
                break
            is_damaged = segment.base_offset in self._damaged
            too_wide = group and end - group[0][0].base_offset > OFFSETS_IN_SEGMENT_MAX
            if group and (is_damaged or too_wide or size + segment.size > self._config.segment_bytes):
                yield group
                group, size = [], 0
            if not is_damaged:
                group.append((segment, end))
                size += segment.size
        if group:
            yield group

    def _rewrite(self, group: list[tuple[Segment, int]]) -> Rewritten | None:
        """Write one new segment for a group, or None where that would change nothing."""
        old = [segment for segment, _ in group]
        swap = Swap(self._files, self._directory, old[0].base_offset, group[-1][1])
        self._swaps.append(swap)
        writer = SegmentWriter(self._files, swap.cleaned, swap.base_offset, self._config.index_interval_bytes)
        for segment, end in group:
            for batch, header in self._batches(segment, end):
                kept = self._filter(batch, header)
                if kept is not None:
                    writer.add(kept)
        is_same = len(old) == 1 and writer.size == old[0].size
        if is_same or any(segment.base_offset in self._damaged for segment in old):
            writer.discard()
            self._swaps.remove(swap)
            return None
        swap.new = writer.finish(self._owner.opened)
        return Rewritten(old, swap.new, swap)

    def _filter(self, batch: memoryview, header: BatchHeader) -> memoryview | None:
        """What is left of a batch: all of it, a part, an empty one that a producer still needs, or nothing."""
        if header.is_gap:
            return batch if header.base_offset in self._remembered else None
        if header.is_control:
            return batch if self._marker_stays(batch, header) else None
        kept = self._filter_records(batch, header)
        count = parse_header(kept).count
        if count and header.is_transactional:
            self._undone.add(header.producer_id)
        return None if not count and header.base_offset not in self._remembered else kept

    def _filter_records(self, batch: memoryview, header: BatchHeader) -> memoryview:
        is_aborted = header in self._aborted
        try:
            filtered = filter_batch(batch, lambda record: not is_aborted and self._stays(record))
        except (CorruptRecords, MessageTooLarge, UnsupportedCompression):
            return batch
        return batch if filtered is None else memoryview(filtered)

    def _stays(self, record: Record) -> bool:
        if record.key is None:
            return True
        if self._last_offsets.get(_digest(record.key), -1) > record.offset:
            return False
        if record.value is None:
            if record.offset < self._drop_tombstones_below:
                return False
            self._tombstones += 1
        return True

    def _marker_stays(self, batch: memoryview, header: BatchHeader) -> bool:
        has_records = header.producer_id in self._undone
        self._undone.discard(header.producer_id)
        # Damage may hide records, and a segment with damage stays as it is: no marker behind it can be spared.
        if has_records or self._damaged or header.base_offset in self._remembered or self._aborted.has_marker(header):
            return True
        try:
            read_marker(batch)
        except CorruptRecords:
            return True  # a control batch of some other kind
        return False

    def _batches(self, segment: Segment, end_offset: int) -> Iterator[tuple[memoryview, BatchHeader]]:
        """Every batch of a segment, through a file of our own: the owner may be reading through its."""
        if segment.damage:
            self._damaged.add(segment.base_offset)
        with closing(self._files.open(log_path(self._directory, segment.base_offset))) as file:
            source = FileBytes(file)
            for found in scan(source, 0, segment.base_offset, end_offset):
                if isinstance(found, Hole):
                    self._damaged.add(segment.base_offset)
                else:
                    position, header = found
                    yield source.at(position, header.size), header

    def _decode(self, batch: memoryview) -> Sequence[Record]:
        try:
            return decode_records(batch)
        except (CorruptRecords, MessageTooLarge, UnsupportedCompression):
            return ()

    # -- owner thread -------------------------------------------------------------------------------------------------

    def apply(self) -> None:
        """Let the log read the new segments, as far as it was decided that they count.

        None of the old ones was dropped meanwhile: the plan pinned them.
        """
        for rewritten in self.rewritten:
            if rewritten.swap.is_decided:
                self._owner.replace_segments(rewritten.old, [rewritten.new])
        for swap in self._swaps:
            self._owner.leave_swap(swap)
        self._owner.pin(None)

    # -- any thread ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Give the new files the old ones' names and remove those, crash by crash safe; then note how far it came."""
        self._owner.settle_swaps()
        marks = self._cleaned_to.after_pass(
            self._mapped_to, self._now_ms, self._tombstones, self._config.delete_retention_ms
        )
        marks.save(self._files, self._directory)


def compact(owner: Log, now_ms: int) -> bool:
    """A whole pass in one thread, where nothing else uses the log; whether there was anything to do."""
    owner.settle_swaps()
    compaction = plan_compaction(owner, now_ms)
    if compaction is None:
        return False
    try:
        compaction.run()
    finally:
        compaction.apply()
    compaction.finish()
    return True


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
