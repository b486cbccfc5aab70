"""The one port through which storage touches the disk, and its real implementation.

Everything storage promises about crashes rests on four operations: ``write`` puts bytes where the kernel has them,
``sync`` makes a file's bytes durable, ``sync_directory`` makes names durable, ``rename`` is atomic. The fault-injecting
twin, ``penstock.testing.files.MemoryFiles``, implements the same protocol and can lose exactly what these do not
promise.

Errors leave here as `StorageError` or one of its kinds; no caller above sees an `OSError` from a write or a sync.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from penstock.errors import DiskFull, StorageError, TooManyOpenFiles, UnreadableBytes

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview  # of single bytes, so that len() counts them

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}
_FILE_MODE = 0o600  # messages are for clients that may ask the node for them, not for every user of its machine
_DIRECTORY_MODE = 0o700
_CACHE_SAMPLE_BYTES = 128 * 1024  # what was read together goes together, more or less
_PAGE_BYTES = 4096
_FILLER = b"unreadable page\n" * (_PAGE_BYTES // 16)
_ANY_BYTE = [bytearray(1)]  # takes what is read only to see whether it can be


class DirectoryEntry(NamedTuple):
    """A file in a directory, with its size."""

    name: str
    size: int


class File(Protocol):
    """An open file. It closes with its last reference, so a slice being sent keeps its file readable.

    A file that is opened for a moment is closed at once.
    """

    @property
    def size(self) -> int: ...

    def write(self, data: Buffer) -> None:
        """Append all of ``data``, or nothing: a failed write is rolled back before it raises."""

    def current_size(self) -> int:
        """How long the file is now, whatever was written here: a stranger may have cut it."""

    def read(self, position: int, size: int) -> bytes:
        """``size`` bytes from ``position``, fewer only at the end of the file; `StorageError` if one is unreadable."""

    def sync(self) -> None:
        """Return once every byte written so far would survive a power cut."""

    def truncate(self, size: int) -> None: ...

    def reserve(self, size: int) -> None:
        """Have room on the disk for ``size`` bytes in all, where the file system can; 0 gives back what is unused.

        The file is no longer for it, and keeps what it holds.
        """

    def patch(self, position: int, data: Buffer) -> None:
        """Write bytes over others. A crash may leave the old ones, the new ones or some of each."""

    def changed_ns(self) -> int:
        """When any process last changed the file's bytes, as the file system says."""

    def stamp_ns(self) -> int:
        """Something else after every change that goes through the file system, whatever is claimed of its time."""

    def fileno(self) -> int:
        """The descriptor for ``sendfile``, or -1 where there is none."""

    def sync_descriptor(self) -> int:
        """The descriptor whose sync is this file's, or -1 where there is none."""

    def close(self) -> None:
        """Close it now."""

    def is_cached(self, position: int, size: int = 1) -> bool:
        """Whether bytes could be read without a disk, going by samples; True where that cannot be told."""

    def let_go(self, position: int, size: int) -> None:
        """These bytes are not expected to be read again soon, and need not be kept in memory."""


class DirectoryLock(Protocol):
    """A locked file. The process that ends lets go of it, however it ends."""

    def release(self) -> None: ...


class Files(Protocol):
    """A file system, as far as storage needs one."""

    def open(self, path: Path, *, create: bool = False) -> File: ...
    def names(self, directory: Path) -> list[str]:
        """The files in a directory."""

    def entries(self, directory: Path) -> list[DirectoryEntry]:
        """The files in a directory with their sizes, for which some file systems have to open each."""

    def directories(self, directory: Path) -> list[Path]:
        """The directories in a directory, in order; none if there is no such directory."""

    def exists(self, path: Path) -> bool: ...
    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents, durably."""

    def rename(self, source: Path, target: Path) -> None: ...
    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""

    def remove_tree(self, directory: Path) -> None: ...
    def sync_directory(self, directory: Path) -> None: ...
    def free_bytes(self, directory: Path) -> int: ...
    def lock(self, path: Path) -> DirectoryLock | None:
        """Claim a file for this process, creating it if need be; None if another process has it."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A range of a file that can be read, or handed to ``sendfile`` without being read."""

    file: File
    position: int
    size: int
    next_offset: int = -1  # of the first record behind it, where that is known
    keeper: Keeper | None = None  # whose bytes these are

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        """The bytes, checked again: they may have come from the disk just now. `DamagedRecords` if they are bad."""
        if self.keeper is None:
            return self.file.read(self.position, self.size)
        return self.keeper.read_checked(self.file, self.position, self.size)

    def rest(self, sent: int) -> FileSlice:
        """What is left when some of it was sent."""
        return FileSlice(self.file, self.position + sent, self.size - sent, self.next_offset, self.keeper)

    def on_unreadable(self) -> None:
        """The disk refused these bytes to another reader."""
        if self.keeper is not None:
            self.keeper.look_again(self.position, self.size)


class Keeper(Protocol):
    """Who knows what is damaged in a file. Calls may come from any thread."""

    def read_checked(self, file: File, position: int, size: int) -> bytes:
        """Whole batches; `DamagedRecords` if they are not what was written."""

    def look_again(self, position: int, size: int) -> None:
        """Check these bytes, whatever was known of them."""


