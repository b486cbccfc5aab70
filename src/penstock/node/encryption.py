"""A node's encryption at rest: its files with keys or without, and the rotation of keys, at SIGHUP or when asked.

`cryptography` is loaded only where a master key is configured. A node without one that finds encrypted files does not
start, and changes nothing.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config.settings import EncryptionSettings, Settings
from penstock.errors import PenstockError
from penstock.storage.encryption_note import KeysInUse, load_note, refuse_encrypted
from penstock.storage.files import Files

if TYPE_CHECKING:
    from penstock.storage.encryption.files import EncryptedFiles
    from penstock.storage.encryption.keys import KeySource

log = logging.getLogger(__name__)


def key_source(encryption: EncryptionSettings) -> KeySource | None:
    """Where the settings say that master keys are."""
    if not encryption.sources:
        return None
    from penstock.storage.encryption.keys import KeySource

    return KeySource(encryption.master_key_file, encryption.master_key_env, encryption.master_key_command)


class NodeKeys:
    """The master keys of a running node: told, and rotated, one rotation at a time."""

    def __init__(self, files: EncryptedFiles, directory: Path, source: KeySource) -> None:
        self._files = files
        self._directory = directory
        self._source = source
        self._rotating = threading.Lock()

    @property
    def is_encrypting(self) -> bool:
        return self._files.is_encrypting

    def in_use(self) -> KeysInUse:
        return KeysInUse(self._files.keys.current, sorted(load_note(self._files.inner, self._directory).fingerprints))

    def rotate(self) -> KeysInUse:
        from penstock.storage.encryption.directory import rotate

        with self._rotating:
            done = rotate(self._files, self._directory, self._source.load())
        log.info(
            "The keys are rotated.",
            extra={"version": done.version, "rewrapped": done.rewrapped, "versions": done.versions_left},
        )
        return KeysInUse(done.version, done.versions_left, done.rewrapped)

    def rotate_soon(self) -> None:
        """Rotate in a thread; the log tells how it went."""
        threading.Thread(target=self._try_to_rotate, name="penstock-rotate", daemon=True).start()

    def _try_to_rotate(self) -> None:
        try:
            self.rotate()
        except PenstockError as error:
            log.error("The keys were not rotated: %s", error.message)


class Encryption:
    """What a node's files go through."""

    def __init__(self, settings: Settings, disk: Files) -> None:
        directory = settings.broker.data_dir
        source = key_source(settings.security.encryption)
        self.ring: NodeKeys | None = None
        if source is None:
            refuse_encrypted(disk, directory)
            self.files: Files = disk
            return
        from penstock.storage.encryption.directory import open_encrypted

        encrypted = open_encrypted(disk, directory, source, is_encrypting=settings.security.encryption.enabled)
        self.files = encrypted
        self.ring = NodeKeys(encrypted, directory, source)
