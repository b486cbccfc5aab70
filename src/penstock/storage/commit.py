"""Group commit: logs are synced in the background, so that one sync serves every append that was waiting for it.

Where only a file needs syncing, which is nearly always, the kernel does it by itself (`KernelSync`) and says so through
``descriptor``; the event loop watches that and calls `reap`. A log whose directory or sealed segments need work goes to
a thread. A log is synced once at a time. A request that comes meanwhile has it synced again, because that sync may have
begun before the append. Requests never wait; ``on_synced``, or `reap`, tells how long the sync took, and the log has
``durable_offset`` or ``failure``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue
from typing import Final, NamedTuple

from penstock.errors import LogFailed, TooManyOpenFiles
from penstock.storage.log import Log

# The numbers of io_setup, io_destroy, io_getevents and io_submit, by machine.
_CALLS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_FDSYNC: Final = 3
_TELL_DESCRIPTOR: Final = 1
_IN_FLIGHT_MAX: Final = 1024
_AT_ONCE: Final = 128


class _Request(ctypes.Structure):
    """``struct iocb``, little-endian."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("told_descriptor", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """``struct io_event``."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


class Finished(NamedTuple):
    """A sync that is over: the number it was asked for with, and 0 or the number of its error."""

    number: int
    error: int


class KernelSync:
    """Syncs under way in the kernel. `submit` is for one thread at a time, `reap` for any."""

    def __init__(self, libc: ctypes.CDLL, calls: tuple[int, int, int, int]) -> None:
        self._libc = libc
        self._setup, self._destroy, self._get_events, self._submit = calls
        self._context = ctypes.c_ulong(0)
        if libc.syscall(self._setup, _IN_FLIGHT_MAX, ctypes.byref(self._context)) != 0:
            raise OSError(ctypes.get_errno(), "io_setup")
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The kernel copies a request before `io_submit` returns, so one serves for all.
        self._request = _Request(opcode=_FDSYNC, flags=_TELL_DESCRIPTOR, told_descriptor=self.descriptor)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))

    @classmethod
    def open(cls) -> KernelSync | None:
        """What the kernel offers; None where it does not."""
        calls = _CALLS.get(platform.machine())
        if sys.platform != "linux" or calls is None or sys.byteorder != "little":
            return None
        try:
            return cls(ctypes.CDLL(None, use_errno=True), calls)
        except (OSError, AttributeError):  # an old kernel, a sandbox that forbids it, or no more contexts
            return None

    def submit(self, descriptor: int, number: int) -> bool:
        """Begin to sync a file; False if the kernel takes no more, or not this one."""
        self._request.descriptor = descriptor
        self._request.data = number
        return bool(self._libc.syscall(self._submit, self._context, 1, self._requests) == 1)

    def reap(self, patience_s: float = 0.0) -> list[Finished]:
        """The syncs that are over; if there are none yet, wait for one that long."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        events = (_Event * _AT_ONCE)()
        patience = _Time(int(patience_s), int(patience_s % 1 * 1e9))
        at_least = 1 if patience_s > 0 else 0
        finished: list[Finished] = []
        while True:
            count = self._libc.syscall(
                self._get_events, self._context, at_least, _AT_ONCE, events, ctypes.byref(patience)
            )
            if count < 0:
                code = ctypes.get_errno()
                if code == errno.EINTR:
                    continue
                raise OSError(code, "io_getevents")
            finished += [Finished(event.data, -event.result) for event in events[:count]]
            if count < _AT_ONCE:
                return finished
            at_least = 0

    def close(self) -> None:
        """Give everything back. Whatever is under way is waited for."""
        self._libc.syscall(self._destroy, self._context)
        os.close(self.descriptor)


logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 0.05
_RETRY_S: Final = 0.05


class Synced(NamedTuple):
    """A log that was synced, or failed to be, and how long it took."""

    log: Log
    seconds: float


class _Submitted(NamedTuple):
    log: Log
    end_offset: int
    began: float


class GroupCommit:
    """A few threads and, where there is one, the kernel's own way."""

    def __init__(
        self,
        on_synced: Callable[[Log, float], None],
        *,
        threads: int = 4,
        open_kernel: Callable[[], KernelSync | None] = KernelSync.open,
    ) -> None:
        self._on_synced = on_synced
        self._kernel = open_kernel()
        self._submitted: dict[int, _Submitted] = {}
        self._numbers = count()
        self._queue: SimpleQueue[Log | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._queued: set[Log] = set()
        self._running: set[Log] = set()
        self._again: set[Log] = set()
        self._idle = threading.Condition(self._lock)
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-sync-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def descriptor(self) -> int | None:
        """Becomes readable when `reap` has something to give; None where threads do everything."""
        return None if self._kernel is None else self._kernel.descriptor

    def request(self, log: Log) -> None:
        """See to it that everything appended to ``log`` before this call becomes durable soon."""
        with self._lock:
            if log in self._running:
                self._again.add(log)
            elif log not in self._queued:
                self._begin(log)

    def wait(self, log: Log) -> None:
        """Return once no sync of ``log`` is queued or under way, as before it is truncated or closed."""
        while True:
            with self._idle:
                if log not in self._queued and log not in self._running:
                    return
                if not self._submitted:
                    self._idle.wait(_LOOK_EVERY_S)
                    continue
            self._deliver(self.reap(_LOOK_EVERY_S))

    def close(self) -> None:
        """Finish what is queued and stop the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._kernel is not None:
            while self._submitted:
                self._deliver(self.reap(_LOOK_EVERY_S))
            self._kernel.close()

    def _begin(self, log: Log) -> None:
        """Have a log synced that is not, by the kernel if it can. The lock is held."""
        plain = None if self._kernel is None else log.begin_sync()
        if plain is not None and self._kernel is not None:
            number = next(self._numbers)
            self._submitted[number] = _Submitted(log, plain.end_offset, time.monotonic())
            if self._kernel.submit(plain.descriptor, number):
                self._running.add(log)
                return
            del self._submitted[number]
        self._queued.add(log)
        self._queue.put(log)

    def _end(self, log: Log) -> None:
        """A sync of a log is over. The lock is held."""
        self._running.discard(log)
        if log in self._again:
            self._again.discard(log)
            self._begin(log)
        else:
            self._idle.notify_all()

    # -- by the kernel ------------------------------------------------------------------------------------------------

    def reap(self, patience_s: float = 0.0) -> list[Synced]:
        """The logs that the kernel has synced; if there are none yet, wait for one that long."""
        if self._kernel is None:
            return []
        synced: list[Synced] = []
        finished = self._kernel.reap(patience_s)
        with self._idle:
            for number, error in finished:
                log, end_offset, began = self._submitted.pop(number)
                log.finish_sync(end_offset, error)
                self._end(log)
                synced.append(Synced(log, time.monotonic() - began))
        return synced

    def _deliver(self, synced: list[Synced]) -> None:
        for log, seconds in synced:
            self._on_synced(log, seconds)

    # -- by threads ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (log := self._queue.get()) is not None:
            with self._lock:
                self._queued.discard(log)
                self._running.add(log)
            began = time.monotonic()
            try:
                log.sync()
            except LogFailed:
                pass  # the log remembers its failure, and on_synced hands it to everyone who waits
            except TooManyOpenFiles:
                time.sleep(_RETRY_S)  # nothing was synced, and nothing failed: producers go on waiting
                with self._lock:
                    self._again.add(log)
            except Exception as error:  # what is on disk is not known, and those who wait must hear of it
                logger.exception("Syncing %s met a bug.", log.directory)
                log.fail(f"Syncing {log.directory} met a bug ({error!r}).")
            with self._idle:
                self._end(log)
            try:
                self._on_synced(log, time.monotonic() - began)
            except Exception:  # the thread has other logs to sync
                logger.exception("Telling that %s is synced met a bug.", log.directory)