def replace_file(files: Files, path: Path, data: Buffer) -> None:
    """Put ``data`` at ``path`` so that after a crash either the old or the new content is there, whole."""
    temporary = path.with_name(path.name + ".tmp")
    files.remove(temporary)
    with closing(files.open(temporary, create=True)) as file:
        file.write(data)
        file.sync()
    files.rename(temporary, path)
    files.sync_directory(path.parent)


def write_again(files: Files, path: Path) -> None:
    """Make sure that what is read from a small file is on the disk.

    After a sync that failed, the kernel shows bytes that it will not write any more. So they are written over
    themselves, in place: that takes no room, and a crash in between changes nothing.
    """
    with closing(files.open(path)) as file:
        file.patch(0, file.read(0, file.size))
        file.sync()
    files.sync_directory(path.parent)


def read_file(files: Files, path: Path, size: int | None = None) -> bytes | None:
    """The content of a small file or its beginning, or None where there is no such file.

    Each of them has a checksum, which fails where some of it is unreadable.
    """
    if not files.exists(path):
        return None
    with closing(files.open(path)) as file:
        return read_around(file, 0, file.size if size is None else size)


def read_around(file: File, position: int, size: int, on_unreadable: Callable[[int], None] | None = None) -> bytes:
    """Bytes of a file, with filler in the place of pages that the disk cannot read.

    ``on_unreadable`` hears where each of them ends.
    """
    try:
        return file.read(position, size)
    except StorageError:
        return b"".join(_read_pages(file, position, position + size, on_unreadable))


def _read_pages(file: File, position: int, end: int, on_unreadable: Callable[[int], None] | None) -> Iterator[bytes]:
    while position < end:
        size = min(end - position, _PAGE_BYTES - position % _PAGE_BYTES)
        try:
            page = file.read(position, size)
        except StorageError as error:
            if isinstance(error, UnreadableBytes) and error.start > position:
                yield file.read(position, error.start - position)
                position = error.start
                continue
            if isinstance(error, UnreadableBytes):
                size = min(size, error.end - position)
            page = _FILLER[position % _PAGE_BYTES :][:size]
            if on_unreadable is not None:
                on_unreadable(position + size)
        yield page
        if len(page) < size:
            return
        position += size


def disk_error(action: str, path: Path, error: OSError) -> StorageError:
    """What the operating system's refusal means to storage."""
    reason = f"Cannot {action} {path}: {error.strerror or error}."
    if error.errno in _NO_SPACE:
        return DiskFull(f"{reason} Free some space; writing goes on by itself then.")
    if error.errno in _NO_DESCRIPTOR:
        return TooManyOpenFiles(f"{reason} Raise the limit on open files (ulimit -n) and start the node again.")
    return StorageError(reason)


@contextmanager
def _disk_errors(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(action, path, error) from error


_libc: Final = ctypes.CDLL(None, use_errno=True)
_FALLOC_FL_KEEP_SIZE: Final = 1


def reserve_room(descriptor: int, size: int) -> bool:
    """Give a file blocks for ``size`` bytes without making it longer; False where the system has no such thing."""
    fallocate = getattr(_libc, "fallocate", None)
    if fallocate is None:
        return False
    if fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size)) == 0:
        return True
    error = ctypes.get_errno()
    if error in {errno.EOPNOTSUPP, errno.ENOSYS}:
        return False
    raise OSError(error, os.strerror(error))


