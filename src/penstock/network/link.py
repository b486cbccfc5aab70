"""One socket between two nodes: frames in, frames out, and the notice that the other end is gone.

The socket is ours, without a transport between, as at the Kafka door: frames are received in place, everything sent
within one turn of the loop leaves together, and slices of files leave by ``sendfile``, or encrypted where nodes speak
TLS (`penstock.network.channel`). A link does not know what its frames mean, save for pings, which it answers and
counts.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.errors import PenstockError
from penstock.network.channel import Channel
from penstock.network.frames import Frame, FrameBuffer, FrameKind, encode_head, pieces_bytes
from penstock.network.port import Pieces

log = logging.getLogger(__name__)

UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
WATCH_INTERVAL_S: Final = 0.5
SILENT_TURNS_MAX: Final = 4  # of the watch, before a link that should have answered counts as dead
_PING: Final = encode_head(FrameKind.PING, 0, "", None, 0)
_PONG: Final = encode_head(FrameKind.PONG, 0, "", None, 0)

OnFrame = Callable[[Frame], None]


class Link:
    """A connected socket. ``on_frame`` hears every frame in order, ``on_closed`` hears once why it ended."""

    def __init__(self, channel: Channel, buffer: FrameBuffer, *, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.channel = channel
        self._recv_into = channel.recv_into
        self._buffer = buffer
        self.name = name
        self.on_frame: OnFrame = _ignore
        self.on_closed: Callable[[str], None] = _ignore_reason
        self._out = channel.out
        self._put_bytes = 0
        self._is_reading = False
        self._is_writing = False
        self._is_flush_scheduled = False
        self._is_held_back = False
        self._was_heard = False
        self._silent_turns = 0
        self._watch: asyncio.TimerHandle | None = None
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<Link {self.name}, {self.unsent_bytes} bytes unsent>"

    @property
    def unsent_bytes(self) -> int:
        return self._put_bytes - self._out.sent_bytes

    def start(self) -> None:
        sock = self.channel.sock
        sock.setblocking(False)  # noqa: FBT003
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._resume_reading()

    def allow(self, limit: int) -> None:
        """Take larger frames from now on: the other end has told who it is."""
        self._buffer.limit = limit

    def watch(self, *, is_asking: bool, turns_max: int = SILENT_TURNS_MAX) -> None:
        """Close the link once nothing was heard for a while, asking for a sign of life if ``is_asking``.

        Turns are counted and not seconds, so that a process that was stopped for a while does not take the others for
        dead before it has read what they sent meanwhile.
        """
        self._watch = self._loop.call_later(WATCH_INTERVAL_S, self._check_silence, is_asking, turns_max)

    def _check_silence(self, is_asking: bool, turns_max: int) -> None:
        if self._was_heard or self._is_held_back:
            self._silent_turns = 0
        else:
            self._silent_turns += 1
            if self._silent_turns >= turns_max:
                self.close(f"it was silent for {turns_max * WATCH_INTERVAL_S:g} s")
                return
            if is_asking:
                self._put(_PING)
        self._was_heard = False
        self._watch = self._loop.call_later(WATCH_INTERVAL_S, self._check_silence, is_asking, turns_max)

    @property
    def is_alive(self) -> bool:
        """Whether the other end was heard lately; a live one gives a sign of life in every turn of its watch."""
        return not self.is_closed and self._silent_turns < SILENT_TURNS_MAX

    def close(self, reason: str) -> None:
        """Drop the connection and whatever was still to be sent."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        self._pause_reading()
        if self._is_writing:
            self.channel.ignore_writable()
        self._out.pieces.clear()
        self._put_bytes = self._out.sent_bytes
        self.channel.close()
        on_closed, self.on_closed, self.on_frame = self.on_closed, _ignore_reason, _ignore
        on_closed(reason)

    def close_when_sent(self, reason: str) -> None:
        """Try to get out what is queued, then close."""
        if not self.is_closed:
            self._send()
            self.close(reason)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            received = self._recv_into(self._buffer.space())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"receiving failed: {error.strerror or error}")
            return
        if received == 0:
            self.close("the other end closed it")
            return
        self._was_heard = True
        try:
            for frame in self._buffer.take(received):
                self._take(frame)
                if self.is_closed:
                    return
        except PenstockError as error:
            log.warning("Closing the connection with %s: %s", self.name, error.message)
            self.close(error.message)
        except Exception:
            log.exception("A frame of %s met a bug; its connection is closed.", self.name)
            self.close("it met a bug of this node")

    def _take(self, frame: Frame) -> None:
        if frame.kind == FrameKind.PING:
            self._put(_PONG)
        elif frame.kind != FrameKind.PONG:
            self.on_frame(frame)

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self.channel.ignore_readable()

    def _resume_reading(self) -> None:
        if not self._is_reading and not self.is_closed:
            self._is_reading = True
            self.channel.watch_readable(self._on_readable)

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(
        self, kind: FrameKind, number: int, method: str, structure: msgspec.Struct | None = None, body: Pieces = ()
    ) -> None:
        """Queue a frame; it leaves with everything else of this turn of the loop."""
        if self.is_closed:
            return
        body_bytes = pieces_bytes(body) if body else 0
        self._put(encode_head(kind, number, method, structure, body_bytes))
        if body_bytes:
            self._out.pieces.extend(body)
            self._put_bytes += body_bytes

    def hold_back(self) -> None:
        """Read no more until the other end has taken enough of what waits for it."""
        if self.unsent_bytes > UNSENT_BYTES_MAX and not self._is_held_back:
            self._is_held_back = True
            self._pause_reading()

    def _put(self, data: bytes) -> None:
        self._out.pieces.append(data)
        self._put_bytes += len(data)
        if not self._is_flush_scheduled and not self._is_writing:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if not self.is_closed and not self._is_writing:
            self._send()
            self._hold_back_no_more()

    def _on_writable(self) -> None:
        self._was_heard = True  # room came free, so the other end takes what it is sent
        self._send()
        self._hold_back_no_more()

    def _hold_back_no_more(self) -> None:
        if self._is_held_back and not self.is_closed and self.unsent_bytes < UNSENT_BYTES_MAX // 2:
            self._is_held_back = False
            self._resume_reading()

    def _send(self) -> None:
        """Write what the socket takes, and wait for it where that is not all."""
        try:
            has_all_left = self._out.send()
        except OSError as error:
            self.close(f"sending failed: {error.strerror or error}")
            return
        if has_all_left == self._is_writing:
            self._is_writing = not has_all_left
            if has_all_left:
                self.channel.ignore_writable()
            else:
                self.channel.watch_writable(self._on_writable)


def _ignore(frame: Frame) -> None:
    """The default of ``on_frame``."""


def _ignore_reason(reason: str) -> None:
    """The default of a listener."""
