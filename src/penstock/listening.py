"""A listening socket on the event loop, for the doors that speak for themselves.

A process that has no file descriptor left cannot accept, and the connection stays in the kernel's queue, so the socket
stays readable: a loop that tried at once again would do nothing else. Accepting pauses, for longer each time, and the
log is told once in a while.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

_ACCEPTS_AT_ONCE: Final = 64
_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 2.0
_TELL_EVERY_S: Final = 60.0


class Acceptor:
    """Gives every connection of a listening socket to ``take``, which owns it then."""

    def __init__(self, sock: socket.socket, take: Callable[[socket.socket], None], *, whose: str) -> None:
        self._sock = sock
        self._take = take
        self._whose = whose
        self._pause_s = _PAUSE_MIN_S
        self._pausing: asyncio.TimerHandle | None = None
        self._told_at: float | None = None
        self.pauses = 0

    @property
    def port(self) -> int:
        """The port listened on, also if the system chose it."""
        port: int = self._sock.getsockname()[1]
        return port

    def start(self) -> None:
        self._pausing = None
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    def close(self) -> None:
        """Accept nothing more."""
        if self._pausing is not None:
            self._pausing.cancel()
        else:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
        self._sock.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                    self._pause(error)
                    return
                raise
            self._pause_s = _PAUSE_MIN_S
            self._take(sock)

    def _pause(self, error: OSError) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock.fileno())
        self._pausing = loop.call_later(self._pause_s, self.start)
        self._pause_s = min(self._pause_s * 2, _PAUSE_MAX_S)
        self.pauses += 1
        if self._told_at is None or loop.time() - self._told_at >= _TELL_EVERY_S:
            self._told_at = loop.time()
            log.error(
                "Connections of %s have to wait: %s. Raise the limit on open files (ulimit -n) and restart the node.",
                self._whose,
                error.strerror or error,
            )
