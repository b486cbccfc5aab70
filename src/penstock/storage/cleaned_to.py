"""How far compaction has come, and when: the file ``cleaned-to`` of a compacted log.

Each mark says that at a certain time everything below an offset had been compacted. A tombstone below a mark that is
older than ``delete_retention_ms`` was there for every reader long enough, and goes with the next pass. Losing the file
costs one more pass and keeps tombstones longer; it never loses a record.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.storage.checked import decode_checked, encode_checked
from penstock.storage.files import Files, read_file, replace_file

CLEANED_FILE: Final = "cleaned-to"
_MARKS_MAX: Final = 32


class Mark(NamedTuple):
    """At ``time_ms`` everything below ``offset`` was compacted, and so many tombstones were still there."""

    offset: int
    time_ms: int
    tombstones: int


class CleanedTo:
    """The marks of one log, oldest first."""

    def __init__(self, marks: list[Mark]) -> None:
        self.marks = marks

    @classmethod
    def load(cls, files: Files, directory: Path) -> CleanedTo:
        data = read_file(files, directory / CLEANED_FILE)
        body = None if data is None else decode_checked(data)
        return cls([] if body is None else msgspec.json.decode(body, type=list[Mark]))

    def save(self, files: Files, directory: Path) -> None:
        replace_file(files, directory / CLEANED_FILE, encode_checked(msgspec.json.encode(self.marks)))

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
        kept = [Mark(limit, now_ms - delete_retention_ms, 0)] if limit else []
        kept += [mark for mark in self.marks if limit < mark.offset]
        if offset > self.offset:
            kept.append(Mark(offset, now_ms, tombstones))
        if len(kept) > _MARKS_MAX:
            # Dropping every other one keeps tombstones a little longer, until the next mark is due.
            kept = [*kept[:-1][1::2], kept[-1]]
        return CleanedTo(kept)

    def _due(self, now_ms: int, delete_retention_ms: int) -> list[Mark]:
        return [mark for mark in self.marks if now_ms - mark.time_ms >= delete_retention_ms]
