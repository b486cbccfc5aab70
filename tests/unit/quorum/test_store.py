"""What a member keeps: it is there after a crash at any moment, and damage is never taken for a shorter log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.quorum.samples import DIRECTORY, ME, TRIO, command, entries, open_store, snapshot, work

from penstock.clock import SystemClock
from penstock.consensus.quorum.store import QuorumStore
from penstock.consensus.raft.messages import Entry, EntryKind, HardState, Members
from penstock.consensus.records import ClusterCreated, decode_records, encode_records
from penstock.errors import DataDirectoryError, DiskFull, LogFailed, StorageError
from penstock.records import Record, accept_batch, encode_batch
from penstock.storage.config import LogConfig
from penstock.storage.files import read_file, replace_file
from penstock.storage.inspect import dump_records
from penstock.storage.log import Log
from penstock.storage.state_files import encode_checked
from penstock.testing.files import Crash, MemoryFiles


def formed(files: MemoryFiles) -> QuorumStore:
    store = open_store(files)
    store.form(TRIO)
    return store


def facts(store: QuorumStore) -> tuple[object, ...]:
    return store.hard_state, store.snapshot.index, store.snapshot.term, store.snapshot.members, store.entries


def test_an_empty_directory_belongs_to_no_quorum() -> None:
    files = MemoryFiles()
    assert not open_store(files).is_formed
    assert not open_store(files).is_formed
    formed(files)
    store = open_store(files)
    assert store.is_formed
    assert store.snapshot.members == TRIO
    assert store.hard_state == HardState(0, None)


def test_what_was_written_is_there_again() -> None:
    files = MemoryFiles()
    store = formed(files)
    kept = [
        Entry(1, 1, EntryKind.NOTHING, b""),
        command(2),
        Entry(3, 1, EntryKind.MEMBERS, b"", Members({1: "disk-1"}, {4: "disk-4"})),
        command(4, term=7),
    ]
    store.write([work(*kept[:2], term=1), work(*kept[2:], hard_state=HardState(7, 3))])
    for _ in range(2):
        again = open_store(files)
        assert again.hard_state == HardState(7, 3)
        assert again.entries == kept
        again.close()


def test_a_leader_s_entries_take_the_place_of_others() -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, 6), term=1)])
    store.write([work(*entries(4, 5, term=2), term=2)])
    store = open_store(files)
    assert store.entries == [*entries(1, 3), *entries(4, 5, term=2)]
    store.write([work(*entries(6, 9, term=2)), work(*entries(7, 7, term=3), term=3)])
    assert open_store(files).entries == [*entries(1, 3), *entries(4, 6, term=2), command(7, 3)]


def test_a_person_can_read_the_entries() -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(Entry(1, 5, EntryKind.NOTHING, b""), command(2, 5, "abc"), term=5)])
    found = list(dump_records(files, DIRECTORY))
    assert [facts.record.offset for facts in found] == [0, 1]
    assert [facts.batch.header.leader_epoch for facts in found] == [5, 5]
    assert found[0].record.key == b"nothing"
    assert found[1].record.key is None
    assert found[1].record.value == b'[{"type":"ClusterCreated","cluster_id":"abc"}]'


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_stands_for_the_entries_before_it() -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, 10), term=1)])
    store.save_snapshot(snapshot(8))
    again = open_store(files)
    assert again.snapshot == snapshot(8)
    assert again.entries == entries(9, 10)


def test_a_damaged_snapshot_is_made_up_for_by_the_one_before_it() -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, 10), term=1)])
    store.save_snapshot(snapshot(5))
    store.save_snapshot(snapshot(8))
    store.write([work(*entries(11, 12))])
    files.flip_bit(DIRECTORY / f"{8:020}.snapshot", 40)
    again = open_store(files)
    assert again.snapshot == snapshot(5)
    assert again.entries == entries(6, 12)
    files.flip_bit(DIRECTORY / f"{5:020}.snapshot", 40)
    with pytest.raises(DataDirectoryError, match="no snapshot in it is whole"):
        open_store(files)


def test_a_leader_s_snapshot_takes_the_place_of_a_shorter_log() -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, 3), term=1)])
    store.write([work(*entries(101, 103, term=2), installed=snapshot(100, 2), term=2)])
    again = open_store(files)
    assert again.snapshot == snapshot(100, 2)
    assert again.entries == entries(101, 103, term=2)


def test_a_leader_s_snapshot_takes_the_place_of_another_history() -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, 20), term=1)])
    store.write([work(installed=snapshot(10, 2), term=2)])
    again = open_store(files)
    assert again.snapshot == snapshot(10, 2)
    assert again.entries == []
    again.write([work(*entries(11, 12, term=2))])
    assert open_store(files).entries == entries(11, 12, term=2)


def test_a_leader_s_snapshot_keeps_what_follows_it_in_the_same_history() -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, 20), term=1)])
    store.write([work(installed=snapshot(10), term=2)])
    assert open_store(files).entries == entries(11, 20)


def test_a_damaged_snapshot_of_a_leader_cannot_be_made_up_for() -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, 3), term=1)])
    store.write([work(installed=snapshot(100, 2), term=2)])
    files.flip_bit(DIRECTORY / f"{100:020}.snapshot", 30)
    with pytest.raises(DataDirectoryError):
        open_store(files)


def test_a_snapshot_from_before_a_leader_s_does_not_make_up_for_it_either() -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, 3), term=1)])
    first = read_file(files, DIRECTORY / f"{0:020}.snapshot")
    assert first is not None
    store.write([work(installed=snapshot(100, 2), term=2)])
    replace_file(files, DIRECTORY / f"{0:020}.snapshot", first)  # as if its removal had not been synced
    assert open_store(files).snapshot.index == 100
    files.flip_bit(DIRECTORY / f"{100:020}.snapshot", 30)
    with pytest.raises(DataDirectoryError, match="entries before it"):
        open_store(files)


@pytest.mark.parametrize("last", [0, 3])
def test_lost_snapshots_do_not_make_a_voter_a_quorum_of_its_own(last: int) -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, last), hard_state=HardState(1, 2))])
    files.remove(DIRECTORY / f"{0:020}.snapshot")
    with pytest.raises(DataDirectoryError, match="snapshots are gone"):
        open_store(files)


# -- damage ------------------------------------------------------------------------------------------------------------


def files_with_data() -> MemoryFiles:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, 6), term=1)])
    store.save_snapshot(snapshot(2))
    store.write([work(*entries(7, 8, term=3), hard_state=HardState(3, 2))])
    return files


def bits() -> Iterator[tuple[str, int]]:
    files = files_with_data()
    for entry in sorted(files.entries(DIRECTORY)):
        if entry.name != "reserve":  # room, and nothing in it
            yield from ((entry.name, position) for position in range(entry.size))


def test_no_flipped_bit_goes_unnoticed() -> None:
    """Whichever bit of whichever file is damaged: the member has everything it had, or refuses to start."""
    whole = facts(open_store(files_with_data()))
    refused = 0
    for name, position in bits():
        files = files_with_data()
        files.flip_bit(DIRECTORY / name, position, bit=position % 8)
        try:
            store = open_store(files)
        except DataDirectoryError:
            refused += 1
            continue
        found = facts(store)
        if found[1] == 0:  # went back to the first snapshot, and has all entries since
            assert (found[0], found[4]) == (whole[0], [*entries(1, 6), *entries(7, 8, term=3)])
        else:
            assert found == whole, f"bit in {name} at {position}"
    assert refused > 500


@pytest.mark.parametrize("cut_bytes", [1, 50, 120, 400])
def test_acknowledged_entries_are_missed_when_the_log_is_cut(cut_bytes: int) -> None:
    files = files_with_data()
    file = files.open(DIRECTORY / f"{0:020}.log")
    file.truncate(file.size - cut_bytes)
    with pytest.raises(DataDirectoryError, match="acknowledged"):
        open_store(files)


@pytest.mark.parametrize("name", ["hard-state", "promised"])
def test_a_lost_file_is_missed(name: str) -> None:
    files = files_with_data()
    files.remove(DIRECTORY / name)
    with pytest.raises(DataDirectoryError, match=name):
        open_store(files)


def test_what_a_later_version_wrote_is_not_taken_for_damage() -> None:
    files = files_with_data()
    replace_file(files, DIRECTORY / f"{2:020}.snapshot", encode_checked(b'{"index":2,"shape":"new"}'))
    with pytest.raises(DataDirectoryError, match="version"):
        open_store(files)


def test_a_torn_tail_that_nobody_was_told_of_is_cut() -> None:
    files = files_with_data()
    files.open(DIRECTORY / f"{0:020}.log").write(b"half a batch")
    store = open_store(files)
    assert store.entries == [*entries(3, 6), *entries(7, 8, term=3)]


# -- crashes -----------------------------------------------------------------------------------------------------------


class Story:
    """A life of writes; what was acknowledged, and what may be there besides."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.hard_states = [HardState()]
        self.logs: list[tuple[int, list[Entry]]] = [(0, [])]  # what the log may be, from the acknowledged one on

    def run(self) -> None:
        store = open_store(self.files)
        store.form(TRIO)
        self.keep(store, 0, entries(1, 4), term=1)
        self.keep(store, 0, entries(1, 9), term=1, of=entries(5, 9))
        self.keep(store, 0, [*entries(1, 6), *entries(7, 7, term=2)], term=2, of=entries(7, 7, term=2))
        self.logs.append((5, [command(6), command(7, 2)]))
        store.save_snapshot(snapshot(5))
        del self.logs[:-1]
        self.keep(store, 5, [command(6), *entries(7, 11, term=2)], term=2, of=entries(8, 11, term=2))
        after = entries(31, 33, term=4)
        self.hard_states.append(HardState(4, None))
        self.logs += [(30, []), (30, after)]
        store.write([work(*after, installed=snapshot(30, 4), hard_state=HardState(4, None))])
        del self.logs[:-1], self.hard_states[:-1]
        store.close()

    def keep(
        self, store: QuorumStore, base: int, log: list[Entry], *, term: int, of: list[Entry] | None = None
    ) -> None:
        self.hard_states.append(HardState(term, None))
        self.logs.append((base, log))
        store.write([work(*(log if of is None else of), hard_state=HardState(term, None))])
        del self.logs[:-1], self.hard_states[:-1]

    def check(self, store: QuorumStore) -> None:
        if not store.is_formed:
            assert self.logs == [(0, [])]
            assert self.hard_states == [HardState()]
            return
        assert store.hard_state in self.hard_states
        found = store.entries
        # Of what was being written, any part may be there that is a log: what was acknowledged always is.
        for base, log in self.logs:
            if store.snapshot.index == base and found == log[: len(found)]:
                break
        else:
            raise AssertionError(f"{store.snapshot.index} {found} is none of {self.logs}")
        base, acknowledged = self.logs[0]
        if len(self.logs) == 1:
            assert (store.snapshot.index, found) == (base, acknowledged)
        elif store.snapshot.index == base:
            new = self.logs[1][1]
            shared = next((at for at, (a, b) in enumerate(zip(acknowledged, new, strict=False)) if a != b), None)
            assert len(found) >= (len(acknowledged) if shared is None else shared)


