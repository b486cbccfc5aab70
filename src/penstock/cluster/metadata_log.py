"""The metadata log of a quorum of one: records become facts once they are synced, and only then are they applied.

A snapshot is written when enough records have gathered since the last, and the log before it is trimmed, so that
start-up reads a bounded amount. Everything here is what a Raft voter persists; the single voter simply needs nobody
else's vote.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.clock import Clock
from penstock.cluster.metadata import ClusterMetadata
from penstock.cluster.records import (
    MetadataRecord,
    decode_record,
    decode_records,
    encode_record,
    encode_records,
)
from penstock.errors import DataDirectoryError
from penstock.records import Record, accept_batch, encode_batch
from penstock.records import decode_records as decode_batch
from penstock.storage.checked import decode_checked, encode_checked
from penstock.storage.config import UNLIMITED, LogConfig
from penstock.storage.files import Files, read_file, replace_file
from penstock.storage.log import Log

log = logging.getLogger(__name__)

_CONFIG: Final = LogConfig(segment_bytes=8 * 1024 * 1024, retention_ms=UNLIMITED, is_deleting=False)
_SNAPSHOT_SUFFIX: Final = ".snapshot"


class MetadataLog:
    """The durable history behind a `ClusterMetadata`."""

    def __init__(self, files: Files, directory: Path, clock: Clock, *, snapshot_every: int = 10_000) -> None:
        self._files = files
        self._directory = directory
        self._clock = clock
        self._snapshot_every = snapshot_every
        self._log = Log.open(files, directory, _CONFIG)
        self.state = ClusterMetadata()
        self._snapshot_offset = self._load_snapshot()
        self._replay()

    def append(self, records: Sequence[MetadataRecord]) -> int:
        """Write records without making them facts yet; the offset to pass to `commit` after `sync`."""
        now_ms = self._clock.now_ms()
        batch = encode_batch([Record(at, now_ms, None, encode_record(record), ()) for at, record in enumerate(records)])
        view = memoryview(batch)
        self._log.append(view, accept_batch(view), leader_epoch=0)
        return self._log.end_offset

    def sync(self) -> None:
        """Make what was appended durable. May run in another thread."""
        self._log.sync()

    def snapshot_if_due(self) -> None:
        """Write a snapshot and trim the log, if enough has happened since the last one."""
        if self._log.end_offset - self._snapshot_offset < self._snapshot_every:
            return
        offset = self._log.end_offset
        body = encode_records(self.state.to_records())
        replace_file(self._files, self._snapshot_path(offset), encode_checked(body))
        old, self._snapshot_offset = self._snapshot_offset, offset
        self._log.delete_files(self._log.trim(offset))
        if old:
            self._files.remove(self._snapshot_path(old))

    def close(self) -> None:
        self._log.close()

    def _snapshot_path(self, offset: int) -> Path:
        return self._directory / f"{offset:020}{_SNAPSHOT_SUFFIX}"

    def _load_snapshot(self) -> int:
        """Apply the newest whole snapshot; the offset it stands for."""
        names = [entry.name for entry in self._files.entries(self._directory)]
        for name in sorted((name for name in names if name.endswith(_SNAPSHOT_SUFFIX)), reverse=True):
            data = read_file(self._files, self._directory / name)
            body = None if data is None else decode_checked(data)
            if body is None:
                log.error("The metadata snapshot %s is damaged; trying an older one.", self._directory / name)
                continue
            for record in decode_records(body):
                self.state.apply(record)
            return int(name.removesuffix(_SNAPSHOT_SUFFIX))
        return 0

    def _replay(self) -> None:
        if self._log.start_offset > self._snapshot_offset:
            raise DataDirectoryError(
                f"The metadata in {self._directory} cannot be read: its snapshot is damaged and the log behind it is "
                "gone. Restore the directory from a backup; nothing was changed."
            )
        for batch in self._log.batches(self._snapshot_offset):
            for record in decode_batch(memoryview(batch.read())):
                if record.offset >= self._snapshot_offset and record.value is not None:
                    self.state.apply(decode_record(record.value))
        if self._log.corrupt_bytes:
            raise DataDirectoryError(
                f"The metadata log in {self._directory} is corrupt in {self._log.corrupt_bytes} bytes, so topics could "
                "be missing. Restore the directory from a backup; nothing was changed."
            )
