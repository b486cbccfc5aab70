"""What a node knew to be committed, kept in one small file, so that it knows roughly as much after a restart.

For each replica: its high watermark and its last stable offset. The file may be some seconds old: what was committed
then is committed still. Where it is missing or damaged nothing is known, and a leader tells again. Format:
docs/formats/watermarks.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from penstock.storage.files import Files
from penstock.storage.state_files import load_json, save_json

WATERMARKS_FILE: Final = "watermarks"


class SavedOffsets(NamedTuple):
    high_watermark: int
    last_stable_offset: int


NOTHING_KNOWN: Final = SavedOffsets(0, 0)

Key = tuple[UUID, int]


class Watermarks:
    """The file of one data directory."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / WATERMARKS_FILE
        self._saved: dict[Key, SavedOffsets] | None = None

    def load(self) -> dict[Key, SavedOffsets]:
        """What was saved last."""
        rows = load_json(self._files, self._path, dict[str, dict[str, SavedOffsets]]) or {}
        return {
            (UUID(topic), int(partition)): known
            for topic, partitions in rows.items()
            for partition, known in partitions.items()
        }

    def save(self, known: dict[Key, SavedOffsets]) -> None:
        """Write the file, unless it says all this already. Runs in any thread, one at a time."""
        if known == self._saved:
            return
        rows: dict[str, dict[str, SavedOffsets]] = {}
        for (topic, partition), each in known.items():
            rows.setdefault(str(topic), {})[str(partition)] = each
        save_json(self._files, self._path, rows)
        self._saved = known
