"""The way to the controller, from any node: it finds the leader, and asks again when leaders change.

Commands can be asked for twice: the controller takes most of them as already done, and where it says instead that there
is nothing (left) to do, and an earlier try may have done it, that is success. A caller that returns from `submit` sees
on its own node what was decided.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from msgspec.structs import replace

from penstock.clock import Clock
from penstock.consensus.commands import (
    AddPartitions,
    Answer,
    Command,
    DeleteTopic,
    Done,
    ElectLeaders,
    Outcomes,
    Reassign,
    RemoveNode,
)
from penstock.consensus.quorum.driver import Quorum
from penstock.consensus.quorum.wire import SUBMIT, Submit, Submitted
from penstock.errors import (
    ControllerUnavailable,
    InvalidPartitions,
    NodeNotFound,
    NotController,
    PeerUnavailable,
    PenstockError,
    RequestTimedOut,
    UnknownTopic,
)
from penstock.network.port import Peers

_BACKOFF_S: Final = (0.05, 0.2)
_LOOK_S: Final = 0.2  # how often to look whether the leader that was asked still leads
_PATIENCE_S: Final = 5.0  # with one leader


class ControllerClient:
    """Asks whichever node leads the quorum."""

    def __init__(self, quorum: Quorum, peers: Peers, clock: Clock, random: Random) -> None:
        self._quorum = quorum
        self._peers = peers
        self._clock = clock
        self._random = random

    async def submit(self, command: Command, *, timeout_s: float = 15.0) -> Answer:
        """The controller's answer, once what it decided is applied on this node.

        Raises the controller's error, or `ControllerUnavailable` if there was no answer in time: then it may or may
        not have come true.
        """
        until = self._clock.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask_on(command, until)
        except TimeoutError:
            raise ControllerUnavailable(
                f"No answer from the controller within {timeout_s:g} s: too few nodes can reach each other. Try again."
            ) from None

    async def _ask_on(self, command: Command, until: float) -> Answer:
        may_be_done = False  # an earlier try whose outcome is not known
        while True:
            leader = self._quorum.leader_id
            if leader is not None:
                try:
                    submitted = await self._ask(leader, command, until)
                    if not self._removes_this_node(command):  # which hears nothing more once it is decided
                        await self._quorum.applied(submitted.index)
                    return self._taken(command, submitted, may_be_done=may_be_done)
                except NotController:
                    pass
                except (ControllerUnavailable, PeerUnavailable, RequestTimedOut):
                    may_be_done = True
            await asyncio.sleep(self._random.uniform(*_BACKOFF_S))

    async def _ask(self, leader: int, command: Command, until: float) -> Submitted:
        """Ask one leader, until it answers or another node leads."""
        timeout_s = max(0.01, min(_PATIENCE_S, until - self._clock.monotonic()))
        call = asyncio.ensure_future(self._peers.call(leader, SUBMIT, Submit(command), timeout_s=timeout_s))
        try:
            while not call.done():
                await asyncio.wait((call,), timeout=_LOOK_S)
                if not call.done() and self._quorum.leader_id not in (leader, None):
                    raise ControllerUnavailable(f"Node {leader} no longer leads.")
            reply = call.result().reply
            assert isinstance(reply, Submitted)
            return reply
        finally:
            call.cancel()

    def _removes_this_node(self, command: Command) -> bool:
        return isinstance(command, RemoveNode) and command.node_id == self._quorum.me.node_id

    def _taken(self, command: Command, submitted: Submitted, *, may_be_done: bool) -> Answer:
        """The answer, or the error that it is; what an earlier try may have done already is none."""
        if submitted.refusal is not None:
            error = submitted.refusal.revived()
            if may_be_done and self._is_own_success(command, error):
                return Done()
            raise error
        assert submitted.answer is not None
        return _forgive(command, submitted.answer) if may_be_done else submitted.answer

    def _is_own_success(self, command: Command, error: PenstockError) -> bool:
        match command:
            case DeleteTopic():
                return isinstance(error, UnknownTopic)
            case RemoveNode():
                return isinstance(error, NodeNotFound)
            case AddPartitions():
                topic = self._quorum.metadata.topics.get(command.name)
                has_grown = topic is not None and len(topic.partitions) == command.count
                return isinstance(error, InvalidPartitions) and has_grown
        return False


def _forgive(command: Command, answer: Answer) -> Answer:
    if not isinstance(answer, Outcomes) or not isinstance(command, (Reassign, ElectLeaders)):
        return answer
    outcomes = tuple(
        replace(outcome, error=None, message="")
        if outcome.error in ("NoReassignment", "ElectionNotNeeded")
        else outcome
        for outcome in answer.outcomes
    )
    return Outcomes(outcomes=outcomes)
