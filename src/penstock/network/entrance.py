"""Where connections wait until they are secured: each has to begin TLS, and to finish its handshake in time.

A handshake costs a millisecond of the processor and tens of kilobytes of memory before anything is known of the
client. So a few are taken further in each turn of the loop, beside everything else; so many may be in progress at once;
and each has a deadline, counted from when it was accepted. When there is no room, the oldest makes room if it had a
second already, as no honest client needs that long; else accepting waits, and the kernel's queue holds the rest.

A client that does not begin with TLS is told so in its own protocol (`penstock.wrong_port`); so is one that waits to be
spoken to, where that is how its protocol begins.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.config.settings import TlsSettings
from penstock.network.channel import SCRATCH_BYTES, TlsChannel
from penstock.network.sockets import Acceptor
from penstock.wrong_port import Guide, dismiss

log = logging.getLogger(__name__)

_STEPS_AT_ONCE: Final = 4  # some four milliseconds, with the largest keys in use
_PATIENCE_S: Final = 1.0
_SILENCE_S: Final = 1.0  # half of what a node waits for an answer
_HANDSHAKE: Final = b"\x16"  # the type of the record that TLS begins with
_FIRST_BYTES: Final = 64
_LOG_EVERY_S: Final = 60.0
_REASONS_MAX: Final = 32

Context = Callable[[], ssl.SSLContext]


class Arrival:
    """A connection that is not secured yet."""

    __slots__ = ("abort", "came_at", "channel", "client", "has_begun", "silence", "sock", "timer")

    def __init__(self, sock: socket.socket, came_at: float) -> None:
        self.sock = sock
        host, port = sock.getpeername()[:2]
        self.client = f"{host}:{port}"
        self.came_at = came_at
        self.timer: asyncio.TimerHandle | None = None
        self.silence: asyncio.TimerHandle | None = None
        self.has_begun = False
        self.channel: TlsChannel | None = None
        self.abort: Callable[[], object] | None = None  # of another party that has taken up the handshake


class Entrance:
    """The connections of one port on their way to being secured. A subclass says who shakes hands: `begin`."""

    def __init__(self, guide: Guide, settings: TlsSettings, words_for_silent: bytes = b"") -> None:
        self._loop = asyncio.get_running_loop()
        self._guide = guide
        self._timeout_s = settings.handshake_timeout_ms / 1000
        self._most = settings.handshakes_max
        self._words_for_silent = words_for_silent
        self._arrivals: dict[Arrival, None] = {}  # the oldest first
        self._ready: deque[Arrival] = deque()
        self._is_scheduled = False
        self._told: dict[
            str, tuple[float, int]
        ] = {}  # when each reason was logged last, and how often it was not since
        self._acceptors: list[Acceptor] = []
        self._room_timer: asyncio.TimerHandle | None = None
        self.cut_off = 0  # because they took too long, or others needed their place

    def __len__(self) -> int:
        return len(self._arrivals)

    def hold(self, acceptor: Acceptor) -> None:
        """Have this acceptor wait while there is no room."""
        self._acceptors.append(acceptor)

    def receive(self, sock: socket.socket) -> None:
        """Take a connection, and hand it on once it is secured; `OSError` if it is gone already."""
        sock.setblocking(False)  # noqa: FBT003
        arrival = Arrival(sock, self._loop.time())
        arrival.timer = self._loop.call_later(self._timeout_s, self._expire, arrival)
        self._arrivals[arrival] = None
        if self._words_for_silent:
            arrival.silence = self._loop.call_later(_SILENCE_S, self._break_silence, arrival)
        self._loop.add_reader(sock.fileno(), self._on_readable, arrival)
        self._make_room()

    def close(self) -> None:
        if self._room_timer is not None:
            self._room_timer.cancel()
        for arrival in tuple(self._arrivals):
            self.drop(arrival)

    def begin(self, arrival: Arrival) -> None:
        """The client has begun TLS: nothing of it was read yet."""
        raise NotImplementedError

    def step(self, arrival: Arrival) -> None:
        """More of the handshake came; only where the reader is still this entrance's."""
        raise NotImplementedError

    # -- room ---------------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        if len(self._arrivals) < self._most:
            return
        oldest = next(iter(self._arrivals))
        left_s = oldest.came_at + _PATIENCE_S - self._loop.time()
        if left_s <= 0:
            self._cut(oldest, self._full)
        elif self._room_timer is None:
            for acceptor in self._acceptors:
                acceptor.hold()
            self._room_timer = self._loop.call_later(left_s, self._look_for_room)

    def _look_for_room(self) -> None:
        """The oldest had its time; cutting it off lets others in."""
        self._cut(next(iter(self._arrivals)), self._full)

    @property
    def _full(self) -> str:
        return f"{self._most} connections are at their TLS handshake, and others wait"

    def _let_in(self) -> None:
        if len(self._arrivals) < self._most and self._room_timer is not None:
            self._room_timer.cancel()
            self._room_timer = None
            for acceptor in self._acceptors:
                acceptor.go_on()

    def _expire(self, arrival: Arrival) -> None:
        self._cut(arrival, f"no TLS handshake within {self._timeout_s:g} s")

    def _cut(self, arrival: Arrival, reason: str) -> None:
        self.cut_off += 1
        self.fail(arrival, reason)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _on_readable(self, arrival: Arrival) -> None:
        self._loop.remove_reader(arrival.sock.fileno())
        self._ready.append(arrival)
        self._schedule()

    def _schedule(self) -> None:
        if self._ready and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        """Take a few further; the rest have their turn when the loop has seen to everything else."""
        self._is_scheduled = False
        for _ in range(min(_STEPS_AT_ONCE, len(self._ready))):
            arrival = self._ready.popleft()
            if arrival in self._arrivals:
                self._take_further(arrival)
        self._schedule()

    def _take_further(self, arrival: Arrival) -> None:
        try:
            if not arrival.has_begun:
                if not self._look(arrival):
                    return
                arrival.has_begun = True
                self.begin(arrival)
            else:
                self.step(arrival)
        except (BlockingIOError, InterruptedError):
            self._loop.add_reader(arrival.sock.fileno(), self._on_readable, arrival)
        except OSError as error:
            self.fail(arrival, explain(error))

    def _look(self, arrival: Arrival) -> bool:
        """Whether the client begins TLS; one that does not is told, and gone."""
        first = arrival.sock.recv(_FIRST_BYTES, socket.MSG_PEEK)
        if not first:
            self.drop(arrival)
            return False
        if first[:1] == _HANDSHAKE:
            return True
        sock = arrival.sock
        answer = self._guide.answer_plain(first, client=arrival.client, host=sock.getsockname()[0])
        if answer is None:
            self.fail(arrival, "it does not begin with TLS")
            return False
        self._forget(arrival)
        dismiss(sock, answer)
        return False

    def _break_silence(self, arrival: Arrival) -> None:
        """Tell a client that has sent nothing what it is to begin with."""
        if arrival.has_begun or arrival not in self._arrivals:
            return
        self._note(arrival, "it sends nothing; the client seems to be set up without TLS")
        self._forget(arrival)
        dismiss(arrival.sock, self._words_for_silent)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def leave(self, arrival: Arrival) -> None:
        """The connection is secured, or another's: it takes no place here any more."""
        self._forget(arrival)

    def fail(self, arrival: Arrival, reason: str) -> None:
        """Close a connection that could not be secured, and tell the log, each reason once a minute."""
        if arrival not in self._arrivals:
            return
        self._note(arrival, reason)
        self.drop(arrival)

    def _note(self, arrival: Arrival, reason: str) -> None:
        now = self._loop.time()
        told_at, untold = self._told.get(reason, (-_LOG_EVERY_S, 0))
        if len(self._told) > _REASONS_MAX:
            self._told.clear()
        if now - told_at >= _LOG_EVERY_S:
            more = f" ({untold} more since the last time)" if untold else ""
            log.warning("No TLS with %s at %s: %s.%s", arrival.client, self._guide.door.rstrip(","), reason, more)
            self._told[reason] = now, 0
        else:
            self._told[reason] = told_at, untold + 1
            log.debug("No TLS with %s: %s.", arrival.client, reason)

    def drop(self, arrival: Arrival) -> None:
        if arrival not in self._arrivals:
            return
        self._forget(arrival)
        if arrival.abort is not None:
            arrival.abort()
        else:
            arrival.sock.close()

    def _forget(self, arrival: Arrival) -> None:
        for timer in (arrival.timer, arrival.silence):
            if timer is not None:
                timer.cancel()
        if self._arrivals.pop(arrival, self) is not self and arrival.abort is None:
            self._loop.remove_reader(arrival.sock.fileno())
        self._let_in()


class ChannelEntrance(Entrance):
    """Shakes hands itself, and hands on channels."""

    def __init__(
        self,
        guide: Guide,
        settings: TlsSettings,
        context: Context,
        on_secured: Callable[[TlsChannel], None],
        words_for_silent: bytes = b"",
    ) -> None:
        super().__init__(guide, settings, words_for_silent)
        self._context = context
        self._on_secured = on_secured
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    def begin(self, arrival: Arrival) -> None:
        arrival.channel = TlsChannel(arrival.sock, self._context(), self._scratch, is_server=True)
        self.step(arrival)

    def step(self, arrival: Arrival) -> None:
        channel = arrival.channel
        assert channel is not None, "it has begun"
        channel.shake()
        self.leave(arrival)
        try:
            self._on_secured(channel)
        except OSError:  # the client is gone again already
            channel.close()


def explain(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return error.strerror or str(error) or "the connection was closed during the TLS handshake"
