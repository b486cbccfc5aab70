"""The keys of a whole data directory: checked before anything is opened, counted, and rotated.

A rotation wraps every data key anew under the newest master key. Only key slots are written: first all but one copy,
then, once these are on disk, the last. So a crash at any point leaves a copy that can be read, for the old version
stays in the note until the end.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import EncryptionKeyError, StorageError
from penstock.storage.encryption.files import EncryptedFiles, read_slots
from penstock.storage.encryption.format import SLOT_BYTES, SLOTS_AT
from penstock.storage.encryption.keys import KeySource, MasterKeys
from penstock.storage.encryption_note import DirectoryKeys, EncryptionNote, load_note, save_note, walk
from penstock.storage.files import File, Files

_LOCK_FILE = "lock"
_PASSES_MAX = 10  # a file that is renamed while a pass goes on may be missed by it


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation did."""

    version: int
    rewrapped: int
    versions_left: list[int]


def open_encrypted(files: Files, directory: Path, source: KeySource, *, is_encrypting: bool) -> EncryptedFiles:
    """The files of a data directory; `EncryptionKeyError`, with nothing changed, where the keys are not its keys."""
    keys = source.load()
    note = load_note(files, directory)
    check_keys(keys, note, directory)
    if is_encrypting:
        files.make_directory(directory)
        claim = files.lock(directory / _LOCK_FILE)
        if claim is not None:  # else the directory is in use, which is refused a moment later
            try:
                _list_version(files, directory, note, keys)
            finally:
                claim.release()
    return EncryptedFiles(files, keys, is_encrypting=is_encrypting)


def check_keys(keys: MasterKeys, note: EncryptionNote, directory: Path) -> None:
    for version, fingerprint in sorted(note.fingerprints.items()):
        given = keys.fingerprint(version)
        if given != fingerprint:
            what = "is missing" if given is None else "is another one than the files were written with"
            raise EncryptionKeyError(
                f"Master key {version}, which files in {directory} need, {what}. Give the right one; nothing was "
                "changed."
            )


def _list_version(files: Files, directory: Path, note: EncryptionNote, keys: MasterKeys) -> None:
    fingerprint = keys.fingerprint(keys.current)
    assert fingerprint is not None, "the newest key is one of the keys"
    if keys.current not in note.fingerprints:
        save_note(files, directory, EncryptionNote(fingerprints={**note.fingerprints, keys.current: fingerprint}))


def rotate(files: EncryptedFiles, directory: Path, keys: MasterKeys) -> Rotation:
    """Wrap all data keys by the newest of ``keys``. Runs in any thread, while the files are in use."""
    disk = files.inner
    note = load_note(disk, directory)
    check_keys(keys, note, directory)
    if keys.current < files.keys.current:
        raise EncryptionKeyError(
            f"The newest master key given is {keys.current}, older than {files.keys.current}, which is in use. Give "
            "the new key a higher number."
        )
    _list_version(disk, directory, note, keys)
    files.keys = keys  # from here on nothing new is wrapped by an old one
    rewrapped = 0
    for _ in range(_PASSES_MAX):
        done = sum(_rewrap(files, path) for path in walk(disk, directory))
        rewrapped += done
        if not done:
            break
    used = look(disk, directory).encrypted
    left = {version: text for version, text in load_note(disk, directory).fingerprints.items() if used[version]}
    fingerprint = keys.fingerprint(keys.current)
    assert fingerprint is not None, "the newest key is one of the keys"
    save_note(disk, directory, EncryptionNote(fingerprints={**left, keys.current: fingerprint}))
    return Rotation(keys.current, rewrapped, sorted({*left, keys.current}))


def _rewrap(files: EncryptedFiles, path: Path) -> bool:
    """Write a file's key slots anew, if any of them is damaged or of an older version."""
    try:
        with closing(files.inner.open(path)) as file:
            slots = read_slots(file)
            if all(slot is not None and slot.key.version == files.keys.current for slot in slots):
                return False
            cipher = files.unwrap(path, [slot for slot in slots if slot is not None])
            slot = files.make_slot(cipher)
            kept = next(at for at, found in zip(SLOTS_AT, slots, strict=False) if found is not None)
            _write_slots(files, file, slot, [at for at in SLOTS_AT if at != kept])
            _write_slots(files, file, slot, [kept])
            return True
    except StorageError:
        if files.inner.exists(path):
            raise
        return False  # removed or renamed meanwhile


def _write_slots(files: EncryptedFiles, file: File, slot: bytes, places: list[int]) -> None:
    with files.slot_lock:
        for at in places:
            if at + SLOT_BYTES <= file.current_size():  # it may have been cut since
                file.patch(at, slot)
    file.sync()


def look(files: Files, directory: Path) -> DirectoryKeys:
    """How the files of a directory are kept. Needs no key."""
    found = DirectoryKeys()
    for path in walk(files, directory):
        try:
            with closing(files.open(path)) as file:
                slots = read_slots(file)
                versions = {slot.key.version for slot in slots if slot is not None}
                found.damaged_copies += sum(slot is None for slot in slots)
                found.encrypted.update(versions)
                found.plain += bool(file.size and not versions)
        except StorageError:
            if files.exists(path):
                raise
    return found
