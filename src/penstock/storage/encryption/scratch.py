"""Memory that a thread uses again and again while it seals and opens frames.

Fresh memory for each read and write of a megabyte is given back to the system at once and faulted in again by the next,
which costs several times what AES-GCM does. What is taken counts until the same thread takes the next.
"""

from __future__ import annotations

import threading
from typing import Final

KEPT_BYTES_MAX: Final = (
    2 << 20
)  # of each thread: a batch of the largest usual size; larger ones get memory of their own


class Scratch(threading.local):
    """One piece of memory for each thread, as large as the largest that it took."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def take(self, size: int) -> memoryview:
        """Memory of a size, with anything in it."""
        if size > KEPT_BYTES_MAX:
            return memoryview(bytearray(size))
        if len(self._kept) < size:
            self._kept = bytearray(size)
        return memoryview(self._kept)[:size]
