"""The files of a quorum's member, which `QuorumStore` keeps: entries, the promise, snapshots, its identity, a reserve.

Format: docs/formats/metadata.md.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Final

import msgspec

from penstock.consensus.raft.messages import Entry, EntryKind, Members, Snapshot
from penstock.errors import CorruptRecords, DataDirectoryError, StorageError
from penstock.records import Record, decode_records, encode_batch, parse_header
from penstock.storage.files import File, Files, read_file, replace_file
from penstock.storage.state_files import decode_checked, encode_checked, load_json, save_json

# -- entries -----------------------------------------------------------------------------------------------------------

# An entry is a record batch, so that ``penstock log inspect`` shows it to a person: at offset index - 1, with the term
# as its leader epoch. A batch's checksum does not cover its leader epoch, so the term stands in a header of the record
# as well and both must agree. The key tells what kind of entry it is: none for a command, whose value is a list of
# metadata records. Batches from before there was a quorum have no header and one metadata record in each value; they
# are commands of term 0.
_TERM: Final = "term"
_KEYS: Final = {EntryKind.COMMAND: None, EntryKind.NOTHING: b"nothing", EntryKind.MEMBERS: b"members"}
_KINDS: Final = {key: kind for kind, key in _KEYS.items()}


def encode_members(members: Members) -> bytes:
    return msgspec.json.encode(members)


def decode_members(data: bytes) -> Members:
    return msgspec.json.decode(data, type=Members)


def encode_entry(entry: Entry, now_ms: int) -> bytearray:
    """The batch of an entry."""
    value = entry.data if entry.members is None else encode_members(entry.members)
    header = (_TERM, b"%d" % entry.term)
    record = Record(entry.index - 1, now_ms, _KEYS[entry.kind], value, (header,))
    return encode_batch([record], leader_epoch=entry.term)


def decode_entries(batch: bytes) -> list[Entry]:
    """The entries of a batch whose checksum is right; `CorruptRecords` if it holds none all the same."""
    epoch = parse_header(batch).leader_epoch
    return [_decode_entry(record, epoch) for record in decode_records(memoryview(batch))]


def _decode_entry(record: Record, epoch: int) -> Entry:
    kind = _KINDS.get(record.key)
    value = record.value
    if kind is None or value is None:
        raise CorruptRecords(f"The record at offset {record.offset} is no entry of a metadata log.")
    index = record.offset + 1
    if not record.headers:
        if epoch != 0:
            raise CorruptRecords(f"Entry {index} has lost its term.")
        return Entry(index, 0, EntryKind.COMMAND, b"[" + value + b"]")
    term = dict(record.headers).get(_TERM)
    if term != b"%d" % epoch:
        raise CorruptRecords(f"Entry {index} is of term {epoch} by its batch, but by itself it is not.")
    if kind is EntryKind.MEMBERS:
        try:
            return Entry(index, epoch, kind, b"", decode_members(value))
        except msgspec.MsgspecError as error:
            raise CorruptRecords(f"Entry {index} does not name members: {error}.") from error
    return Entry(index, epoch, kind, value)


# -- the promise -------------------------------------------------------------------------------------------------------

_SIZE_MAX: Final = 64 * 1024


class PromisedIndex:
    """The file that says up to which index a log must reach, so that no recovery cuts what was acknowledged.

    A log that stopped in the middle of a write has a torn tail, which is cut when it is opened: no other node was told
    of it. But damage to the last entry looks just the same, and that one may have been acknowledged. So after each sync
    of the log, and before any message speaks of it, a line is added and synced here that says up to which index the log
    must reach. It is lowered before entries are cut because a leader has others in their place. The last whole line
    counts; the file begins anew when it has grown.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._file: File | None = None
        self.index: int | None = None  # none: nothing was ever promised
        data = read_file(files, path)
        if data is not None:
            self.index = _last_of(data)

    @property
    def exists(self) -> bool:
        return self._files.exists(self._path)

    def note(self, index: int) -> None:
        """Make it durable that the log reaches ``index``, and need not reach further."""
        if index == self.index:
            return
        line = encode_checked(msgspec.json.encode(index))
        if self._file is None or self._file.size > _SIZE_MAX:
            # A whole new file: the end of the one there was may be torn.
            replace_file(self._files, self._path, line)
            self._file = self._files.open(self._path)
        else:
            try:
                self._file.write(line)
                self._file.sync()
            except StorageError:
                self._file = None
                raise
        self.index = index


def _last_of(data: bytes) -> int | None:
    for line in reversed(data.split(b"\n")):
        body = decode_checked(line) if line else None
        if body is not None:
            return msgspec.json.decode(body, type=int)
    return None


_NAME: Final = re.compile(r"(\d{20})\.snapshot")


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says, readable by a person. The data of a snapshot is JSON already."""

    index: int
    term: int
    members: Members
    records: msgspec.Raw


class Snapshots:
    """The snapshot files in a directory: the metadata as of an index, with who the members were.

    ``{index, 20 digits}.snapshot`` is a checked file with one JSON object. The newest stands for all entries up to its
    index; the one before it is kept, and so are the entries behind that, so that damage to the newest costs nothing. A
    file from before there was a quorum is a bare list of records.
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory

    def indexes(self) -> list[int]:
        """Of all the files there are, damaged or not, in order."""
        found = (_NAME.fullmatch(name) for name in self._files.names(self._directory))
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
        save_json(self._files, self._path(snapshot.index), stored)

    def remove_before(self, index: int) -> None:
        """Remove all that are older than the one of ``index``."""
        for old in self.indexes():
            if old < index:
                self._files.remove(self._path(old))

    def _path(self, index: int) -> Path:
        return self._directory / f"{index:020}.snapshot"


class MemberFile(msgspec.Struct, frozen=True):
    """The file's content."""

    directory_id: str
    reach: int = 0  # what the others had decided when this member was taken in in the place of a damaged one


def member_path(metadata: Path) -> Path:
    return metadata.with_name(f"{metadata.name}-member")


def load_member(files: Files, metadata: Path) -> MemberFile | None:
    """What was noted; None where no member was ever formed."""
    path = member_path(metadata)
    member = load_json(files, path, MemberFile)
    if member is None and files.exists(path):
        raise DataDirectoryError(
            f"{path} is damaged. If the cluster has other nodes and they are well, move this node's data directory "
            "away and start it again: it fetches everything from them. Otherwise restore the file from a backup."
        )
    return member


def save_member(files: Files, metadata: Path, member: MemberFile) -> None:
    files.make_directory(metadata.parent)
    save_json(files, member_path(metadata), member)


log = logging.getLogger(__name__)

RESERVE_BYTES: Final = 256 * 1024
_PLENTY: Final = 64  # times as much has to be free for the reserve to be made


class Reserve:
    """Disk space that a member keeps for when there is none left: a file that is removed then.

    Partitions may fill a disk to its last byte. A node that starts then still has to note its term and its
    registration, or no client could read what is there. A few pages are enough for that.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._is_there = files.exists(path)

    def fill(self) -> None:
        """Make the file where it is missing and the disk has plenty of room."""
        if self._is_there:
            return
        try:
            if self._files.free_bytes(self._path.parent) < RESERVE_BYTES * _PLENTY:
                return
            self._files.open(self._path, create=True).write(bytes(RESERVE_BYTES))
            self._is_there = True
        except StorageError as error:
            log.debug("No room could be reserved at %s: %s", self._path, error.message)

    def spend(self) -> bool:
        """Give the room back; whether there was any."""
        if not self._is_there:
            return False
        self._files.remove(self._path)
        self._is_there = False
        return True
