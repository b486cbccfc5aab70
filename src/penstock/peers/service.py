"""The methods that this node answers, whoever carries the question here."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from penstock.errors import InvalidRequest, PeerUnavailable, PenstockError, PolicyViolation
from penstock.peers.frames import Failure, Frame, Kind, decode_structure, joined
from penstock.peers.port import Handler, Method, Pieces, Received, Reply

log = logging.getLogger(__name__)

# How an answer gets back to who asked; called once, now or later.
Answer = Callable[[Kind, msgspec.Struct, Pieces], None]


def _no_answer(kind: Kind, structure: msgspec.Struct, body: Pieces) -> None:
    """What was told and not asked is not answered."""


class Service:
    """Finds the handler of a method, runs it, and sees that it is answered."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._methods: dict[str, tuple[Method[Any, Any], Handler]] = {}
        self._running: dict[asyncio.Future[Any], None] = {}

    def serve(self, method: Method[Any, Any], handler: Handler) -> None:
        self._methods[method.name] = (method, handler)

    async def stop(self) -> None:
        """Give up what is still being answered."""
        running = tuple(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def handle(self, caller: int, frame: Frame, answer: Answer = _no_answer, *, is_visit: bool = False) -> None:
        """Serve one frame. Handlers that do not wait are done when this returns, so they run in the order of calls.

        ``is_visit``: it came over a link to an address, of somebody who may be no node yet.
        """
        try:
            method, handler = self._find(frame.method)
            if is_visit and not method.is_for_visitors:
                raise PolicyViolation(f"Only nodes of the cluster may ask for {frame.method}.")
            self._finish(frame.method, handler(caller, _request(method, frame.structure), frame.body), answer)
        except Exception as error:
            self._answer_error(frame.method, error, answer)

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
        asyncio.get_running_loop().call_soon(self._hear, method.name, request, told)

    def _hear(self, name: str, request: msgspec.Struct, body: memoryview) -> None:
        try:
            _, handler = self._find(name)
            self._finish(name, handler(self._node_id, request, body), _no_answer)
        except Exception as error:
            self._answer_error(name, error, _no_answer)

    def _finish(
        self, name: str, outcome: msgspec.Struct | Reply | Awaitable[msgspec.Struct | Reply], answer: Answer
    ) -> None:
        if isinstance(outcome, Reply | msgspec.Struct):
            self._answer(name, outcome, answer)
            return
        task = asyncio.ensure_future(outcome)
        self._running[task] = None
        task.add_done_callback(lambda task: self._on_done(name, task, answer))

    def _find(self, name: str) -> tuple[Method[Any, Any], Handler]:
        found = self._methods.get(name)
        if found is None:
            raise PeerUnavailable(f"Node {self._node_id} does not answer {name} now; it is starting or stopping.")
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
                answer(Kind.REPLY, outcome.reply, outcome.body)
            else:
                answer(Kind.REPLY, outcome, ())
        except PenstockError as error:  # the reply is too large to be sent
            self._answer_error(name, error, answer)

    def _answer_error(self, name: str, error: BaseException, answer: Answer) -> None:
        if not isinstance(error, PenstockError):
            log.error("Serving %s to another node met a bug.", name, exc_info=error)
            error = PenstockError(f"Node {self._node_id} met a bug while it served {name}; its log tells more.")
        elif answer is _no_answer:
            log.debug("What another node told us by %s was refused: %s", name, error.message)
        answer(Kind.ERROR, Failure.of(error), ())


def _request(method: Method[Any, Any], structure: memoryview) -> Any:
    try:
        return decode_structure(method.request, structure)
    except msgspec.DecodeError as error:
        raise InvalidRequest(
            f"The request of {method.name} cannot be read ({error}): run the same release of Penstock on all nodes."
        ) from error
