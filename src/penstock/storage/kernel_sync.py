"""Syncs that the kernel does by itself: asked for with one call, and told of through a descriptor.

A thread that syncs needs the interpreter's lock before and after it does, and gets it from the thread that serves
clients, at any of its system calls. With a few such threads most of the time went into handing the lock around
(docs/decisions/0009). Linux can sync a file without a thread of ours: ``io_submit`` of an ``IOCB_CMD_FDSYNC``, from
version 4.18 on. Where it cannot, `KernelSync.open` gives None.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import sys
from typing import Final, NamedTuple

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