@pytest.mark.parametrize("keeps_unsynced", [False, True])
def test_a_crash_at_any_step_loses_nothing_that_was_acknowledged(keeps_unsynced: bool) -> None:
    dry = MemoryFiles()
    Story(dry).run()
    for step in range(1, dry.steps + 1):
        for seed in range(3):
            files = MemoryFiles(seed=seed)
            story = Story(files)
            files.crash_at = step
            with pytest.raises(Crash):
                story.run()
            files.crash(keeps_unsynced=keeps_unsynced)
            store = open_store(files)
            story.check(store)
            if not store.is_formed:
                store.form(TRIO)
            following = store.last_index + 1
            store.write([work(command(following, 9), hard_state=HardState(9, 1))])
            again = open_store(files)
            assert again.entries[-1] == command(following, 9)
            assert again.hard_state == HardState(9, 1)


def test_a_crash_while_starting_changes_nothing() -> None:
    for step in range(1, 40):
        files = files_with_data()
        files.open(DIRECTORY / f"{0:020}.log").write(b"half a batch")
        files.crash_at = files.steps + step
        try:
            open_store(files)
        except Crash:
            files.crash()
        files.crash_at = None
        assert open_store(files).entries == [*entries(3, 6), *entries(7, 8, term=3)]


# -- disks that refuse -------------------------------------------------------------------------------------------------


