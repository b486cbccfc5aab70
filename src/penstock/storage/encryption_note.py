"""The note in a data directory that some of its files are encrypted, and with which versions of the master key.

The note is plain: it is what a node without keys reads. It holds no key, only what tells a right key from a wrong one.
A version is listed before the first file is written with it, and until no file needs it any more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import DataDirectoryError, EncryptionKeyError
from penstock.storage.files import Files
from penstock.storage.state_files import load_json, save_json

NOTE_FILE: Final = "encryption"


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
