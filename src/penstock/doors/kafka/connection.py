"""One client's connection: frames in, responses out in the order of their requests.

The socket is ours, without a transport between: requests are received into one reused buffer that handlers read in
place, and file slices leave by ``sendfile``, so record bytes are never copied in Python in either direction. With TLS a
channel encrypts on the way (`penstock.network.channel`); nothing here knows.

Flow control: a produce may be answered later while the next ones are already taken; any other request that has to wait
holds the ones behind it back, as in Kafka. Reading stops while too much is unanswered or unsent, so a client that does
not read costs one buffer and the file slices it asked for, not memory that grows.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.doors.kafka.caller import Caller
from penstock.doors.kafka.limits import check_size
from penstock.doors.kafka.protocol.headers import FRAME_PREFIX_BYTES, read_frame_length
from penstock.doors.kafka.protocol.produce import ProduceTemplates
from penstock.doors.kafka.sasl import Login
from penstock.doors.kafka.throttle import Throttle
from penstock.errors import PenstockError
from penstock.network.channel import Channel
from penstock.network.sockets import Piece
from penstock.wrong_port import Guide

log = logging.getLogger(__name__)

_BUFFER_BYTES: Final = 16 * 1024  # to begin with: most connections are idle most of the time
_BUFFER_BUSY_BYTES: Final = 256 * 1024  # of a client that fills what it is given
# A buffer that had to grow for a large request stays this large for the next ones.
_BUFFER_KEEP_BYTES: Final = 4 * 1024 * 1024
_API_KEY: Final = struct.Struct(">h")
_GROWTH: Final = 4
_UNANSWERED_MAX: Final = 256


class Answer:
    """The place of one response in the queue; completed once, now or later."""

    __slots__ = ("_connection", "is_done", "on_dropped", "pieces")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.is_done = False
        self.on_dropped: Callable[[], None] | None = None  # the client left before it was answered
        self.pieces: Sequence[Piece] = ()

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Send this response as soon as those before it are sent."""
        assert not self.is_done, "a request is answered once"
        self.is_done = True
        self.pieces = pieces
        self._connection.on_answered()

    def let_pass(self) -> None:
        """Be a barrier no longer: requests behind this one may be looked at before it is answered."""
        self._connection.lift_barrier(self)


class Dispatcher(Protocol):
    """What understands requests."""

    def welcome(self, connection: Connection) -> None:
        """Take up a new connection, and say who its caller is so far."""

    def dispatch(self, connection: Connection, frame: memoryview) -> None:
        """Handle one request. ``frame`` is only good until this returns."""

    def on_closed(self, connection: Connection) -> None: ...


