"""Which leader epoch wrote which part of a log, kept so that replicas can tell where their histories part (KIP-101).

A list of (epoch, first offset), both growing. Every batch carries the epoch it was written in, so a scan rebuilds the
list. But no checksum covers it there, so the list is saved, with one, with the first sync after an epoch began, and
whenever it was cut. What the file tells of an offset is true; it may only lack what began since the last sync.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import DiskFull, StorageError
from penstock.storage.files import Files
from penstock.storage.state_files import load_json, save_json

log = logging.getLogger(__name__)

FOR_EVER: Final = 1 << 63


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class LeaderEpochs:
    """The history of leader epochs of one log."""

    __slots__ = ("_files", "_path", "_saved", "_starts", "latest")

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._starts: list[EpochStart] = []
        self._saved: list[EpochStart] | None = None
        self.latest = -1  # the epoch of the last leader that wrote here; asked for with every append

    def load(self) -> bool:
        """Read the file; False if there is none or it is damaged."""
        starts = load_json(self._files, self._path, list[EpochStart])
        if starts is None:
            return False
        self._keep(starts)
        self._saved = self._starts
        return True

    @property
    def is_saved(self) -> bool:
        """Whether the file has all that is known."""
        return self._saved is self._starts

    def items(self) -> list[EpochStart]:
        return list(self._starts)

    def begin(self, epoch: int, start_offset: int) -> None:
        """Note that ``epoch`` writes from ``start_offset`` on. Older or equal epochs change nothing."""
        if epoch <= self.latest:
            return
        # An epoch that wrote nothing leaves no trace: its successor starts at the same offset.
        earlier = [start for start in self._starts if start.start_offset < start_offset]
        self._keep([*earlier, EpochStart(epoch, start_offset)])

    def end_offset(self, epoch: int, log_end: int) -> EpochStart:
        """The largest known epoch up to ``epoch``, and the offset where it ended; (-1, -1) if none is known."""
        at = bisect_right(self._starts, epoch, key=lambda start: start.epoch)
        if at == 0:
            return EpochStart(-1, -1)
        end = self._starts[at].start_offset if at < len(self._starts) else log_end
        return EpochStart(self._starts[at - 1].epoch, end)

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote the batch at ``offset``; -1 where that is not known."""
        return self.span_at(offset)[0]

    def span_at(self, offset: int) -> tuple[int, int]:
        """The epoch that wrote the batch at ``offset``, and before which offset it ended, as far as is known."""
        starts = self._starts
        at = bisect_right(starts, offset, key=lambda start: start.start_offset)
        end = starts[at].start_offset if at < len(starts) else FOR_EVER
        return (starts[at - 1].epoch if at else -1), end

    def start_after(self, epoch: int) -> int | None:
        """Where the first epoch beyond ``epoch`` begins; None if there is none."""
        at = bisect_right(self._starts, epoch, key=lambda start: start.epoch)
        return self._starts[at].start_offset if at < len(self._starts) else None

    def cut(self, end_offset: int) -> None:
        """Forget epochs that begin at or after ``end_offset``, as after a truncation."""
        if self._starts and self._starts[-1].start_offset >= end_offset:
            self._keep([start for start in self._starts if start.start_offset < end_offset])

    def save(self) -> None:
        """Write the file, if it lacks anything. May run in the thread that syncs."""
        starts = self._starts
        if self._saved is not starts:
            save_json(self._files, self._path, starts)
            self._saved = starts

    def try_to_save(self) -> None:
        """Save what can be saved now. The rest is for the next time: the batches tell of it as well."""
        try:
            self.save()
        except StorageError as error:
            log.warning("%s could not be written yet: %s", self._path, error.message)

    def save_or_remove(self) -> None:
        """Save what was cut; where the disk takes nothing more, no file is better than one that tells otherwise."""
        try:
            self.save()
        except DiskFull:
            self._saved = None
            self._files.remove(self._path)

    def _keep(self, starts: list[EpochStart]) -> None:
        # In one step, and a new list every time: `save` may be running in the thread that syncs.
        self._starts = starts
        self.latest = starts[-1].epoch if starts else -1
