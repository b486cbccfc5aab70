"""A node's data directory: whose it is, which format it has, and that one process at a time uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from penstock.errors import DataDirectoryError, StorageError
from penstock.storage.files import DirectoryLock, Files
from penstock.storage.state_files import load_json, save_json

FORMAT_VERSION: Final = 1
_IDENTITY_FILE: Final = "node"
_LOCK_FILE: Final = "lock"


class DirectoryIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Who wrote a data directory. ``directory_id`` tells a wiped disk from the one it replaced (KIP-853)."""

    format_version: int
    node_id: int
    directory_id: str


class DataDirectory:
    """An opened, locked data directory."""

    def __init__(self, files: Files, path: Path, node_id: int) -> None:
        self.path = path
        self._claim: DirectoryLock | None = None
        try:
            files.make_directory(path)
            self._lock(files)
            self.identity = self._identify(files, node_id)
        except StorageError as error:
            self.close()
            raise DataDirectoryError(
                f"The data directory {path} cannot be used. {error.message} Make it writable, or choose another "
                "with --data-dir."
            ) from error
        except DataDirectoryError:
            self.close()
            raise

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def metadata(self) -> Path:
        return self.path / "metadata"

    @property
    def deleted(self) -> Path:
        """What is being removed. No topic has a name with '~', and a name here holds ids alone, so it is short."""
        return self.logs / "~deleted"

    @property
    def stray(self) -> Path:
        """Directories that were found in the place of other topics, by topic id; kept."""
        return self.logs / "~stray"

    def partition(self, topic: str, index: int) -> Path:
        return self.logs / topic / str(index)

    def close(self) -> None:
        """Let another process have the directory."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _lock(self, files: Files) -> None:
        self._claim = files.lock(self.path / _LOCK_FILE)
        if self._claim is None:
            raise DataDirectoryError(
                f"Another process is using the data directory {self.path}. Stop it, or choose another directory with "
                "--data-dir."
            )

    def _identify(self, files: Files, node_id: int) -> DirectoryIdentity:
        path = self.path / _IDENTITY_FILE
        identity = load_json(files, path, DirectoryIdentity)
        if identity is None and files.exists(path):
            raise DataDirectoryError(f"{path} is damaged. Restore it from a backup; nothing was changed.")
        if identity is None:
            if files.exists(self.metadata):
                raise DataDirectoryError(
                    f"{self.path} holds data but no file {_IDENTITY_FILE!r} that says whose. Restore that file from a "
                    "backup, or choose another directory with --data-dir."
                )
            identity = DirectoryIdentity(format_version=FORMAT_VERSION, node_id=node_id, directory_id=str(uuid4()))
            save_json(files, path, identity)
            return identity
        if identity.format_version != FORMAT_VERSION:
            raise DataDirectoryError(
                f"{self.path} was written in format {identity.format_version}; this version of Penstock reads format "
                f"{FORMAT_VERSION}. Use the version that wrote it, or another directory with --data-dir."
            )
        if identity.node_id != node_id:
            raise DataDirectoryError(
                f"{self.path} belongs to node {identity.node_id}, not to node {node_id}. Start with --node-id "
                f"{identity.node_id}, or choose another directory with --data-dir."
            )
        return identity