class Connection:
    """The server's end of one client connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        channel: Channel,
        dispatcher: Dispatcher,
        *,
        max_request_bytes: int,
        guide: Guide | None = None,
    ) -> None:
        self._loop = loop
        self._channel = channel
        self._recv_into = channel.recv_into
        self._dispatcher = dispatcher
        self._request_bytes_max = self._max_request_bytes = max_request_bytes
        self._guide = guide
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = 0
        self._end = 0
        self._answers: deque[Answer] = deque()
        self._out = channel.out
        self._unsent = self._out.pieces
        self._barrier: Answer | None = None
        self._is_reading = False
        self._is_writing = False
        self._is_in_loop = False
        self._is_flush_scheduled = False
        self._pause: asyncio.TimerHandle | None = None  # while the client is over its quota
        self.is_closed = False
        self.is_closing = False
        self.last_active = loop.time()
        sock = channel.sock
        self.local_host: str = sock.getsockname()[0]
        self.throttle: Throttle | None = None  # once there are quotas
        self.templates = ProduceTemplates()  # what this client's produce requests repeat
        self.is_admitted = True  # False: only its login is served
        self.login: Login | None = None
        self.caller: Caller  # from `Dispatcher.welcome`
        self.peer_host, port = sock.getpeername()[:2]
        self.peer = f"{self.peer_host}:{port}"
        certificate = channel.peer_certificate
        # Of the client's certificate, which an authority of ours has signed: CN=alice,O=Example.
        self.peer_certificate_subject: str | None = None if certificate is None else certificate.subject

    def __repr__(self) -> str:
        return f"<Connection {self.peer}, {len(self._answers)} unanswered, {len(self._unsent)} pieces unsent>"

    def start(self) -> None:
        sock = self._channel.sock
        sock.setblocking(False)  # noqa: FBT003
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._dispatcher.welcome(self)
        self._resume_reading()

    def close(self, reason: str = "") -> None:
        """Drop the connection and whatever was still to be sent."""
        if self.is_closed:
            return
        if reason:
            log.info("Closing the connection of %s: %s", self.peer, reason)
        self._detach()
        self._channel.close()
        self._dispatcher.on_closed(self)

    def _detach(self) -> None:
        """Have nothing more to do with the channel."""
        self.is_closed = self.is_closing = True
        self._pause_reading()
        if self._pause is not None:
            self._pause.cancel()
        if self._is_writing:
            self._channel.ignore_writable()
        for answer in self._answers:
            if answer.on_dropped is not None:
                answer.on_dropped()
        self._answers.clear()
        self._barrier = None  # it refers back to us: leave no cycle that would keep the buffer until a collection
        self._unsent.clear()

    def close_when_answered(self) -> None:
        """Take no more requests, and close once everything asked so far is answered and sent."""
        self.is_closing = True
        self._pause_reading()
        if not self._answers and not self._unsent:
            self.close()

    # -- quotas -------------------------------------------------------------------------------------------------------

    @property
    def throttle_ms(self) -> int:
        """How long no request is taken because of a quota; 0 if the next one is welcome."""
        return 0 if self._pause is None else max(1, int((self._pause.when() - self._loop.time()) * 1000))

    def pause(self, seconds: float) -> None:
        """Take no request for so long; what was asked is answered."""
        if self._pause is not None:
            if self._pause.when() >= self._loop.time() + seconds:
                return
            self._pause.cancel()
        self._pause = self._loop.call_later(seconds, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self.last_active = self._loop.time()  # its silence was ours
        self._resume()

    # -- requests -----------------------------------------------------------------------------------------------------

    def limit_requests(self, size_max: int | None) -> None:
        """Take no requests larger than this from now on; None: as large as the settings allow."""
        self._max_request_bytes = self._request_bytes_max if size_max is None else size_max

    def expect_answer(self, *, is_barrier: bool) -> Answer:
        """Take the next place in the queue of responses.

        Until a barrier is answered no further request of this connection is looked at.
        """
        answer = Answer(self)
        self._answers.append(answer)
        if is_barrier:
            self._barrier = answer
        return answer

    def lift_barrier(self, answer: Answer) -> None:
        if self._barrier is answer:
            self._barrier = None
            self.on_answered()

    def answer_now(self, response: bytes | bytearray) -> None:
        """Answer the request that is being handled; if none is open before it, it needs no place in the queue."""
        if self._answers:
            self.expect_answer(is_barrier=False).complete([response])
        else:
            self._unsent.append(response)

    @property
    def _is_blocked(self) -> bool:
        return (
            self._barrier is not None
            or self._pause is not None
            or self._is_writing  # the socket takes no more: the client does not read
            or len(self._answers) >= _UNANSWERED_MAX
            or self.is_closing
        )

    def _on_readable(self) -> None:
        if self._is_blocked:
            if self._channel.has_hung_up():
                self.close()
            else:
                self._pause_reading()  # lazily: most clients send nothing while they wait
            return
        try:
            received = self._recv_into(self._buffer[self._end :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"receiving failed: {error}")
            return
        if received == 0:
            self.close()
            return
        self._end += received
        self.last_active = self._loop.time()
        self._take_frames()

    def _take_frames(self) -> None:
        """Hand on every complete request in the buffer, unless something asks to wait."""
        self._is_in_loop = True
        try:
            buffer, end, limit, dispatch = self._buffer, self._end, self._max_request_bytes, self._dispatcher.dispatch
            while not self._is_blocked:
                begin = self._start + FRAME_PREFIX_BYTES
                if begin > end:
                    break
                stop = begin + read_frame_length(buffer, self._start, limit=limit)
                if stop > end:
                    break
                self._start = stop
                dispatch(self, buffer[begin:stop])
            if not self.is_closed:
                self._make_room()
        except PenstockError as error:
            self._refuse(error.message)
            return
        except Exception:  # a bug of ours must not leave a client waiting for an answer that never comes
            log.exception("A request of %s met a bug; closing its connection.", self.peer)
            self.close()
            return
        finally:
            self._is_in_loop = False
        if self.is_closed:
            return
        was_held_back = self._start != self._end and self._is_blocked
        self._flush()
        if was_held_back and not self._is_blocked:
            self.on_answered()  # the requests behind are in the buffer already: no event follows

    def _refuse(self, reason: str) -> None:
        """Close the connection of a client that sends no frames; one of another protocol is sent to its port."""
        begun = self._buffer[self._start : self._end]
        answer = self._guide and self._guide.answer(begun, client=self.peer, host=self.local_host)
        if not answer:
            self.close(reason)
            return
        self._detach()
        self._channel.dismiss(answer)
        self._dispatcher.on_closed(self)

    def _make_room(self) -> None:
        """Keep free space behind the unread bytes, enough for the rest of a request that has begun."""
        unread = self._end - self._start
        is_filled = self._end == len(self._buffer)
        if unread == 0:
            self._start = self._end = 0
            if len(self._buffer) > _BUFFER_KEEP_BYTES:
                self._buffer = memoryview(bytearray(_BUFFER_BYTES))
            elif is_filled and len(self._buffer) < _BUFFER_BUSY_BYTES:
                self._buffer = memoryview(bytearray(_BUFFER_BUSY_BYTES))
            return
        needed = _BUFFER_BUSY_BYTES if is_filled else _BUFFER_BYTES
        if unread >= FRAME_PREFIX_BYTES + _API_KEY.size:
            length = read_frame_length(self._buffer, self._start, limit=self._max_request_bytes)
            check_size(_API_KEY.unpack_from(self._buffer, self._start + FRAME_PREFIX_BYTES)[0], length)
            frame = FRAME_PREFIX_BYTES + length
            if frame > len(self._buffer):
                # A length is a claim: memory follows the bytes that have come, or a few bytes could ask for it all.
                frame = max(len(self._buffer), min(frame, _GROWTH * unread))
            needed = max(needed, frame)
        if needed > len(self._buffer):
            # Twice what is needed, so that the next requests of this size come in whole and nothing is moved for them.
            roomy = max(needed, min(2 * needed, _BUFFER_KEEP_BYTES))
            grown = memoryview(bytearray(roomy))
            grown[:unread] = self._buffer[self._start : self._end]
            self._buffer = grown
        elif len(self._buffer) - self._start < needed or self._end == len(self._buffer):
            self._buffer[:unread] = self._buffer[self._start : self._end]
        else:
            return
        self._start, self._end = 0, unread

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._channel.ignore_readable()

    def _resume_reading(self) -> None:
        if not self._is_reading and not self.is_closed:
            self._is_reading = True
            self._channel.watch_readable(self._on_readable)

    # -- responses ----------------------------------------------------------------------------------------------------

    def on_answered(self) -> None:
        """Something in the queue is done: send what can be sent, once for everything done in this turn of the loop."""
        if self._is_in_loop or self._is_flush_scheduled or self.is_closed:
            return
        self._is_flush_scheduled = True
        self._loop.call_soon(self._on_flush)

    def _on_flush(self) -> None:
        self._is_flush_scheduled = False
        if self.is_closed:
            return
        self._flush()
        self._resume()

    def _resume(self) -> None:
        """Look at requests again that had to wait, now that something moved."""
        if self.is_closed:
            return
        if self.is_closing:
            if not self._answers and not self._unsent:
                self.close()
            return
        if not self._is_blocked:
            if self._end - self._start >= FRAME_PREFIX_BYTES:
                self._take_frames()
            if not self._is_blocked:
                self._resume_reading()

    def _flush(self) -> None:
        answers = self._answers
        while answers and answers[0].is_done:
            answer = answers.popleft()
            if answer is self._barrier:
                self._barrier = None
            self._unsent.extend(answer.pieces)
        if self._unsent and not self._is_writing:
            self._send()

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
                self._channel.ignore_writable()
            else:
                self._channel.watch_writable(self._on_writable)

    def _on_writable(self) -> None:
        self.last_active = self._loop.time()
        self._send()
        if not self._is_writing:
            self._resume()
