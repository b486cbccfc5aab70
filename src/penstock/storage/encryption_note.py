"""The note in a data directory that some of its files are encrypted, and with which versions of the master key.

The note is plain: it is what a node without keys reads. It holds no key, only what tells a right key from a wrong one.
A version is listed before the first file is written with it, and until no file needs it any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import msgspec

from penstock.errors import DataDirectoryError, EncryptionKeyError, StorageError
from penstock.storage.files import Files, read_file
from penstock.storage.state_files import load_json, save_json

NOTE_FILE: Final = "encryption"
MAGIC: Final = b"\x8ePSTKAES"  # how every encrypted file begins
_LOCK_FILE: Final = "lock"


@dataclass(frozen=True, slots=True)
class KeysInUse:
    """Versions of the master key: the one that wraps what is new, and all that some file needs."""

    current: int
    versions: list[int]
    rewrapped: int = 0  # files, by the rotation that tells this


class MasterKeyRing(Protocol):
    """The master keys of a node. Both calls read the disk."""

    @property
    def is_encrypting(self) -> bool:
        """Whether new files are encrypted."""

    def in_use(self) -> KeysInUse: ...

    def rotate(self) -> KeysInUse:
        """Read the keys again and wrap all data keys by the newest; `EncryptionKeyError` if they do not do."""


@dataclass(slots=True)
class DirectoryKeys:
    """How the files of a directory are kept."""

    encrypted: Counter[int] = field(default_factory=Counter)  # files by the version of the master key
    plain: int = 0
    damaged_copies: int = 0  # of data keys; another copy of each is good


class EncryptionNote(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says: the fingerprint of the master key of each version in use."""

    fingerprints: dict[int, str] = {}


def load_note(files: Files, directory: Path) -> EncryptionNote:
    """The note of a data directory; an empty one where nothing was ever encrypted."""
    path = directory / NOTE_FILE
    note = load_json(files, path, EncryptionNote)
    if note is None and files.exists(path):
        raise DataDirectoryError(f"{path} is damaged. Restore it from a backup; nothing was changed.")
    return note or EncryptionNote()


def save_note(files: Files, directory: Path, note: EncryptionNote) -> None:
    save_json(files, directory / NOTE_FILE, note)


def refuse_encrypted(files: Files, directory: Path) -> None:
    """For a node without master keys: `EncryptionKeyError` if there is something that it could not read."""
    versions = sorted(load_note(files, directory).fingerprints)
    if versions:
        raise EncryptionKeyError(
            f"{directory} holds encrypted files, which need master key {', '.join(map(str, versions))}. Set "
            "security.encryption.master_key_file (or _env, or _command); with security.encryption.enabled: false new "
            "files are plain. Nothing was changed."
        )


def is_encrypted(files: Files, path: Path) -> bool:
    """Whether a file begins as encrypted ones do."""
    return read_file(files, path, len(MAGIC)) == MAGIC


def walk(files: Files, directory: Path) -> Iterator[Path]:
    """Every file of a data directory but the note and the lock, which hold nothing of users."""
    for name in files.names(directory):
        if name not in (NOTE_FILE, _LOCK_FILE):
            yield directory / name
    for below in files.directories(directory):
        try:
            yield from walk(files, below)
        except StorageError:
            if files.exists(below):
                raise
