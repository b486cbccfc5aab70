"""What a member of the quorum keeps: its vote, its entries and its snapshots.

The directory holds an ordinary log of entries, ``hard-state`` (term and vote), ``promised`` (how far the log was
acknowledged) and snapshots. Whatever `write` was given is on disk when it returns, and no message speaks of it before.
Every byte has a checksum. What is damaged is not guessed: the member never says anything again, for one that has
forgotten what it said could elect a leader that lacks committed entries. Where other nodes may take this one in as
another member, the store is one without files (``damage``) until they have, and the damaged directory is put aside
then, never removed (docs/decisions/0030). Two things are repaired: a torn tail that was never acknowledged, and a
damaged snapshot if the one before it and the log behind that are whole.

Calls may come from any thread, one at a time. Format: docs/formats/metadata.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from penstock.clock import Clock
from penstock.consensus.quorum.store_files import (
    MemberFile,
    PromisedIndex,
    Reserve,
    Snapshots,
    decode_entries,
    encode_entry,
    load_member,
    save_member,
)
from penstock.consensus.raft.core import Effects
from penstock.consensus.raft.messages import Entry, HardState, Member, Members, Snapshot
from penstock.errors import (
    CorruptRecords,
    DamagedMetadata,
    DamagedRecords,
    DataDirectoryError,
    DiskFull,
    StorageError,
)
from penstock.records import parse_header
from penstock.storage.config import UNLIMITED, LogConfig
from penstock.storage.files import Files, write_again
from penstock.storage.log import Log
from penstock.storage.state_files import load_json, save_json

log = logging.getLogger(__name__)

_CONFIG: Final = LogConfig(segment_bytes=8 * 1024 * 1024, retention_ms=UNLIMITED, is_deleting=False)
_HARD_STATE_FILE: Final = "hard-state"
_RESERVE_FILE: Final = "reserve"
_PROMISED_FILE: Final = "promised"
_NOBODY: Final = Members({})


class _StoredVote(msgspec.Struct, frozen=True):
    """The hard state as the file says it."""

    term: int
    voted_for: int | None


class QuorumStore:
    """A member's directory. Open it with `QuorumStore.open`."""

    def __init__(
        self, files: Files, directory: Path, member: Member, clock: Clock, damage: DamagedMetadata | None = None
    ) -> None:
        self.member = member
        self.damage = damage  # why this node has to be taken in as another member
        self.reach = 0  # what has to be applied before this node knows which replicas it has
        self.directory = directory
        self.hard_state = HardState()
        self.snapshot = Snapshot(0, 0, _NOBODY, b"")
        self.entries: list[Entry] = []  # as they were found; later ones are only on disk
        self.is_formed = False
        self._files = files
        self._clock = clock
        if damage is None:
            self._open_files()
            self._load()

    def _open_files(self) -> None:
        files, directory = self._files, self.directory
        self._snapshots = Snapshots(files, directory)
        self._log = Log.open(files, directory, _CONFIG)
        self._log.forget_doubt()  # the line of what was promised tells more
        self._promised = PromisedIndex(files, directory / _PROMISED_FILE)
        self._reserve = Reserve(files, directory / _RESERVE_FILE)

    @classmethod
    def open(
        cls,
        files: Files,
        directory: Path,
        member: Member,
        clock: Clock,
        *,
        replace_id: Callable[[], str] | None = None,
    ) -> QuorumStore:
        """Open or create a member's directory; `DataDirectoryError` if what is there cannot be trusted.

        With ``replace_id``, what is damaged gives a store without files and with another directory id, for others to
        take in. ``member`` is who the node is as long as no other id is noted.
        """
        known = load_member(files, directory)
        if known is not None:
            member = Member(member.node_id, known.directory_id)
        try:
            store = cls._open(files, directory, member, clock)
            if known is not None and not store.is_formed:
                raise _refuse(directory, "it is gone")
        except DamagedMetadata as error:
            if replace_id is None:
                raise
            return cls(files, directory, Member(member.node_id, replace_id()), clock, error)
        if known is not None:
            store.reach = known.reach
        elif store.is_formed:
            save_member(files, directory, MemberFile(member.directory_id))
        return store

    @classmethod
    def _open(cls, files: Files, directory: Path, member: Member, clock: Clock) -> QuorumStore:
        try:
            return cls(files, directory, member, clock)
        except StorageError as error:
            raise DataDirectoryError(f"The metadata in {directory} cannot be read. {error.message}") from error
        except msgspec.MsgspecError as error:  # the checksum is right, so it was meant like that
            raise DataDirectoryError(
                f"The metadata in {directory} cannot be understood: {error}. Use the version of Penstock that wrote "
                "it, or a later one."
            ) from error

    def __repr__(self) -> str:
        return f"<QuorumStore {self.directory} of {self.member.node_id}, {self.snapshot.index}..{self.last_index}>"

    @property
    def last_index(self) -> int:
        return 0 if self.damage is not None else max(self._log.end_offset, self.snapshot.index)

    def close(self) -> None:
        if self.damage is None:
            self._log.close()

    # -- writing ------------------------------------------------------------------------------------------------------

    def form(self, members: Members, reach: int = 0) -> None:
        """Begin as one of these members, with an empty log. ``reach`` is how much the others have decided already."""
        assert not self.is_formed, "a member begins once"
        noted = MemberFile(self.member.directory_id)
        if self.damage is not None:
            # First of all: whatever a crash leaves of the rest, the member of old is not heard of again.
            noted, self.reach = MemberFile(self.member.directory_id, reach), reach
            save_member(self._files, self.directory, noted)
            self._put_aside(self.damage)
            self._open_files()
            self.damage = None
        self._begin(Snapshot(0, 0, members, b""))
        save_member(self._files, self.directory, noted)  # before it says anything

    def _put_aside(self, damage: DamagedMetadata) -> None:
        """Keep what is damaged under another name: it may be all that an operator has to repair a cluster by hand."""
        if not self._files.exists(self.directory):
            return  # an earlier try came so far
        names = (self.directory.with_name(f"{self.directory.name}-damaged-{number}") for number in count(1))
        aside = next(path for path in names if not self._files.exists(path))
        self._files.rename(self.directory, aside)
        self._files.sync_directory(self.directory.parent)
        log.error("%s Others have taken this node in as a new member; what was damaged is kept in %s.", damage, aside)

    def write(self, works: Sequence[Effects]) -> None:
        """Make everything that these effects want kept durable, in their order and with one sync.

        What fails with `DiskFull` may be tried again as it is, and is, once, with the room that is kept for that.
        """
        try:
            self._write(works)
            self._reserve.fill()
        except DiskFull:
            if not self._reserve.spend():
                raise
            self._write(works)

    def _write(self, works: Sequence[Effects]) -> None:
        hard_states = [work.hard_state for work in works if work.hard_state is not None]
        if hard_states:
            # The last may be ahead of entries that are not written yet; it is not behind any.
            self._save_hard_state(hard_states[-1])
        is_written = False
        for work in works:
            if work.installed is not None:
                self._install(work.installed)
            for entry in work.entries:
                if entry.index > self.snapshot.index:
                    self._append(entry)
                    is_written = True
        if is_written:
            self._log.sync()
            self._promised.note(self._log.end_offset)

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of what is in the log, and forget the entries before the last one but this."""
        before = self.snapshot
        if snapshot.index <= before.index:
            return
        assert snapshot.index <= self._log.end_offset, "a snapshot stands for entries that are on this disk"
        self._snapshots.save(snapshot)
        self.snapshot = snapshot
        self._snapshots.remove_before(before.index)
        self._log.delete_files(self._log.trim(before.index))

    def _append(self, entry: Entry) -> None:
        if entry.index <= self._log.end_offset:
            self._cut(entry.index)
        assert entry.index == self._log.end_offset + 1, "entries follow on each other"
        batch = memoryview(encode_entry(entry, self._clock.now_ms()))
        self._log.append(batch, parse_header(batch), leader_epoch=entry.term)

    def _cut(self, index: int) -> None:
        """Remove the entries from an index on."""
        if (self._promised.index or 0) >= index:
            self._promised.note(index - 1)
        self._log.truncate(index - 1)
        assert self._log.end_offset == index - 1, "entries from before there was a quorum are committed"

    def _install(self, snapshot: Snapshot) -> None:
        """Put a leader's snapshot in the place of the log, or of its beginning if it is of the same history."""
        if snapshot.index <= self.snapshot.index:
            return
        self._snapshots.save(snapshot)
        if self._align(snapshot):
            self._snapshots.remove_before(snapshot.index)
        self.snapshot = snapshot  # last: what found no room is tried again from the beginning

    def _save_hard_state(self, hard_state: HardState) -> None:
        save_json(self._files, self.directory / _HARD_STATE_FILE, _StoredVote(*hard_state))
        self.hard_state = hard_state

    def _align(self, snapshot: Snapshot) -> bool:
        """Begin the log anew behind a snapshot, unless it is of the same history; whether it did."""
        index, promised = snapshot.index, self._promised.index or 0
        if self._log.start_offset >= index:
            return False
        if self._log.end_offset >= index:
            if self._term_at(index) == snapshot.term:
                return False
            if promised > index:
                self._promised.note(index)
        elif promised > index:
            raise self._refuse(
                f"its log ends at entry {self._log.end_offset}, but it has acknowledged up to {promised}"
            )
        self._log.truncate(self._log.start_offset)
        self._log.save_start(index)
        self._log = Log.open(self._files, self.directory, _CONFIG)
        return True

    def _term_at(self, index: int) -> int:
        try:
            batch = next(self._log.batches(index - 1), None)
            found = [] if batch is None else self._decode(batch.read())
            return next(entry.term for entry in found if entry.index == index)
        except (DamagedRecords, StopIteration):
            raise self._refuse(f"its log is damaged: entry {index} is missing") from None

    # -- opening ------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        found = self._find_snapshot()
        vote = self._load_hard_state()
        is_old = found is None or found[1]
        if is_old and vote is not None and vote.term > 0:
            raise self._refuse("its snapshots are gone")
        if found is None and not self._log.end_offset:
            return  # an empty directory, or one whose forming was not finished
        myself = Members({self.member.node_id: self.member.directory_id})
        self.snapshot = Snapshot(0, 0, myself, b"") if found is None else found[0]
        if self._log.start_offset > self.snapshot.index:
            raise self._refuse("its newest snapshot is damaged or gone, and so are the entries before it")
        self._align(self.snapshot)
        self.entries = self._load_entries()
        if is_old:
            # Written by a node that was a cluster of its own: it is a quorum of one.
            self._begin(self.snapshot)
        elif vote is None:
            raise self._refuse(f"its file {_HARD_STATE_FILE!r} is gone, so it has forgotten its votes")
        else:
            self.hard_state = vote
        self._check_promised()
        self._write_again()
        self.is_formed = True

    def _write_again(self) -> None:
        """Act on nothing that was only read: the process before may have stopped because a sync of it failed."""
        for name in (_HARD_STATE_FILE, _PROMISED_FILE):
            write_again(self._files, self.directory / name)

    def _begin(self, snapshot: Snapshot) -> None:
        self._save_hard_state(HardState())
        self._promised.note(self._log.end_offset)
        self._snapshots.save(snapshot)  # last: this is what makes it a member's directory
        self.snapshot = snapshot
        self.is_formed = True

    def _find_snapshot(self) -> tuple[Snapshot, bool] | None:
        """The newest whole snapshot, and whether it is from before there was a quorum."""
        myself = Members({self.member.node_id: self.member.directory_id})
        indexes = self._snapshots.indexes()
        for index in reversed(indexes):
            found = self._snapshots.load(index, myself)
            if found is not None:
                return found
            log.error("The metadata snapshot of index %d in %s is damaged.", index, self.directory)
        if indexes:
            raise self._refuse("no snapshot in it is whole")
        return None

    def _load_hard_state(self) -> HardState | None:
        path = self.directory / _HARD_STATE_FILE
        vote = load_json(self._files, path, _StoredVote)
        if vote is not None:
            return HardState(vote.term, vote.voted_for)
        if self._files.exists(path):
            raise self._refuse(f"its file {_HARD_STATE_FILE!r} is damaged, so it has forgotten its votes")
        return None

    def _load_entries(self) -> list[Entry]:
        entries: list[Entry] = []
        next_index, term = self.snapshot.index + 1, self.snapshot.term
        try:
            for batch in self._log.batches(self.snapshot.index):
                for entry in self._decode(batch.read()):
                    if entry.index < next_index:
                        continue
                    if entry.index != next_index or entry.term < term:
                        self._cut_unpromised(next_index)
                        return entries
                    entries.append(entry)
                    next_index, term = entry.index + 1, entry.term
        except DamagedRecords:
            self._cut_unpromised(next_index)
            return entries
        if next_index != self.last_index + 1:
            raise self._refuse(f"its log is damaged from entry {next_index} on")
        return entries

    def _cut_unpromised(self, index: int) -> None:
        """Cut the log before an entry that is missing or damaged, if no other member was told of it.

        A power cut can keep a later part of a write and lose an earlier one.
        """
        if self._promised.index is None or self._promised.index >= index:
            raise self._refuse(f"its log is damaged: entry {index} is missing")
        self._log.truncate(index - 1)

    def _decode(self, batch: bytes) -> list[Entry]:
        try:
            return decode_entries(batch)
        except CorruptRecords as error:
            raise self._refuse(f"its log is damaged. {error.message}") from error

    def _check_promised(self) -> None:
        promised = self._promised.index
        if promised is None:
            raise self._refuse(f"its file {_PROMISED_FILE!r} is damaged or gone")
        if promised > self.last_index:
            raise self._refuse(
                f"its log ends at entry {self.last_index}, but it has acknowledged entries up to {promised}"
            )
        last_term = self.entries[-1].term if self.entries else self.snapshot.term
        if last_term > self.hard_state.term:
            raise self._refuse(f"it has an entry of term {last_term}, but its vote is of term {self.hard_state.term}")

    def _refuse(self, why: str) -> DamagedMetadata:
        return _refuse(self.directory, why)


def _refuse(directory: Path, why: str) -> DamagedMetadata:
    return DamagedMetadata(
        f"The metadata in {directory} cannot be trusted: {why}. A node that others of its cluster are named to "
        "(--peers or --join) is taken in again by them, once a majority of them is there and one leads. If there are "
        f"no others, restore {directory.parent} from a backup."
    )
