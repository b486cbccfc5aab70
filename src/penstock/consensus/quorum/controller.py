"""The controller at work: it runs on every node, and acts while its node leads the quorum.

One decision at a time: decide (`penstock.consensus.controller`), have the records committed, answer. A decision runs to
its end even if its caller has gone, because the next one has to see what became of it. Heartbeats touch the sessions
only, and wait for no decision unless they change something.

Twice a second the controller does what no command asks for: it fences nodes that went silent, gives leadership back to
preferred replicas, and keeps up the voters. That is cheap when nothing has changed: partitions are only looked through
after the metadata has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from penstock.clock import Clock
from penstock.consensus.commands import (
    OWN_COMMANDS,
    Command,
    Done,
    Heard,
    Heartbeat,
    RegisterNode,
    RemoveNode,
    TransferControl,
)
from penstock.consensus.controller import ControllerView, Decision, MetadataDraft, Rules, decide
from penstock.consensus.controller.elections import give_back_leaders
from penstock.consensus.controller.moves import raise_internal_topics, start_move
from penstock.consensus.controller.nodes import fence, is_needed, step_aside, unfence
from penstock.consensus.membership import NodeSession, NodeSessions, next_members
from penstock.consensus.quorum.driver import Quorum
from penstock.consensus.quorum.wire import SUBMIT, Submit, Submitted
from penstock.consensus.records import ClusterCreated, MetadataRecord
from penstock.errors import (
    ControllerUnavailable,
    InvalidRequest,
    NodeNotFound,
    NotController,
    PenstockError,
    StaleNodeEpoch,
)
from penstock.network.frames import Failure
from penstock.network.port import Peers, check_sender
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
_MARGIN_MS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """How patient the controller is, and what it strives for. The same on every node."""

    session_ms: int = 2_000
    # How long a node has to be heard once the connection to it broke: a process that dies closes its connections.
    suspicion_ms: int = 750
    voters: int = 3
    rules: Rules = field(default_factory=Rules)
    maintenance_interval_ms: int = 500
    # How long a node has to be back before it is given what it should lead.
    settling_ms: int = 10_000


class ControllerShell:
    """This node's controller. `start` it before the quorum starts."""

    def __init__(
        self,
        node_id: int,
        quorum: Quorum,
        peers: Peers,
        clock: Clock,
        random: Random,
        config: ControllerConfig | None = None,
        *,
        supervision: Supervision,
    ) -> None:
        self.node_id = node_id
        self.quorum = quorum
        self.config = config or ControllerConfig()
        self.sessions = NodeSessions(self.config.session_ms)
        self.is_active = False
        self._is_stopped = False
        self._supervision = supervision
        self._peers = peers
        self._clock = clock
        self._random = random
        self._turn = asyncio.Lock()
        self._running: dict[asyncio.Task[object], None] = {}
        # What the last round of maintenance in this term saw.
        self._maintained_version = -1
        self._maintained_unable: frozenset[int] = frozenset()
        self._is_settling = True

    def start(self) -> None:
        """Serve commands, and act whenever this node leads."""
        self.quorum.listen(lambda _index, _records: None, lambda: None, self._on_leading)
        self._peers.serve(SUBMIT, self._on_submit)
        self._peers.on_lost(self._on_lost)

    async def stop(self) -> None:
        self.is_active, self._is_stopped = False, True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _on_leading(self, is_leading: bool) -> None:
        self.is_active = is_leading and not self._is_stopped
        if self.is_active:
            self.sessions.begin(self.quorum.metadata.nodes, self.now_ms(), self.quorum.applied_index)
            for node_id in sorted(self.quorum.metadata.nodes):
                if node_id != self.node_id and not self._peers.is_connected(node_id):
                    self._on_lost(node_id)
            self._run(self._maintain_while_leading(self.quorum.term))

    def _on_lost(self, node_id: int) -> None:
        """The connection to a node broke. If it does not say soon that it lives, it is taken for dead."""
        if self.is_active:
            self.sessions.suspect(node_id, self.now_ms(), self.config.suspicion_ms)
            self._run(self._fence_soon())

    async def _fence_soon(self) -> None:
        await asyncio.sleep((self.config.suspicion_ms + _MARGIN_MS) / 1000)
        if self.is_active:
            try:
                await self.in_turn(self._fence_expired)
            except (NotController, ControllerUnavailable):
                return  # the node that leads now sees to it
            except Exception as error:
                self._supervision.note("maintenance by the controller", error)

    async def _on_submit(self, sender: int, request: Submit, _body: memoryview) -> Submitted:
        if isinstance(request.command, OWN_COMMANDS):
            check_sender(sender, request.command.node_id)
        try:
            return await self.submit(request.command)
        except (NotController, ControllerUnavailable):
            raise
        except PenstockError as error:
            # It speaks of what is applied here, which the caller's node may not know of yet.
            return Submitted(None, self.quorum.applied_index, Failure.of(error))

    # -- turns --------------------------------------------------------------------------------------------------------

    def _run(self, work: Awaitable[ResultT]) -> asyncio.Task[ResultT]:
        async def run() -> ResultT:
            return await work

        task = asyncio.get_running_loop().create_task(run())
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._running.pop(task, None)
        if not task.cancelled():
            task.exception()  # raised by whatever awaits it, if anything does

    async def in_turn(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Do something while no other decision runs, to its end even if the caller is cancelled."""

        async def when_due() -> ResultT:
            async with self._turn:
                self._check_active()
                return await work()

        return await asyncio.shield(self._run(when_due()))

    def _check_active(self) -> None:
        if not self.is_active or not self.quorum.is_leader:
            leader = self.quorum.leader_id
            hint = "no leader is known" if leader in (None, self.node_id) else f"node {leader} does"
            raise NotController(f"Node {self.node_id} does not lead the quorum; {hint}.")

    def draft(self) -> MetadataDraft:
        return MetadataDraft(self.quorum.metadata, self.config.rules, self._situation())

    def _situation(self) -> ControllerView:
        return ControllerView(
            index=self.quorum.applied_index,
            leaving=self.sessions.leaving(),
            silent=self.sessions.silent(),
            unable=self.sessions.unable(),
        )

    async def commit(self, records: Sequence[MetadataRecord]) -> int:
        """Make records facts; the index at which they are. With none, that this node leads is made sure of."""
        if not self.quorum.metadata.cluster_id:
            records = [ClusterCreated(cluster_id=f"{self._random.getrandbits(128):032x}"), *records]
        if records:
            return await self.quorum.propose(records)
        return await self.quorum.read_index()

    # -- commands -----------------------------------------------------------------------------------------------------

    async def submit(self, command: Command) -> Submitted:
        """Decide on a command, if this node leads (`NotController`).

        `ControllerUnavailable` means that it may or may not have come true.
        """
        self._check_active()
        match command:
            case Heartbeat():
                return await self._on_heartbeat(command)
            case TransferControl():
                return await self.in_turn(lambda: self._transfer(command))
            case RemoveNode():
                return await self.in_turn(lambda: self._remove(command))
        return await self.in_turn(lambda: self._execute(command))

    async def _execute(self, command: Command) -> Submitted:
        decision = await self._decide(command)
        index = await self.commit(decision.records)
        if isinstance(command, RegisterNode):
            self.sessions.end(command.node_id)
            self.sessions.renew(command.node_id, self.now_ms())
            self.sessions.require(command.node_id, index)
            log.info("Node %d registered.", command.node_id)
        return Submitted(decision.answer, index)

    async def _decide(self, command: Command) -> Decision:
        try:
            return decide(self.quorum.metadata, command, rules=self.config.rules, situation=self._situation())
        except PenstockError:
            await self.quorum.read_index()  # a leader of yesterday must not tell what is not there
            raise

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    async def _on_heartbeat(self, beat: Heartbeat) -> Submitted:
        node = self.quorum.metadata.nodes.get(beat.node_id)
        if node is None or node.epoch != beat.epoch:
            await self.quorum.read_index()
            if node is None:
                raise NodeNotFound(f"Node {beat.node_id} is not registered, or was removed.")
            raise StaleNodeEpoch(f"Node {beat.node_id} has registered again since: it is in epoch {node.epoch}.")
        session = self.sessions.renew(beat.node_id, self.now_ms())
        session.is_leaving = beat.is_leaving
        was_unable, session.is_unable = session.is_unable, beat.is_unable
        if beat.is_leaving:
            return await self.in_turn(lambda: self._release(beat))
        if beat.is_unable and not was_unable:
            await self.in_turn(lambda: self._step_aside(beat.node_id))
        elif was_unable and not beat.is_unable:
            session.admitted_ms = self.now_ms()  # as one that came back: it is given what it should lead after a while
            log.info("Node %d can write again.", beat.node_id)
        if node.is_fenced and beat.applied_index >= session.must_have_applied:
            return await self.in_turn(lambda: self._admit(beat, session))
        return Submitted(Heard(is_fenced=node.is_fenced, may_leave=False), 0)

    async def _admit(self, beat: Heartbeat, session: NodeSession) -> Submitted:
        draft = self.draft()
        node = draft.nodes.get(beat.node_id)
        if node is None or node.epoch != beat.epoch:
            raise StaleNodeEpoch(f"Node {beat.node_id} has registered again since.")
        unfence(draft, beat.node_id)
        index = await self.commit(draft.records())
        session.admitted_ms = self.now_ms()
        log.info("Node %d is let in.", beat.node_id)
        return Submitted(Heard(is_fenced=False, may_leave=False), index)

    async def _step_aside(self, node_id: int) -> None:
        """Move leadership away from a node that cannot write, where another node can lead. It stays a replica."""
        log.warning("Node %d cannot write to its disk: others lead where they can.", node_id)
        draft = self.draft()
        step_aside(draft, node_id)
        await self.commit(draft.records())

    async def _release(self, beat: Heartbeat) -> Submitted:
        """Move what a node leads to others. Once no other node can take more, it is fenced and may stop."""
        if beat.node_id == self.node_id and self._successor() is not None:
            await self._transfer(TransferControl())
            raise NotController("The lead was handed over. Ask the new leader.")
        draft = self.draft()
        step_aside(draft, beat.node_id)
        if is_needed(draft, beat.node_id):
            index = await self.commit(draft.records())
            return Submitted(Heard(is_fenced=False, may_leave=False), index)
        # First it no longer leads, then it is no longer counted on: followers hear of both in one go.
        fence(draft, [beat.node_id])
        index = await self.commit(draft.records())
        self.sessions.require(beat.node_id, index)
        log.info("Node %d may leave.", beat.node_id)
        return Submitted(Heard(is_fenced=True, may_leave=True), index)

    # -- the quorum itself --------------------------------------------------------------------------------------------

    def is_living(self, node_id: int) -> bool:
        node = self.quorum.metadata.nodes.get(node_id)
        return node is not None and not node.is_fenced

    def _successor(self) -> int | None:
        """The voter that could take over the lead."""
        leaving = self.sessions.leaving()
        for node_id in sorted(self.quorum.members.voters):
            if node_id == self.node_id or node_id in leaving:
                continue
            if self.is_living(node_id) and self.quorum.caught_up(node_id):
                return node_id
        return None

    async def _transfer(self, command: TransferControl) -> Submitted:
        successor = self._successor() if command.node_id is None else command.node_id
        if successor is None:
            raise InvalidRequest("There is no other voter that lives and has caught up.")
        if successor != self.node_id:
            await self.quorum.transfer(successor)
        return Submitted(Done(), 0)

    async def _remove(self, command: RemoveNode) -> Submitted:
        """The quorum lets a node go first, so that one that is still a member is always a known node."""
        decision = await self._decide(command)
        if command.node_id == self.node_id:
            await self._transfer(TransferControl())
            raise NotController("A leader does not remove itself. Ask the new one.")
        members = self.quorum.members
        if command.node_id in members.voters or command.node_id in members.learners:
            await self.quorum.change_members(members.without(command.node_id))
        index = await self.commit(decision.records)
        self.sessions.end(command.node_id)
        return Submitted(decision.answer, index)

    # -- maintenance ---------------------------------------------------------------------------------------------------

    async def _maintain_while_leading(self, term: int) -> None:
        """Run maintenance for as long as this node leads in one term."""
        self._maintained_version, self._maintained_unable, self._is_settling = -1, frozenset(), True
        while self.is_active and self.quorum.term == term:
            try:
                await self.in_turn(self._maintain)
            except (NotController, ControllerUnavailable):
                pass
            except Exception as error:  # a decision that goes wrong must not end those about other things
                self._supervision.note("maintenance by the controller", error)
            await asyncio.sleep(self.config.maintenance_interval_ms / 1000)

    async def _maintain(self) -> None:
        """One round. The caller has the turn."""
        if not self.quorum.metadata.cluster_id:
            await self.commit(())
        await self._fence_expired()
        await self._restore_leaders()
        await self._update_voters()

    async def _fence_expired(self) -> None:
        """Give up on nodes whose session is over."""
        nodes = self.quorum.metadata.nodes
        over = self.sessions.expired(self.now_ms())
        if not over:
            return
        draft = self.draft()
        fence(draft, [node_id for node_id in over if node_id in nodes])
        records = draft.records()
        if records:
            missed = [node_id for node_id in over if self.is_living(node_id)]
            if missed:  # and not only some that left in good order
                log.warning("No heartbeat from nodes %s: they are fenced.", missed)
            index = await self.commit(records)
            for node_id in over:
                self.sessions.require(node_id, index)
        for node_id in over:
            self.sessions.end(node_id)

    async def _restore_leaders(self) -> None:
        """Give leaders back to where they should be, and the broker's own topics the replicas they should have."""
        version, unable = self.quorum.metadata.version, self.sessions.unable()
        if version == self._maintained_version and unable == self._maintained_unable and not self._is_settling:
            return
        unsettled = self.sessions.admitted_since(self.now_ms() - self.config.settling_ms)
        draft = self.draft()
        for move in raise_internal_topics(draft):
            start_move(draft, move)
        for node_id in sorted(unable):
            step_aside(draft, node_id)
        give_back_leaders(draft, unsettled)
        draft.rejoin_companions()
        records = draft.records()
        if records:
            await self.commit(records)
        self._maintained_version, self._maintained_unable, self._is_settling = version, unable, bool(unsettled)

    async def _update_voters(self) -> None:
        members = next_members(
            self.quorum.members,
            self.config.voters,
            is_living=self.is_living,
            is_ready=lambda node_id: self.is_living(node_id) and self.quorum.caught_up(node_id),
        )
        if members is not None:
            log.info("The quorum's voters become %s.", sorted(members.voters))
            await self.quorum.change_members(members)