def test_a_write_that_found_no_room_can_be_tried_again() -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, 3), term=1)])
    wanted = work(*entries(3, 30, term=2), hard_state=HardState(2, None))
    files.capacity_bytes = sum(entry.size for entry in files.entries(DIRECTORY))
    store.write([work(hard_state=HardState(1, 1))])  # spends the room that was kept for this
    assert not files.exists(DIRECTORY / "reserve")
    refused = 0
    for room in range(0, 3_000, 250):
        files.capacity_bytes = sum(entry.size for entry in files.entries(DIRECTORY)) + room
        try:
            store.write([wanted])
        except DiskFull:
            refused += 1
    assert refused > 3
    files.capacity_bytes = None
    store.write([wanted])
    assert open_store(files).entries == [*entries(1, 2), *entries(3, 30, term=2)]


@pytest.mark.parametrize("seed", range(20))
def test_a_promise_that_a_failed_sync_left_is_on_disk_before_it_is_believed(seed: int) -> None:
    files = MemoryFiles(seed=seed)
    store = formed(files)
    store.write([work(*entries(1, 2), term=1)])
    store.write([work(*entries(3, 4))])
    refuse(files, "sync promised")
    with pytest.raises(StorageError):
        store.write([work(*entries(5, 6))])
    files = files.successor(keeps_unsynced=True)
    assert open_store(files).last_index == 6  # what it says from now on counts on both entries
    files = files.successor(keeps_unsynced=False)
    file = files.open(DIRECTORY / f"{0:020}.log")
    file.truncate(file.size - 1)
    with pytest.raises(DataDirectoryError, match="acknowledged"):
        open_store(files)


