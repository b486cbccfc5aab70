"""What every part of the fuzzer is, and what it may find."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from typing import Protocol

import psutil

MEMORY_ROOM_BYTES = 2 << 30


class Finding(Exception):  # noqa: N818
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
def memory_limit() -> Iterator[None]:
    """Let this process grow by so much and no more: past it, an allocation fails with MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + MEMORY_ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
