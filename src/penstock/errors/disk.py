"""What a disk refuses, and what a node cannot start with."""

from __future__ import annotations

from penstock.errors.root import PenstockError


class StorageError(PenstockError):
    """The disk refused a read or a write."""

    code = "storage_error"
    retriable = True


class ResourcesExhausted(StorageError):
    """The node lacks something that it may have again at any moment; what was refused can be tried again as it is."""

    code = "resources_exhausted"


class DiskFull(ResourcesExhausted):
    """No space is left for new records; reads go on, and writes will as soon as there is space."""

    code = "disk_full"


class TooManyOpenFiles(ResourcesExhausted):
    """The process has as many files and connections open as the operating system allows."""

    code = "too_many_open_files"


class LogFailed(StorageError):
    """A sync of this log failed, so what it last wrote cannot be trusted until the node restarts and recovers it."""

    code = "log_failed"


class DamagedRecords(StorageError):
    """This copy is damaged where the caller reads. A sound replica takes over, or the range is declared lost."""

    code = "damaged_records"

    def __init__(self, message: str = "", first_offset: int = -1, next_offset: int = -1) -> None:
        super().__init__(*([message] if message else ()))
        self.first_offset = first_offset  # from here on records may be missing
        self.next_offset = next_offset  # up to before here


class StartupError(PenstockError):
    """The node cannot start as configured."""

    code = "startup_error"


class DataDirectoryError(StartupError):
    """The data directory is in use, belongs to another node, or was written by another version."""

    code = "data_directory_error"