def refuse(files: MemoryFiles, call: str) -> None:
    """Refuse the next call of this name, and only that one."""
    original = files.call

    def refusing(action: str, path: Path) -> None:
        if f"{action} {path.name}" == call:
            files.call = original  # type: ignore[method-assign]
            raise StorageError(f"Cannot {action} {path}: the test disk fails.")
        original(action, path)

    files.call = refusing  # type: ignore[method-assign]


def test_a_sync_that_fails_is_told() -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, 3), term=1)])
    files.is_failing_syncs = True
    with pytest.raises(LogFailed):
        store.write([work(command(4))])
    files.is_failing_syncs = False
    with pytest.raises(LogFailed):
        store.write([work(command(4))])


# -- directories from before there was a quorum ------------------------------------------------------------------------


def write_old(files: MemoryFiles, *batches: list[ClusterCreated]) -> None:
    log = Log.open(files, DIRECTORY, LogConfig())
    for records in batches:
        values = [Record(at, 5, None, encode_records([record])[1:-1]) for at, record in enumerate(records)]
        batch = memoryview(encode_batch(values))
        log.append(batch, accept_batch(batch), leader_epoch=0)
    log.close()


def test_a_directory_from_before_is_a_quorum_of_one() -> None:
    files = MemoryFiles()
    write_old(files, [ClusterCreated(cluster_id="a"), ClusterCreated(cluster_id="b")], [ClusterCreated(cluster_id="c")])
    for _ in range(2):
        store = open_store(files)
        assert store.is_formed
        assert store.snapshot.members == Members({ME.node_id: ME.directory_id})
        assert [decode_records(entry.data) for entry in store.entries] == [
            [ClusterCreated(cluster_id=text)] for text in "abc"
        ]
        assert {entry.term for entry in store.entries} == {0}
    store.write([work(command(4), term=1)])
    assert open_store(files).entries[3] == command(4)


def test_a_snapshot_from_before_is_read() -> None:
    files = MemoryFiles()
    write_old(files, [ClusterCreated(cluster_id=text) for text in "abcde"])
    body = encode_records([ClusterCreated(cluster_id="d")])
    replace_file(files, DIRECTORY / f"{4:020}.snapshot", encode_checked(body))
    for _ in range(2):
        store = open_store(files)
        assert decode_records(store.snapshot.data) == [ClusterCreated(cluster_id="d")]
        assert (store.snapshot.index, store.snapshot.term) == (4, 0)
        assert [decode_records(entry.data) for entry in store.entries] == [[ClusterCreated(cluster_id="e")]]


def test_a_crash_while_taking_over_a_directory_from_before_loses_nothing() -> None:
    for step in range(1, 30):
        files = MemoryFiles(seed=step)
        write_old(files, [ClusterCreated(cluster_id=text) for text in "abc"])
        files.crash_at = files.steps + step
        try:
            QuorumStore.open(files, DIRECTORY, ME, SystemClock())
        except Crash:
            files.crash()
        files.crash_at = None
        assert len(open_store(files).entries) == 3
