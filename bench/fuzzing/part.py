"""What every part of the fuzzer is, and what it may find."""

from __future__ import annotations

import contextlib
import resource
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import psutil

MEMORY_ROOM_BYTES = 2 << 30
_SHARED_MEMORY = Path("/dev/shm")


class Finding(Exception):
    """Something that must not happen, happened. The message says what; the seed of its batch repeats it."""


class Hang(BaseException):
    """A case took too long. Not an Exception, so that nothing under test can swallow it."""


class Part(Protocol):
    """One thing under test."""

    name: str

    def run(self, seed: int) -> int:
        """Run the batch of this seed; how many cases it had. Raises `Finding`."""

    def close(self) -> None: ...


@contextlib.contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Raise `Finding` if the body takes longer. Main thread only."""

    def on_alarm(*_: object) -> None:
        raise Hang

    previous = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except Hang:
        raise Finding(f"{what} hangs: no end after {seconds:.0f} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory for one batch, in memory where there is such a place: what is tested is not the disk."""
    with tempfile.TemporaryDirectory(
        prefix="penstock-fuzz-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None, ignore_cleanup_errors=True
    ) as directory:
        yield Path(directory)


@contextlib.contextmanager
def memory_limit() -> Iterator[None]:
    """Let this process grow by so much and no more: past it, an allocation fails with MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + MEMORY_ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
