"""An encrypted file does what a plain one does, loses no more in a crash, and shows nothing on the disk."""

from __future__ import annotations

import random
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.storage.sealed import master_keys, seal

from penstock.errors import EncryptionKeyError, StorageError, UnreadableBytes
from penstock.storage.encryption.directory import rotate
from penstock.storage.encryption.files import EncryptedFiles, read_slots
from penstock.storage.encryption.format import FRAME_OVERHEAD, HEADER_BYTES, PAGE_BYTES, PAGE_HEAD_BYTES
from penstock.storage.files import File, read_around
from penstock.testing.files import Crash, MemoryFiles

DIRECTORY = Path("/data")
PATH = DIRECTORY / "file"
SIZES = st.sampled_from([1, 7, 100, 1_000, 5_000, PAGE_BYTES - 80, PAGE_BYTES, 3 * PAGE_BYTES + 11])


def _content(size: int, number: int) -> bytes:
    return random.Random(number).randbytes(size)


class FileAgainstTwin(RuleBasedStateMachine):
    """Any order of calls, with an encrypted file on a faulty disk next to a bytearray."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        self.disk = MemoryFiles(seed=seed)
        self.disk.make_directory(DIRECTORY)
        self.files = seal(self.disk)
        self.path = PATH
        self.file: File = self.files.open(self.path, create=True)
        self.disk.sync_directory(DIRECTORY)
        self.twin = bytearray()
        self.durable = b""
        self.kept = 0  # this much of what is durable was not cut since
        self.patched: list[tuple[int, int]] = []  # since the last sync

    def _next(self, size: int) -> bytes:
        self.number += 1
        return _content(size, self.number)

    @rule(size=SIZES)
    def write(self, size: int) -> None:
        data = self._next(size)
        self.file.write(data)
        self.twin += data

    @rule(where=st.floats(0, 1), size=SIZES)
    def read(self, where: float, size: int) -> None:
        position = int(where * len(self.twin))
        assert self.file.read(position, size) == self.twin[position : position + size]

    @rule(where=st.floats(0, 1))
    def truncate(self, where: float) -> None:
        size = int(where * len(self.twin))
        self.file.truncate(size)
        del self.twin[size:]
        self.kept = min(self.kept, size)

    @precondition(lambda self: len(self.twin) > 0)
    @rule(where=st.floats(0, 1), size=st.sampled_from([1, 4, 61, 5_000]), is_same=st.booleans())
    def patch(self, where: float, size: int, is_same: bool) -> None:
        position = int(where * (len(self.twin) - 1))
        size = min(size, len(self.twin) - position)
        data = bytes(self.twin[position : position + size]) if is_same else self._next(size)
        self.file.patch(position, data)
        self.twin[position : position + size] = data
        self.patched.append((position, position + size))

    @rule()
    def sync(self) -> None:
        self.file.sync()
        self.durable, self.kept, self.patched = bytes(self.twin), len(self.twin), []

    @rule()
    def reopen(self) -> None:
        self.file = self.files.open(self.path)

    @rule()
    def rename(self) -> None:
        target = DIRECTORY / ("other" if self.path == PATH else "file")
        self.files.rename(self.path, target)
        self.files.sync_directory(DIRECTORY)
        self.path = target

    @rule()
    def die(self) -> None:
        """The process is killed: what it wrote stays."""
        self.disk.crash(keeps_unsynced=True)
        self.file = self.files.open(self.path)

    @rule()
    def lose_power(self) -> None:
        self.disk.crash()
        self._open_survivor()

    @rule(
        size=SIZES, step=st.integers(1, 6), where=st.floats(0, 1), what=st.sampled_from(["write", "truncate", "patch"])
    )
    def lose_power_within(self, size: int, step: int, where: float, what: str) -> None:
        """Power goes while something is written: at one of its steps, with a part of it done."""
        position = int(where * len(self.twin))
        self.disk.crash_at = self.disk.steps + step
        try:
            if what == "write":
                self.file.write(self._next(size))
            elif what == "truncate":
                self.kept = min(self.kept, position)
                self.file.truncate(position)
            else:
                data = self._next(min(size, len(self.twin) - position))
                self.patched.append((position, position + len(data)))
                if data:
                    self.file.patch(position, data)
        except Crash:
            pass
        self.disk.crash()
        self._open_survivor()

    def _open_survivor(self) -> None:
        """What was synced, and neither cut nor patched since, is there."""
        self.file = self.files.open(self.path)
        kept = self.durable[: self.kept]
        found = self.file.read(0, self.kept)
        assert len(found) == self.kept
        expected = bytearray(kept)
        for start, end in self.patched:
            expected[start:end] = found[start:end][: max(len(expected) - start, 0)]
        assert found == expected
        try:
            content = self.file.read(0, self.file.size)
        except StorageError:  # what was written behind it came through in parts
            content = found
        # As recovery does: what was not synced stays as far as it is what was written, and the rest is cut.
        good = next((at for at, (one, other) in enumerate(zip(content, self.twin, strict=False)) if one != other), None)
        content = content[: max(self.kept, min(len(content), len(self.twin)) if good is None else good)]
        self.file.truncate(len(content))
        self.file.sync()
        self.twin, self.durable = bytearray(content), bytes(content)
        self.kept, self.patched = len(content), []

    @invariant()
    def sizes_agree(self) -> None:
        if hasattr(self, "file"):
            assert self.file.size == len(self.twin)
            assert [entry.size for entry in self.files.entries(DIRECTORY)] == [len(self.twin)]


FileAgainstTwin.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestFileAgainstTwin = FileAgainstTwin.TestCase


def _write_sample(disk: MemoryFiles) -> tuple[EncryptedFiles, bytes]:
    disk.make_directory(DIRECTORY)
    files = seal(disk)
    file = files.open(PATH, create=True)
    content = b""
    for number in range(60):
        data = _content(700, number)
        file.write(data)
        content += data
    file.sync()
    return files, content


def test_no_flipped_bit_changes_what_is_read() -> None:
    """A flipped bit is harmless, because there is another copy, or makes its frame unreadable."""
    disk = MemoryFiles()
    files, content = _write_sample(disk)
    found = 0
    for place in range(0, disk.size(PATH), 307):
        disk.flip_bit(PATH, place, place % 8)
        file = files.open(PATH)
        around = read_around(file, 0, len(content))
        wrong = sum(one != other for one, other in zip(around, content, strict=False))
        assert wrong <= 1_400, f"a bit at {place} hides more than the frames around it"
        found += around != content
        disk.flip_bit(PATH, place, place % 8)
    assert found > disk.size(PATH) // 307 // 2
    assert files.open(PATH).read(0, len(content)) == content


def test_a_frame_of_another_place_is_refused() -> None:
    disk = MemoryFiles()
    files, content = _write_sample(disk)
    with closing(disk.open(PATH)) as raw:
        first = HEADER_BYTES + PAGE_HEAD_BYTES
        second = first + 700 + FRAME_OVERHEAD
        raw.patch(first, raw.read(second, 700 + FRAME_OVERHEAD))
    file = files.open(PATH)
    with pytest.raises(UnreadableBytes):
        file.read(0, 700)
    assert file.read(700, len(content)) == content[700:]


def test_no_nonce_comes_twice_when_a_place_is_written_again() -> None:
    disk = MemoryFiles()
    disk.make_directory(DIRECTORY)
    file = seal(disk).open(PATH, create=True)
    file.write(b"first")
    place = disk.size(PATH)
    seen = set()
    for _ in range(200):
        file.write(b"the same bytes")
        with closing(disk.open(PATH)) as raw:
            seen.add(raw.read(place + 6, 12))
        file.truncate(5)
    assert len(seen) == 200


def test_a_bad_sector_in_the_header_costs_no_more_than_its_frames() -> None:
    disk = MemoryFiles()
    files, content = _write_sample(disk)
    disk.break_sector(PATH, 0)
    behind = PAGE_BYTES  # the next page begins before that
    assert files.open(PATH).read(behind, 5_000) == content[behind : behind + 5_000]


def test_a_wrong_key_is_refused_and_a_missing_one_is_named() -> None:
    disk = MemoryFiles()
    _write_sample(disk)
    with pytest.raises(EncryptionKeyError, match="master key 1"):
        EncryptedFiles(disk, master_keys(2)).open(PATH)


@pytest.mark.parametrize("crash_at", range(1, 9))
def test_a_rotation_can_be_stopped_anywhere(crash_at: int) -> None:
    disk = MemoryFiles(seed=crash_at)
    files, content = _write_sample(disk)
    disk.sync_directory(DIRECTORY)
    disk.crash_at = disk.steps + crash_at
    with suppress(Crash):
        rotate(files, DIRECTORY, master_keys(1, 2))
    disk.crash()
    both = EncryptedFiles(disk, master_keys(1, 2))
    assert both.open(PATH).read(0, len(content)) == content
    done = rotate(both, DIRECTORY, master_keys(1, 2))
    assert done.versions_left == [2]
    assert EncryptedFiles(disk, master_keys(2)).open(PATH).read(0, len(content)) == content
    with closing(disk.open(PATH)) as raw:
        assert [slot and slot.key.version for slot in read_slots(raw)] == [2, 2, 2]
