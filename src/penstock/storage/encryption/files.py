"""A file system whose files are encrypted: a decorator of the `Files` port.

What a file is tells its beginning. A file that was written plain stays plain, also when it grows, and is handed out as
it is; files that begin while encryption is on are encrypted, and stay so when it is turned off. Names are not hidden.
"""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.errors import EncryptionKeyError, StorageError
from penstock.storage.encryption.file import EncryptedFile
from penstock.storage.encryption.format import (
    HEADER_BYTES,
    PAGE_BYTES,
    SLOT_BYTES,
    SLOTS_AT,
    Cipher,
    KeySlot,
    decode_slot,
    encode_slot,
    is_torn_header,
)
from penstock.storage.encryption.keys import MasterKeys
from penstock.storage.files import DirectoryEntry, DirectoryLock, File, Files, read_around

_FAR_SLOT_AT: Final = SLOTS_AT[-1]


def read_slots(file: File) -> list[KeySlot | None]:
    """Every copy of a file's key that it has room for, None for one that is damaged; empty for a plain file."""
    places = [at for at in SLOTS_AT if at + SLOT_BYTES <= file.size]
    slots = [decode_slot(read_around(file, at, SLOT_BYTES)) for at in places]
    return slots if any(slots) else []


class EncryptedFiles:
    """Another file system, with files that only the master keys can read."""

    def __init__(
        self, inner: Files, keys: MasterKeys, *, is_encrypting: bool = True, is_repairing: bool = True
    ) -> None:
        self.inner = inner
        self._is_repairing = is_repairing  # finishes what a crash interrupted; a mere reader leaves that as it is
        self.keys = keys  # changed by a rotation, as a whole
        self.is_encrypting = is_encrypting  # new files; what is encrypted already stays so
        self.slot_lock = threading.Lock()  # of key slots and lengths of files

    def open(self, path: Path, *, create: bool = False) -> File:
        return self._open(path, create=create, repairs=self._is_repairing)

    def _open(self, path: Path, *, create: bool, repairs: bool) -> File:
        inner = self.inner.open(path, create=create)
        if inner.size == 0 and not self.is_encrypting:
            return inner
        cipher, beginning = None, b""
        if inner.size:
            unreadable: list[int] = []
            beginning = read_around(
                inner, 0, PAGE_BYTES, unreadable.append
            )  # most files are small: this is all of them
            head = beginning[:HEADER_BYTES]
            if unreadable:
                beginning = b""
            slots = [decode_slot(head[at : at + SLOT_BYTES]) for at in SLOTS_AT[:-1]]
            if not any(slots) and inner.size >= _FAR_SLOT_AT + SLOT_BYTES:
                slots = [decode_slot(read_around(inner, _FAR_SLOT_AT, SLOT_BYTES))]
            if not any(slots) and not is_torn_header(head):
                return inner
            # A shorter one was never synced: the first content comes in one write with the whole header.
            if any(slots) and inner.size >= HEADER_BYTES:
                cipher = self.unwrap(path, [slot for slot in slots if slot is not None])
        return EncryptedFile(inner, path, cipher, self.make_slot, self.slot_lock, beginning=beginning, repairs=repairs)

    def unwrap(self, path: Path, slots: list[KeySlot]) -> Cipher:
        """The key of a file. While keys are rotated its slots may differ, and any of them will do."""
        refused: EncryptionKeyError | None = None
        for slot in slots:
            try:
                return Cipher(slot.file_id, self.keys.unwrap(slot.key, path))
            except EncryptionKeyError as error:
                refused = refused or error
        assert refused is not None, "a file with a header has a slot"
        raise refused

    def make_slot(self, cipher: Cipher) -> bytes:
        """A file's key, wrapped by the newest master key."""
        return encode_slot(KeySlot(cipher.file_id, self.keys.wrap(cipher.data_key)))

    def names(self, directory: Path) -> list[str]:
        return self.inner.names(directory)

    def entries(self, directory: Path) -> list[DirectoryEntry]:
        listed = (self._measure(directory, entry) for entry in self.inner.entries(directory))
        return [entry for entry in listed if entry is not None]

    def _measure(self, directory: Path, entry: DirectoryEntry) -> DirectoryEntry | None:
        """How much a file holds, not how much it takes on the disk."""
        if entry.size == 0:
            return entry
        path = directory / entry.name
        try:
            with closing(self._open(path, create=False, repairs=False)) as file:
                return DirectoryEntry(entry.name, file.size)
        except StorageError:
            if self.inner.exists(path):
                raise
            return None  # removed by another thread since the directory was read

    def directories(self, directory: Path) -> list[Path]:
        return self.inner.directories(directory)

    def exists(self, path: Path) -> bool:
        return self.inner.exists(path)

    def make_directory(self, path: Path) -> None:
        self.inner.make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self.inner.rename(source, target)

    def remove(self, path: Path) -> None:
        self.inner.remove(path)

    def remove_tree(self, directory: Path) -> None:
        self.inner.remove_tree(directory)

    def sync_directory(self, directory: Path) -> None:
        self.inner.sync_directory(directory)

    def free_bytes(self, directory: Path) -> int:
        return self.inner.free_bytes(directory)

    def lock(self, path: Path) -> DirectoryLock | None:
        return self.inner.lock(path)
