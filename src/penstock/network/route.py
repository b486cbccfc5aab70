"""The route to one node: a link that is kept up while there is traffic for it, and the calls that wait on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from penstock.clock import Clock
from penstock.errors import PeerNotReached, PeerUnavailable
from penstock.network.frames import Failure, Frame, FrameKind, decode_structure
from penstock.network.link import UNSENT_BYTES_MAX, Link
from penstock.network.port import ABANDON, Abandoned, Method, Pieces, Received

log = logging.getLogger(__name__)

_BACKOFF_MIN_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
_WANTED_S: Final = 10.0  # since the last call or message

Connect = Callable[[], Awaitable[Link]]


def _ignore() -> None:
    """The default of a listener."""


class PeerRoute:
    """Calls and tells to one node, in order, over one link at a time."""

    def __init__(self, name: str, connect: Connect, clock: Clock) -> None:
        self.name = name
        self._connect = connect
        self._clock = clock
        self.on_up: Callable[[], None] = _ignore
        self.on_down: Callable[[], None] = _ignore
        self._link: Link | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._wanted_at = 0.0
        self._number = 0
        self._calls: dict[int, tuple[asyncio.Future[Received], type[msgspec.Struct]]] = {}
        self._arriving: dict[asyncio.Future[Link], None] = {}
        self._last_problem = ""
        self.problem_level = logging.WARNING

    @property
    def is_up(self) -> bool:
        return self._link is not None

    def tell(self, method: Method[Any, Any], request: msgspec.Struct, body: Pieces = ()) -> None:
        """Send if the link is up and the other end keeps up; what cannot be sent is dropped."""
        self._want()
        link = self._link
        if link is not None and link.unsent_bytes < UNSENT_BYTES_MAX:
            link.send(FrameKind.TELL, 0, method.name, request, body)

    async def call(
        self, method: Method[Any, Any], request: msgspec.Struct, body: Pieces, *, timeout_s: float
    ) -> Received:
        self._want()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        link = self._link
        if link is None:
            link = await self._arrival(timeout_s)
            if link.is_closed:
                raise PeerNotReached(f"The connection to {self.name} broke as soon as it was there.")
        if link.unsent_bytes >= UNSENT_BYTES_MAX:
            raise PeerNotReached(f"{self.name} is too far behind in taking what it is sent; try again in a moment.")
        self._number += 1
        number = self._number
        future: asyncio.Future[Received] = loop.create_future()
        link.send(FrameKind.CALL, number, method.name, request, body)
        self._calls[number] = (future, method.reply)
        timer = loop.call_at(deadline, self._expire, future, method.name, timeout_s)
        try:
            return await future
        finally:
            timer.cancel()
            if self._calls.pop(number, None) is not None and method.ends_with_caller:
                link.send(FrameKind.TELL, 0, ABANDON.name, Abandoned(number))

    def _expire(self, future: asyncio.Future[Any], what: str, timeout_s: float) -> None:
        if not future.done():
            future.set_exception(PeerUnavailable(f"{self.name} did not answer {what} within {timeout_s:g} s."))

    async def _arrival(self, timeout_s: float) -> Link:
        """The link, once the next try to connect has worked out."""
        loop = asyncio.get_running_loop()
        arriving: asyncio.Future[Link] = loop.create_future()
        self._arriving[arriving] = None
        timer = loop.call_later(timeout_s, self._expire, arriving, "a connection", timeout_s)
        try:
            return await arriving
        finally:
            timer.cancel()
            self._arriving.pop(arriving, None)

    def hurry(self) -> None:
        """There is reason to think that the node is back: do not sit out the pause between two tries."""
        self._hurry.set()

    def _want(self) -> None:
        self._wanted_at = self._clock.monotonic()
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"link to {self.name}")
            self._keeper.add_done_callback(self._on_kept)

    def _on_kept(self, keeper: asyncio.Task[None]) -> None:
        if self._keeper is keeper:
            self._keeper = None
        if not keeper.cancelled() and (bug := keeper.exception()) is not None:
            what = f"Keeping the link to {self.name} met a bug; the next message begins anew."
            keeper.get_loop().call_exception_handler({"message": what, "exception": bug, "task": keeper})
        self._fail_arriving(PeerUnavailable(f"The connection to {self.name} was given up."))

    async def _keep(self) -> None:
        pause_s = _BACKOFF_MIN_S
        while self._clock.monotonic() - self._wanted_at < _WANTED_S:
            try:
                link = await self._connect()
            except PeerUnavailable as error:
                self._note(error.message)
                self._fail_arriving(error)
            else:
                pause_s = _BACKOFF_MIN_S
                await self._use(link)
            self._hurry.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._hurry.wait()
            except TimeoutError:
                pause_s = min(2 * pause_s, _BACKOFF_MAX_S)

    async def _use(self, link: Link) -> None:
        """Hand the link to the calls that wait for one, and return when it is lost."""
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        link.on_frame = self._on_frame
        link.on_closed = lambda reason: self._on_closed(link, reason, lost)
        if link.is_closed:
            return
        self._link = link
        self._last_problem = ""
        log.info("Connected to %s.", self.name)
        arriving, self._arriving = self._arriving, {}
        for future in arriving:
            if not future.done():
                future.set_result(link)
        self.on_up()
        try:
            await lost
        finally:
            link.close("it is no longer needed")

    def _on_closed(self, link: Link, reason: str, lost: asyncio.Future[str]) -> None:
        if not lost.done():
            lost.set_result(reason)
        if self._link is not link:
            return
        self._link = None
        log.info("The connection to %s is lost: %s.", self.name, reason)
        calls, self._calls = self._calls, {}
        for future, _ in calls.values():
            if not future.done():
                future.set_exception(
                    PeerUnavailable(f"The connection to {self.name} broke before it answered: {reason}.")
                )
        self.on_down()

    def _on_frame(self, frame: Frame) -> None:
        call = self._calls.pop(frame.number, None)
        if call is None or call[0].done():
            return  # it came too late: the call has timed out
        future, kind = call
        try:
            if frame.kind == FrameKind.REPLY:
                future.set_result(Received(decode_structure(kind, frame.structure), frame.body))
            elif frame.kind == FrameKind.ERROR:
                failure: Failure = decode_structure(Failure, frame.structure)
                future.set_exception(failure.revived())
        except msgspec.DecodeError as error:
            future.set_exception(
                PeerUnavailable(
                    f"The reply of {self.name} cannot be read ({error}): run the same release of Penstock on all nodes."
                )
            )

    def _note(self, problem: str) -> None:
        """Log why it cannot be reached, once for each reason."""
        if problem != self._last_problem:
            self._last_problem = problem
            log.log(self.problem_level, "%s", problem)

    def _fail_arriving(self, error: PeerUnavailable) -> None:
        arriving, self._arriving = self._arriving, {}
        for future in arriving:
            if not future.done():
                future.set_exception(PeerNotReached(error.message))

    def close(self) -> None:
        """Close the link and stop trying; a later call begins anew."""
        keeper, self._keeper = self._keeper, None
        if self._link is not None:
            self._link.close("this node closed it")
        if keeper is not None:
            keeper.cancel()
        else:
            self._fail_arriving(PeerUnavailable(f"The connection to {self.name} was given up."))
