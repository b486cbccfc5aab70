"""A node's encryption at rest: its files with keys or without, and the rotation of keys at SIGHUP.

`cryptography` is loaded only where a master key is configured. A node without one that finds encrypted files does not
start, and changes nothing.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from penstock.config.settings import EncryptionSettings, Settings
from penstock.errors import PenstockError
from penstock.storage.encryption_note import refuse_encrypted
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


class Encryption:
    """What a node's files go through."""

    def __init__(self, settings: Settings, disk: Files) -> None:
        self._directory = settings.broker.data_dir
        self._source = key_source(settings.security.encryption)
        self._encrypted: EncryptedFiles | None = None
        self._rotating = threading.Lock()
        if self._source is None:
            refuse_encrypted(disk, self._directory)
            self.files: Files = disk
            return
        from penstock.storage.encryption.directory import open_encrypted

        is_encrypting = settings.security.encryption.enabled
        self._encrypted = open_encrypted(disk, self._directory, self._source, is_encrypting=is_encrypting)
        self.files = self._encrypted

    @property
    def is_on(self) -> bool:
        return self._encrypted is not None

    def rotate_soon(self) -> None:
        """Read the master keys again and wrap all data keys by the newest, in a thread; the log tells how it went."""
        threading.Thread(target=self.rotate, name="penstock-rotate", daemon=True).start()

    def rotate(self) -> None:
        from penstock.storage.encryption.directory import rotate

        assert self._encrypted is not None, "there are keys to rotate"
        assert self._source is not None, "and they come from somewhere"
        with self._rotating:
            try:
                done = rotate(self._encrypted, self._directory, self._source.load())
            except PenstockError as error:
                log.error("The keys were not rotated: %s", error.message)
                return
        log.info(
            "The keys are rotated.",
            extra={"version": done.version, "rewrapped": done.rewrapped, "versions": done.versions_left},
        )
