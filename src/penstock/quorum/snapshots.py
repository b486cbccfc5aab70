"""The snapshot files of a quorum's member: the metadata as of an index, with who the members were.

``{index, 20 digits}.snapshot`` is a checked file with one JSON object. The newest stands for all entries up to its
index; the one before it is kept, and so are the entries behind that, so that damage to the newest costs nothing.
A file from before there was a quorum is a bare list of records. Format: docs/formats/metadata.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from penstock.cluster.raft.messages import Members, Snapshot
from penstock.storage.checked import decode_checked, encode_checked
from penstock.storage.files import Files, read_file, replace_file

_NAME: Final = re.compile(r"(\d{20})\.snapshot")


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says, readable by a person. The data of a snapshot is JSON already."""

    index: int
    term: int
    members: Members
    records: msgspec.Raw


class Snapshots:
    """The snapshot files in a directory."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory

    def indexes(self) -> list[int]:
        """Of all the files there are, damaged or not, in order."""
        found = (_NAME.fullmatch(entry.name) for entry in self._files.entries(self._directory))
        return sorted(int(match[1]) for match in found if match)

    def load(self, index: int, members: Members) -> tuple[Snapshot, bool] | None:
        """A snapshot and whether it is from before there was a quorum; then it has the ``members`` given.

        None if it is damaged.
        """
        data = read_file(self._files, self._path(index))
        body = None if data is None else decode_checked(data)
        if body is None:
            return None
        if body.startswith(b"["):
            return Snapshot(index, 0, members, body), True
        stored = msgspec.json.decode(body, type=_Stored)
        return Snapshot(stored.index, stored.term, stored.members, bytes(stored.records)), False

    def save(self, snapshot: Snapshot) -> None:
        records = msgspec.Raw(snapshot.data or b"[]")
        stored = _Stored(index=snapshot.index, term=snapshot.term, members=snapshot.members, records=records)
        replace_file(self._files, self._path(snapshot.index), encode_checked(msgspec.json.encode(stored)))

    def remove_before(self, index: int) -> None:
        """Remove all that are older than the one of ``index``."""
        for old in self.indexes():
            if old < index:
                self._files.remove(self._path(old))

    def _path(self, index: int) -> Path:
        return self._directory / f"{index:020}.snapshot"
