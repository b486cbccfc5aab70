"""A test disk whose files are encrypted, with the faults of `MemoryFiles` underneath."""

from __future__ import annotations

import base64
from typing import Any

from penstock.storage.encryption.files import EncryptedFiles
from penstock.storage.encryption.keys import MasterKeys
from penstock.storage.files import Files
from penstock.testing.files import MemoryFiles


def key_text(*versions: int) -> str:
    """Master keys as an operator writes them down."""
    return " ".join(f"{version}:{base64.b64encode(bytes([version]) * 32).decode()}" for version in versions)


def master_keys(*versions: int) -> MasterKeys:
    return MasterKeys.parse(key_text(*versions), "the test")


def seal(files: Files, *versions: int) -> EncryptedFiles:
    return EncryptedFiles(files, master_keys(*(versions or (1,))))


class SealedMemoryFiles(EncryptedFiles):
    """`MemoryFiles` with encryption over it: whoever sets or asks for a fault reaches the disk underneath."""

    def __init__(self, **options: Any) -> None:
        object.__setattr__(self, "inner", MemoryFiles(**options))
        super().__init__(self.inner, master_keys(1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        target = self.inner if name in vars(self.inner) else self
        object.__setattr__(target, name, value)
