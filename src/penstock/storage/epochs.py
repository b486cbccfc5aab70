"""Which leader epoch wrote which part of a log, kept so that replicas can tell where their histories part (KIP-101).

A list of (epoch, first offset), both growing. Every batch carries the epoch it was written in, so a scan rebuilds the
list; the file spares scanning sealed segments and is written whenever one is sealed and when the log is closed.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.storage.checked import decode_checked, encode_checked
from penstock.storage.files import Files, read_file, replace_file


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class LeaderEpochs:
    """The history of leader epochs of one log."""

    __slots__ = ("_files", "_path", "_starts", "latest")

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._starts: list[EpochStart] = []
        self.latest = -1  # the epoch of the last leader that wrote here; asked for with every append

    def load(self) -> bool:
        """Read the file; False if there is none or it is damaged."""
        data = read_file(self._files, self._path)
        body = None if data is None else decode_checked(data)
        if body is None:
            return False
        self._keep(msgspec.json.decode(body, type=list[EpochStart]))
        return True

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

    def cut(self, end_offset: int) -> None:
        """Forget epochs that begin at or after ``end_offset``, as after a truncation."""
        self._keep([start for start in self._starts if start.start_offset < end_offset])

    def save(self) -> None:
        replace_file(self._files, self._path, encode_checked(msgspec.json.encode(self._starts)))

    def _keep(self, starts: list[EpochStart]) -> None:
        # In one step: `save` may be running in the thread that syncs.
        self._starts = starts
        self.latest = starts[-1].epoch if starts else -1
