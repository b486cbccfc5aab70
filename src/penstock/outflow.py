"""What is on its way out of a socket: bytes and slices of files, in order, never copied on the way.

Both the Kafka door and the links between nodes own their sockets, without a transport between. This is the sending half
that they share; who waits for the socket, and what happens when it breaks, is their own affair.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from typing import Final

from penstock.errors import PenstockError
from penstock.storage.files import FileSlice

__all__ = ["Outflow", "Piece"]

Piece = bytes | bytearray | memoryview | FileSlice

_PIECES_AT_ONCE: Final = 256  # below the kernel's limit of 1,024


class Outflow:
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
