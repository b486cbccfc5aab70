"""Memory held warm between runs, so that no run pays for the hypervisor.

In a virtual machine with free-page reporting the guest's free pages go back to the host after about two seconds, and
the next writer takes a fault into the host for each: page-cache writes were seen at 0.4 GB/s on such memory and at
4 GB/s on memory used a moment ago. Whoever runs second would win. So the benchmark holds `size` bytes of touched
memory while nothing is measured, and frees them just before each measured run, for the limits and every broker
alike. On real hardware it changes nothing.
"""

from __future__ import annotations

import mmap

_CHUNK = 2 * 1024 * 1024


class Ballast:
    """Holds `size_bytes` of touched memory from `hold` to `release`; both may be called again and again."""

    def __init__(self, size_bytes: int) -> None:
        self._size = size_bytes // _CHUNK * _CHUNK
        self._held: mmap.mmap | None = None

    def hold(self) -> None:
        if self._held is not None or not self._size:
            return
        held = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        held.madvise(mmap.MADV_HUGEPAGE)
        chunk = b"\1" * _CHUNK
        for offset in range(0, self._size, _CHUNK):
            held[offset : offset + _CHUNK] = chunk
        self._held = held

    def release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None
