"""The way bytes get in and out of one connected socket: as they are, or through TLS, in one shape.

The owner of a connection (a Kafka client's, a link to another node) watches for readiness, calls `recv_into` and puts
pieces into `out`; it does not know whether they are encrypted. `PlainChannel` adds nothing to the calls of the socket:
`recv_into` is the socket's own method, and slices of files leave by ``sendfile``.

`TlsChannel` keeps OpenSSL away from the socket (memory on both sides), so that reading never waits for writing or the
other way round. Its invariants: plaintext never reaches the socket; bytes that are decrypted or received already are
reported as readable although the socket is not; `out.pieces` is empty only when all ciphertext has left; no more than
64 KiB of plaintext is held encrypted for a client that does not read. See decision 38.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, cast

from penstock.errors import PenstockError
from penstock.network.certificates import PeerCertificate
from penstock.network.sockets import Piece, SendQueue
from penstock.storage.files import FileSlice
from penstock.wrong_port import dismiss

# Of plaintext at once: four records of TLS, one call of the socket, and what a client that does not read costs.
ENCRYPT_BYTES_MAX: Final = 64 * 1024
# What one call may receive; shared by all channels of a loop, because the bytes are handed to OpenSSL at once.
SCRATCH_BYTES: Final = 256 * 1024
_TURNS_AT_ONCE: Final = 16  # a megabyte, which takes a millisecond: then other connections have their turn
_BINDING: Final = "tls-unique"

Callback = Callable[[], None]


class Outgoing(Protocol):
    """The pieces that a channel has still to send."""

    pieces: deque[Piece]
    sent_bytes: int

    def send(self) -> bool:
        """Write until the socket takes no more; whether everything has left. `OSError` if it never can."""


class Channel(Protocol):
    """A connected, non-blocking socket as its owner sees it."""

    @property
    def sock(self) -> socket.socket: ...
    @property
    def out(self) -> Outgoing: ...
    @property
    def recv_into(self) -> Callable[[memoryview], int]:
        """Receive into a buffer: how much, 0 at the end, `BlockingIOError` if there is nothing now."""

    @property
    def peer_certificate(self) -> PeerCertificate | None: ...
    @property
    def binding(self) -> bytes:
        """What only the two ends of this very connection know; nothing without TLS."""

    def watch_readable(self, callback: Callback) -> None:
        """Call back whenever `recv_into` has something to give."""

    def ignore_readable(self) -> None: ...
    def watch_writable(self, callback: Callback) -> None: ...
    def ignore_writable(self) -> None: ...
    def has_hung_up(self) -> bool: ...
    def close(self) -> None: ...
    def dismiss(self, answer: bytes) -> None:
        """Close it with a last answer, which the other end gets to read."""


class PlainChannel:
    """A socket as it is."""

    __slots__ = ("_fd", "_loop", "out", "recv_into", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self.sock = sock
        self._fd = sock.fileno()
        self.recv_into: Callable[[memoryview], int] = sock.recv_into
        self.out = SendQueue(sock)

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        return None

    @property
    def binding(self) -> bytes:
        return b""

    def watch_readable(self, callback: Callback) -> None:
        self._loop.add_reader(self._fd, callback)

    def ignore_readable(self) -> None:
        self._loop.remove_reader(self._fd)

    def watch_writable(self, callback: Callback) -> None:
        self._loop.add_writer(self._fd, callback)

    def ignore_writable(self) -> None:
        self._loop.remove_writer(self._fd)

    def has_hung_up(self) -> bool:
        return _has_hung_up(self.sock)

    def close(self) -> None:
        self.sock.close()

    def dismiss(self, answer: bytes) -> None:
        other = self.sock.dup()
        self.close()
        dismiss(other, answer)


class TlsChannel:
    """A socket with TLS on it. `shake` until it is open; from then on it is used as a plain one."""

    __slots__ = (
        "_ciphertext",
        "_fd",
        "_has_more",
        "_incoming",
        "_is_again_scheduled",
        "_loop",
        "_on_readable",
        "_scratch",
        "_tls",
        "out",
        "peer_certificate",
        "sock",
    )

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, scratch: memoryview, *, is_server: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self.sock = sock
        self._fd = sock.fileno()
        self._scratch = scratch
        self._incoming = ssl.MemoryBIO()
        self._ciphertext = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._ciphertext, server_side=is_server)
        self.out = TlsSendQueue(sock, self._tls, self._ciphertext)
        self.peer_certificate: PeerCertificate | None = None
        self._on_readable: Callback | None = None
        self._has_more = False  # what was received is not all taken, though the socket may be silent
        self._is_again_scheduled = False

    # -- opening ------------------------------------------------------------------------------------------------------

    def shake(self) -> None:
        """Take the handshake to its end; `BlockingIOError` while the other end has to go on, `OSError` if it failed."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send_step()
                if not self._receive():
                    raise ConnectionResetError("the connection was closed during the TLS handshake") from None
            except ssl.SSLError:
                with suppress(OSError):
                    self.out.send()  # the alert, which tells the other end why
                raise
            else:
                break
        self._send_step()
        self.peer_certificate = PeerCertificate.of(self._tls.getpeercert())
        self._has_more = bool(self._incoming.pending)

    def _send_step(self) -> None:
        if not self.out.send():  # a few kilobytes fit into what every socket holds
            raise ConnectionResetError("the other end does not take the TLS handshake")

    @property
    def binding(self) -> bytes:
        return self._tls.get_channel_binding(_BINDING) or b""

    # -- receiving ----------------------------------------------------------------------------------------------------

    def recv_into(self, space: memoryview) -> int:
        """Fill the buffer with as much as is there.

        OpenSSL is asked only where it may have something: its way of saying no, an exception, costs as much as to
        decrypt a record, and clients send records one by one.
        """
        size, filled = len(space), 0
        has_more, self._has_more = self._has_more, False
        if not has_more and not self._receive():
            return 0
        while True:
            try:
                while filled < size:
                    # A number, as it is given a buffer, whatever the types say.
                    got = cast("int", self._tls.read(size - filled, space[filled:]))
                    if not got:  # the other end has said that nothing follows
                        if filled:
                            self._note_more()
                        return filled
                    filled += got
                    if not self._incoming.pending and not self._tls.pending():
                        return filled
            except ssl.SSLWantReadError:
                if filled:
                    return filled
                if not self._receive():
                    return 0
            else:
                self._note_more()
                return filled

    def _receive(self) -> int:
        """Take ciphertext off the socket; 0 at its end, `BlockingIOError` if there is none now."""
        got = self.sock.recv_into(self._scratch)
        if got:
            self._incoming.write(self._scratch[:got])
        return got

    def _note_more(self) -> None:
        """The socket will not report what it has handed over already, so this channel does."""
        self._has_more = True
        if self._on_readable is not None and not self._is_again_scheduled:
            self._is_again_scheduled = True
            self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._is_again_scheduled = False
        if self._has_more and self._on_readable is not None:
            self._on_readable()

    def watch_readable(self, callback: Callback) -> None:
        self._on_readable = callback
        self._loop.add_reader(self._fd, callback)
        if self._has_more:
            self._note_more()

    def ignore_readable(self) -> None:
        self._on_readable = None
        self._loop.remove_reader(self._fd)

    def has_hung_up(self) -> bool:
        return _has_hung_up(self.sock)

    # -- sending ------------------------------------------------------------------------------------------------------

    def watch_writable(self, callback: Callback) -> None:
        self._loop.add_writer(self._fd, callback)

    def ignore_writable(self) -> None:
        self._loop.remove_writer(self._fd)

    def close(self) -> None:
        self._say_goodbye()
        self.sock.close()

    def dismiss(self, answer: bytes) -> None:
        with suppress(OSError):
            self.out.pieces.append(answer)
            self.out.send()
        self._say_goodbye()
        other = self.sock.dup()
        self.sock.close()
        dismiss(other, b"")

    def _say_goodbye(self) -> None:
        """Tell the other end that nothing was cut off, where it takes that at once."""
        if not self.out.is_stuck:
            with suppress(OSError):
                self._tls.unwrap()
            with suppress(OSError):
                self.out.send()