class SpareDescriptors:
    """Descriptors that are kept so that the node can open its own files when connections have taken all others."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[int] = []
        self._lock = threading.Lock()
        self._fill()

    def __del__(self) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._held)

    def close(self) -> None:
        """Keep none any more."""
        self._count = 0
        while self._spend():
            pass

    def used_by(self, action: Callable[[], T]) -> T:
        """Do something that opens files, with spare descriptors as far as there are no others."""
        if len(self._held) < self._count:
            self._fill()
        while True:
            try:
                return action()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR or not self._spend():
                    raise

    def _fill(self) -> None:
        with self._lock:
            try:
                while len(self._held) < self._count:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return  # there is none to be had; later, perhaps

    def _spend(self) -> bool:
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            return True


_NO_SPARES = SpareDescriptors(0)


class DiskFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "_has_reserve", "path", "size")

    def __init__(self, path: Path, *, create: bool, spares: SpareDescriptors = _NO_SPARES) -> None:
        self._fd = -1
        self._has_reserve = False
        self.path = path
        with _disk_errors("open", path):
            try:
                flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
                self._fd = spares.used_by(lambda: os.open(path, flags, _FILE_MODE))
            except OSError as error:
                if create or error.errno not in {errno.EACCES, errno.EROFS, errno.EPERM}:
                    raise
                # Readable is enough until something is written.
                self._fd = spares.used_by(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            self.size = os.fstat(self._fd).st_size

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def write(self, data: Buffer) -> None:
        position = self.size
        try:
            written = os.pwrite(self._fd, data, position)
            if written != len(data):
                self._write_rest(memoryview(data), position, written)
        except OSError as error:
            self._roll_back(position)
            with _disk_errors("write", self.path):
                raise error
        self.size = position + len(data)

    def _write_rest(self, data: memoryview, position: int, written: int) -> None:
        # A short write comes before ENOSPC: go on, so that the kernel tells why.
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], position + written)

    def _roll_back(self, size: int) -> None:
        # Best effort: recovery cuts the torn bytes as well, and the next write starts over them.
        try:
            os.ftruncate(self._fd, size)
        except OSError:
            return

    def current_size(self) -> int:
        with _disk_errors("look at", self.path):
            return min(self.size, os.fstat(self._fd).st_size)

    def read(self, position: int, size: int) -> bytes:
        try:
            data = os.pread(self._fd, size, position)
            return data if len(data) == size else self._read_rest(data, position, size)
        except OSError as error:
            with _disk_errors("read", self.path):
                raise error

    def _read_rest(self, data: bytes, position: int, size: int) -> bytes:
        # A short read comes at the end of the file and before an unreadable page: the kernel tells which.
        while len(data) < size and (more := os.pread(self._fd, size - len(data), position + len(data))):
            data += more
        return data

    def sync(self) -> None:
        with _disk_errors("sync", self.path):
            os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        with _disk_errors("truncate", self.path):
            os.ftruncate(self._fd, size)
        self.size = size

    def reserve(self, size: int) -> None:
        if size:
            with _disk_errors("reserve room for", self.path):
                self._has_reserve = reserve_room(self._fd, size)
        elif self._has_reserve:
            self._has_reserve = False
            self.truncate(self.size)  # the kernel frees what lies behind the end

    def patch(self, position: int, data: Buffer) -> None:
        with _disk_errors("write", self.path):
            self._write_rest(memoryview(data), position, 0)

    def changed_ns(self) -> int:
        with _disk_errors("look at", self.path):
            return os.fstat(self._fd).st_mtime_ns

    def stamp_ns(self) -> int:
        with _disk_errors("look at", self.path):
            return os.fstat(self._fd).st_ctime_ns

    def fileno(self) -> int:
        return self._fd

    def sync_descriptor(self) -> int:
        return self._fd

    def is_cached(self, position: int, size: int = 1) -> bool:
        try:
            for sample in range(position, position + size, _CACHE_SAMPLE_BYTES):
                os.preadv(self._fd, _ANY_BYTE, sample, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except (OSError, AttributeError):
            return True  # this system, or this file system, does not say
        return True

    def let_go(self, position: int, size: int) -> None:
        try:
            os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)
        except (OSError, AttributeError):
            return  # it was advice, no more


def _list(entry: os.DirEntry[str]) -> DirectoryEntry | None:
    try:
        return DirectoryEntry(entry.name, entry.stat().st_size)
    except FileNotFoundError:
        return None  # removed by another thread since the directory was read


class DiskFiles:
    """The operating system's file system; ``spares`` descriptors are kept for files of its own."""

    def __init__(self, spares: int = 0) -> None:
        self._spares = SpareDescriptors(spares)

    def close(self) -> None:
        """Give back the spare descriptors. Files that are open stay so."""
        self._spares.close()

    def open(self, path: Path, *, create: bool = False) -> File:
        return DiskFile(path, create=create, spares=self._spares)

    def names(self, directory: Path) -> list[str]:
        return [entry.name for entry in self.entries(directory)]

    def entries(self, directory: Path) -> list[DirectoryEntry]:
        def list_files() -> list[DirectoryEntry]:
            with os.scandir(directory) as found:
                return [listed for entry in found if entry.is_file() and (listed := _list(entry))]

        with _disk_errors("list", directory):
            return self._spares.used_by(list_files)

    def directories(self, directory: Path) -> list[Path]:
        with _disk_errors("list", directory):
            if not directory.is_dir():
                return []
            return sorted(path for path in self._spares.used_by(lambda: list(directory.iterdir())) if path.is_dir())

    def exists(self, path: Path) -> bool:
        return path.exists()

    def make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_directory(path.parent)
        with _disk_errors("create", path):
            path.mkdir(_DIRECTORY_MODE, exist_ok=True)
        self.sync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        with _disk_errors("rename", source):
            source.replace(target)

    def remove(self, path: Path) -> None:
        with _disk_errors("remove", path):
            path.unlink(missing_ok=True)

    def remove_tree(self, directory: Path) -> None:
        with _disk_errors("remove", directory):
            self._spares.used_by(lambda: shutil.rmtree(directory))

    def sync_directory(self, directory: Path) -> None:
        with _disk_errors("sync", directory):
            fd = self._spares.used_by(lambda: os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def free_bytes(self, directory: Path) -> int:
        with _disk_errors("look at", directory):
            return shutil.disk_usage(directory).free

    def lock(self, path: Path) -> DirectoryLock | None:
        with _disk_errors("lock", path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            except OSError:
                os.close(fd)
                raise
        return _DiskClaim(fd)


class _DiskClaim:
    """A descriptor whose lock goes when it is closed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
