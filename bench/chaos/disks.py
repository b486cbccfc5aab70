"""The disks of nodes: an image with a file system for each, whose power can be cut and which can be full.

A power cut is ext4's own shutdown without a flush of its journal: what was not synced is gone, as with a real machine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from pathlib import Path

from bench.chaos.machine import MachineError, run

_EXT4_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_UMOUNT_LIMIT_S = 20.0
_BALLAST = "ballast"


class Disk:
    """An ext4 image, mounted on a directory."""

    def __init__(self, image: Path, mount_point: Path, size_mib: int) -> None:
        self._image = image
        self.mount_point = mount_point
        image.parent.mkdir(parents=True, exist_ok=True)
        mount_point.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as blank:
            blank.truncate(size_mib << 20)
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
        self.mount()

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self.mount_point))

    def unmount(self) -> None:
        """Unmount, once whoever used it is gone."""
        deadline = time.monotonic() + _UMOUNT_LIMIT_S
        while True:
            try:
                run("umount", str(self.mount_point))
                return
            except MachineError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def cut_power(self) -> None:
        """From now on nothing reaches the disk, and what had not been synced never will."""
        handle = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(handle)

    def restore_power(self) -> None:
        """The file system is mounted again and replays its journal. Whoever used it must be gone."""
        self.unmount()
        self.mount()

    def fill(self) -> int:
        """Take all the space there is; how many bytes."""
        taken = 0
        with (self.mount_point / _BALLAST).open("ab") as ballast:
            for step in (64 << 20, 1 << 20, 4096):
                while True:
                    try:
                        os.posix_fallocate(ballast.fileno(), taken, step)
                        taken += step
                    except OSError as error:
                        if error.errno != errno.ENOSPC:
                            raise
                        break
        return taken

    def free(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.mount_point / _BALLAST).unlink()