class TlsSendQueue:
    """Encrypts pieces a little at a time, and sends what comes of it."""

    __slots__ = ("_ciphertext", "_plain_bytes", "_sock", "_tls", "_unsent", "pieces", "sent_bytes")

    def __init__(self, sock: socket.socket, tls: ssl.SSLObject, ciphertext: ssl.MemoryBIO) -> None:
        self._sock = sock
        self._tls = tls
        self._ciphertext = ciphertext
        self._unsent = memoryview(b"")  # ciphertext that the socket did not take yet
        self._plain_bytes = 0  # of the first pieces, which are in the ciphertext
        self.pieces: deque[Piece] = deque()
        self.sent_bytes = 0

    @property
    def is_stuck(self) -> bool:
        return bool(self._unsent)

    def send(self) -> bool:
        """Write until the socket takes no more, or a megabyte; whether all has left. `OSError` if it never can."""
        try:
            for _ in range(_TURNS_AT_ONCE):
                if not self._unsent:
                    if self.pieces:
                        self._encrypt()
                    if not self._ciphertext.pending:
                        return True
                    self._unsent = memoryview(self._ciphertext.read())
                while self._unsent:
                    self._unsent = self._unsent[self._sock.send(self._unsent) :]
                self._drop_sent()
            return not self.pieces and not self._ciphertext.pending
        except (BlockingIOError, InterruptedError):
            return False
        except PenstockError as error:
            raise OSError(error.message) from error

    def _encrypt(self) -> None:
        """Encrypt the next 64 KiB at most; the pieces stay where they are until that has left."""
        parts: list[bytes | bytearray | memoryview] = []
        room = ENCRYPT_BYTES_MAX
        for piece in self.pieces:
            part = _first_bytes(piece, room)
            parts.append(part)
            room -= len(part)
            if room <= 0:
                break
        plain = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        self._plain_bytes = len(plain)
        while plain:
            plain = plain[self._tls.write(plain) :]
        if not self._plain_bytes:
            self._drop_sent()

    def _drop_sent(self) -> None:
        sent, self._plain_bytes = self._plain_bytes, 0
        self.sent_bytes += sent
        pieces = self.pieces
        while pieces:
            piece = pieces[0]
            size = len(piece)
            if sent < size:
                if sent:
                    pieces[0] = piece.rest(sent) if isinstance(piece, FileSlice) else memoryview(piece)[sent:]
                return
            pieces.popleft()
            sent -= size


def _first_bytes(piece: Piece, size: int) -> bytes | bytearray | memoryview:
    if not isinstance(piece, FileSlice):
        return piece if len(piece) <= size else memoryview(piece)[:size]
    wanted = min(size, piece.size)
    try:
        data = piece.file.read(piece.position, wanted)
    except PenstockError:
        piece.on_unreadable()
        raise
    if len(data) < wanted:
        piece.on_unreadable()
        raise OSError(f"a file that was being sent ended {piece.size - len(data)} bytes early")
    return data


def _has_hung_up(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
