"""Sockets driven by their owners, without a transport between: the Kafka door's and the links between nodes.

`Acceptor` listens. A process that has no file descriptor left cannot accept, and the connection stays in the kernel's
queue, so the socket stays readable: a loop that tried again at once would do nothing else. So accepting pauses, for
longer each time, and the log says so once in a while.

`SendQueue` sends: bytes and slices of files, in order and never copied. Its owner waits for the socket and closes it
when it breaks.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.errors import PenstockError
from penstock.storage.files import FileSlice

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
        self._is_held = False
        self._is_closed = False
        self.pauses = 0

    @property
    def port(self) -> int:
        """The port listened on, also if the system chose it."""
        port: int = self._sock.getsockname()[1]
        return port

    def start(self) -> None:
        self._pausing = None
        if not self._is_held:
            asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    def close(self) -> None:
        """Accept nothing more."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pausing is not None:
            self._pausing.cancel()
        else:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
        self._sock.close()

    def hold(self) -> None:
        """Accept nothing for now: what comes waits in the kernel's queue."""
        if not self._is_held and not self._is_closed:
            self._is_held = True
            asyncio.get_running_loop().remove_reader(self._sock.fileno())

    def go_on(self) -> None:
        """Accept again."""
        if self._is_held and not self._is_closed:
            self._is_held = False
            if self._pausing is None:
                self.start()

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
            if self._is_held:
                return

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


__all__ = ["Piece", "SendQueue"]

Piece = bytes | bytearray | memoryview | FileSlice

_PIECES_AT_ONCE: Final = 256  # below the kernel's limit of 1,024


class SendQueue:
    """The pieces that a socket has still to take. Put them into ``pieces``, then `send`."""

    __slots__ = ("_sock", "pieces", "sent_bytes")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.pieces: deque[Piece] = deque()
        self.sent_bytes = 0

    def send(self) -> bool:
        """Write until the socket takes no more; whether everything has left. `OSError` if it never can."""
        pieces = self.pieces
        try:
            while pieces:
                piece = pieces[0]
                if isinstance(piece, FileSlice):
                    self._send_slice(piece)
                else:
                    self._send_bytes()
        except (BlockingIOError, InterruptedError):
            return False
        except PenstockError as error:
            raise OSError(error.message) from error
        return True

    def _send_bytes(self) -> None:
        """Send the pieces up to the next slice of a file in one call, without joining them."""
        pieces = self.pieces
        together: list[bytes | bytearray | memoryview] = []
        flags = 0
        for piece in pieces:
            if isinstance(piece, FileSlice):
                flags = socket.MSG_MORE  # the records follow at once: let both leave in one packet
                break
            together.append(piece)
            if len(together) == _PIECES_AT_ONCE:
                break
        sock = self._sock
        sent = sock.send(together[0], flags) if len(together) == 1 else sock.sendmsg(together, (), flags)
        self.sent_bytes += sent
        for piece in together:
            size = len(piece)
            if sent < size:
                pieces[0] = memoryview(piece)[sent:]
                return
            pieces.popleft()
            sent -= size

    def _send_slice(self, piece: FileSlice) -> None:
        source = piece.file.fileno()
        if source < 0:
            self.pieces[0] = piece.read()
            return
        try:
            sent = os.sendfile(self._sock.fileno(), source, piece.position, piece.size)
        except OSError as error:
            if error.errno == errno.EIO:
                piece.on_unreadable()
            raise
        if sent == 0:
            piece.on_unreadable()
            raise OSError(f"a file that was being sent ended {piece.size} bytes early")
        self.sent_bytes += sent
        if sent == piece.size:
            self.pieces.popleft()
        else:
            self.pieces[0] = piece.rest(sent)
