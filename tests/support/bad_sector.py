"""A file with a bad sector, as the kernel sees one: a read of it fails with EIO, a mapped page of it kills by SIGBUS.

A file system of one file is mounted over a real one (FUSE, spoken here by hand). It hands out the real bytes, except
for the pages that are broken. Needs root; `is_possible` tells.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

PAGE_BYTES: Final = 4096
_MNT_DETACH: Final = 2
_REQUEST: Final = struct.Struct("<IIQQIIII")
_REPLY: Final = struct.Struct("<IiQ")
_GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FSYNC, _FLUSH, _INIT = 3, 14, 15, 17, 18, 20, 25, 26
_FORGET, _INTERRUPT = 2, 36
_libc = ctypes.CDLL(None, use_errno=True)


def is_possible() -> bool:
    return os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


class BadSector:
    """A context in which the page at a position of a file cannot be read."""

    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self.start = position // PAGE_BYTES * PAGE_BYTES
        self._file = os.open(path, os.O_RDONLY)
        self._size = os.fstat(self._file).st_size
        self._fuse = -1
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.refused = 0  # reads that hit the bad page

    def __enter__(self) -> BadSector:
        self._fuse = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._fuse},rootmode=100644,user_id=0,group_id=0"
        if _libc.mount(b"bad-sector", bytes(self._path), b"fuse", 0, options.encode()) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"cannot mount over {self._path}: {os.strerror(code)}")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _libc.umount2(bytes(self._path), _MNT_DETACH)
        self._thread.join(10)
        os.close(self._file)

    def _serve(self) -> None:
        """Answer until the file system is unmounted and whoever has the file open is gone."""
        while True:
            try:
                request = os.read(self._fuse, 1 << 18)
            except OSError as error:
                if error.errno in {errno.EINTR, errno.EAGAIN, errno.ENOENT}:
                    continue
                os.close(self._fuse)
                return  # ENODEV: unmounted
            _, opcode, unique, *_ = _REQUEST.unpack_from(request)
            if opcode in {_FORGET, _INTERRUPT}:
                continue
            code, body = self._answer(opcode, request[_REQUEST.size :])
            os.write(self._fuse, _REPLY.pack(_REPLY.size + len(body), -code, unique) + body)

    def _answer(self, opcode: int, body: bytes) -> tuple[int, bytes]:
        if opcode == _INIT:
            readahead = struct.unpack_from("<III", body)[2]
            return 0, struct.pack("<IIIIHHII", 7, 31, readahead, 0, 0, 0, 1 << 17, 1) + bytes(36)
        if opcode == _GETATTR:
            blocks = -(-self._size // 512)
            times = (1_700_000_000,) * 3
            attributes = struct.pack(
                "<QQQQQQIIIIIIIIII", 1, self._size, blocks, *times, 0, 0, 0, 0o100644, 1, 0, 0, 0, PAGE_BYTES, 0
            )
            return 0, struct.pack("<QII", 3600, 0, 0) + attributes
        if opcode == _OPEN:
            return 0, struct.pack("<QII", 1, 0, 0)
        if opcode == _READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            if offset < self.start + PAGE_BYTES and self.start < offset + size:
                self.refused += 1
                return errno.EIO, b""
            return 0, os.pread(self._file, size, offset)
        if opcode == _STATFS:
            return 0, struct.pack("<QQQQQIIII24x", 1 << 20, 1 << 20, 1 << 20, 1, 1, PAGE_BYTES, 255, PAGE_BYTES, 0)
        return (0 if opcode in {_RELEASE, _FSYNC, _FLUSH} else errno.ENOSYS), b""
