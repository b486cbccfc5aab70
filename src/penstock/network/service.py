"""The methods that this node answers, whichever connection a call comes by."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import msgspec

from penstock.errors import InvalidRequest, PeerNotReached, PeerUnavailable, PenstockError, PolicyViolation
from penstock.network.frames import Failure, Frame, FrameKind, decode_structure, joined
from penstock.network.port import ABANDON, Handler, Method, Pieces, Received, Reply

log = logging.getLogger(__name__)

# How an answer gets back to the caller; called once, now or later.
Answer = Callable[[FrameKind, msgspec.Struct, Pieces], None]


def _no_answer(kind: FrameKind, structure: msgspec.Struct, body: Pieces) -> None:
    """What was told and not asked is not answered."""


class Service:
    """Finds the handler of a method, runs it, and sees that it is answered."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._methods: dict[str, tuple[Method[Any, Any], Handler]] = {}
        self._running: dict[asyncio.Future[Any], None] = {}
        self._ending: dict[Hashable, dict[int, asyncio.Future[Any]]] = {}  # with their callers, by connection

    def serve(self, method: Method[Any, Any], handler: Handler) -> None:
        self._methods[method.name] = (method, handler)

    async def stop(self) -> None:
        """Give up what is still being answered."""
        running = tuple(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def handle(
        self, caller: int, frame: Frame, connection: Hashable, answer: Answer = _no_answer, *, is_visit: bool = False
    ) -> None:
        """Serve one frame. Handlers that do not wait are done when this returns, so they run in the order of calls.

        ``is_visit``: it came over a link to an address, and the caller may not be a node yet.
        """
        try:
            if frame.method == ABANDON.name:
                self._abandon(connection, _request(ABANDON, frame.structure).number)
                return
            method, handler = self._find(frame.method)
            if is_visit and not method.is_for_visitors:
                raise PolicyViolation(f"Only nodes of the cluster may ask for {frame.method}.")
            outcome = handler(caller, _request(method, frame.structure), frame.body)
            serving = self._finish(frame.method, outcome, answer)
        except Exception as error:
            self._answer_error(frame.method, error, answer)
        else:
            if serving is not None and method.ends_with_caller:
                ending = self._ending.setdefault(connection, {})
                ending[frame.number] = serving
                serving.add_done_callback(lambda _: ending.pop(frame.number, None))

    def _abandon(self, connection: Hashable, number: int) -> None:
        serving = self._ending.get(connection, {}).get(number)
        if serving is not None:
            serving.cancel()

    def on_lost(self, connection: Hashable) -> None:
        """A connection is gone, and with it the callers at its other end."""
        for serving in tuple(self._ending.pop(connection, {}).values()):
            serving.cancel()

    async def call_here(
        self, method: Method[Any, Any], request: msgspec.Struct, body: Pieces, timeout_s: float
    ) -> Received:
        """Serve a call of this node to itself, without a detour through bytes."""
        _, handler = self._find(method.name)
        outcome: Any = handler(self._node_id, request, joined(body))
        if inspect.isawaitable(outcome):
            try:
                async with asyncio.timeout(timeout_s):
                    outcome = await outcome
            except TimeoutError as error:
                raise PeerUnavailable(f"This node did not finish {method.name} within {timeout_s:g} s.") from error
        if isinstance(outcome, Reply):
            return Received(outcome.reply, joined(outcome.body))
        return Received(outcome, joined(()))

    def tell_here(self, method: Method[Any, Any], request: msgspec.Struct, body: Pieces) -> None:
        """Serve what this node tells itself, in a later turn of the loop as if it had travelled."""
        told = joined(body)
        asyncio.get_running_loop().call_soon(self._handle_own, method.name, request, told)

    def _handle_own(self, name: str, request: msgspec.Struct, body: memoryview) -> None:
        try:
            _, handler = self._find(name)
            self._finish(name, handler(self._node_id, request, body), _no_answer)
        except Exception as error:
            self._answer_error(name, error, _no_answer)

    def _finish(
        self, name: str, outcome: msgspec.Struct | Reply | Awaitable[msgspec.Struct | Reply], answer: Answer
    ) -> asyncio.Future[Any] | None:
        """Answer now, or when the work is done that this returns."""
        if isinstance(outcome, Reply | msgspec.Struct):
            self._answer(name, outcome, answer)
            return None
        task = asyncio.ensure_future(outcome)
        self._running[task] = None
        task.add_done_callback(lambda task: self._on_done(name, task, answer))
        return task

    def _find(self, name: str) -> tuple[Method[Any, Any], Handler]:
        found = self._methods.get(name)
        if found is None:
            raise PeerNotReached(
                f"Node {self._node_id} does not answer {name}: it is starting or stopping, or runs an older release of "
                "Penstock, which has to be upgraded."
            )
        return found

    def _on_done(self, name: str, task: asyncio.Future[Any], answer: Answer) -> None:
        self._running.pop(task, None)
        if task.cancelled():
            self._answer_error(name, PeerUnavailable(f"Node {self._node_id} is stopping."), answer)
        elif (error := task.exception()) is not None:
            self._answer_error(name, error, answer)
        else:
            self._answer(name, task.result(), answer)

    def _answer(self, name: str, outcome: msgspec.Struct | Reply, answer: Answer) -> None:
        try:
            if isinstance(outcome, Reply):
                answer(FrameKind.REPLY, outcome.reply, outcome.body)
            else:
                answer(FrameKind.REPLY, outcome, ())
        except PenstockError as error:  # the reply is too large to be sent
            self._answer_error(name, error, answer)

    def _answer_error(self, name: str, error: BaseException, answer: Answer) -> None:
        if not isinstance(error, PenstockError):
            log.error("Serving %s to another node met a bug.", name, exc_info=error)
            error = PenstockError(f"Node {self._node_id} met a bug while it served {name}; its log tells more.")
        elif answer is _no_answer:
            log.debug("What another node told us by %s was refused: %s", name, error.message)
        answer(FrameKind.ERROR, Failure.of(error), ())


def _request(method: Method[Any, Any], structure: memoryview) -> Any:
    try:
        return decode_structure(method.request, structure)
    except msgspec.DecodeError as error:
        raise InvalidRequest(
            f"The request of {method.name} cannot be read ({error}): run the same release of Penstock on all nodes."
        ) from error
