"""A member of the quorum at work: the Raft core with a disk, a network, a clock and the metadata behind it.

It keeps the driver's part of the core's bargain (`penstock.consensus.raft.core`). Messages leave at once. What has to
be kept is written and synced by another thread, one write at a time, and all that waits goes in one write; only then
the promises leave. Committed entries are applied in order, all of one entry in one step.

A disk that fails ends the member's part in the quorum: it neither votes nor acknowledges nor leads until the node is
started again. `Quorum.failure` says why. A full disk is only slow: the write is tried again until there is room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec

from penstock.clock import Clock
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.quorum.machine import MetadataMachine, OnApplied, OnReset, QuorumWaiters
from penstock.consensus.quorum.store import QuorumStore
from penstock.consensus.quorum.wire import RAFT_MESSAGE, PackedMessage, pack, unpack
from penstock.consensus.raft.core import Effects, Raft
from penstock.consensus.raft.leading import RaftTiming
from penstock.consensus.raft.log import RaftLog
from penstock.consensus.raft.messages import (
    AppendResponse,
    Member,
    Members,
    RaftMessage,
    Snapshot,
    SnapshotResponse,
    VoteResponse,
)
from penstock.consensus.records import MetadataRecord, encode_records
from penstock.errors import (
    ControllerUnavailable,
    DataDirectoryError,
    NotController,
    PenstockError,
    ResourcesExhausted,
    StorageError,
)
from penstock.network.port import Nothing, Peers, check_sender

log = logging.getLogger(__name__)

_TICK_MAX_S: Final = 0.05
_RETRY_S: Final = 1.0  # after the disk was full
_WAITING_MAX: Final = 1_000  # promises beyond that are not made, as if they had been lost on the way
_POLL_S: Final = 0.02
_CAUGHT_UP_ENTRIES: Final = 50  # so near to the end that what is left is on its way
_ANSWERS: Final = (VoteResponse, AppendResponse, SnapshotResponse)

OnLeading = Callable[[bool], None]


class Quorum:
    """This node's member of the quorum. `start` it on the loop once the store is formed."""

    def __init__(
        self,
        store: QuorumStore,
        peers: Peers,
        clock: Clock,
        random: Random,
        pace: RaftTiming | None = None,
        *,
        snapshot_every: int = 10_000,
    ) -> None:
        self.store = store
        self.failure: PenstockError | None = None
        self._peers = peers
        self._clock = clock
        self._random = random
        self.pace = pace or RaftTiming()
        self._tick_s = min(_TICK_MAX_S, self.pace.heartbeat_ms / 2000)
        self._snapshot_every = snapshot_every
        self._raft: Raft | None = None
        self._waiting = QuorumWaiters()
        self._machine = MetadataMachine(self._waiting)
        self._on_leading: list[OnLeading] = []
        self._lead_told: int | None = None  # the term in which listeners were told that this member leads
        self._directories: dict[int, str] = {}  # of the nodes that were heard of, the latest
        self._to_write: list[Effects] = []
        self._to_snapshot: Snapshot | None = None
        self._is_writing = False
        self._has_work = asyncio.Event()
        self._is_awake = False
        self._is_stopping = False
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Quorum {self._raft!r} applied {self.applied_index}>"

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def me(self) -> Member:
        return self.store.member

    @property
    def metadata(self) -> ClusterMetadata:
        """As applied here; the same object for ever."""
        return self._machine.metadata

    @property
    def applied_index(self) -> int:
        return self._machine.applied_index

    @property
    def term(self) -> int:
        return self.store.hard_state.term if self._raft is None else self._raft.term

    @property
    def leader_id(self) -> int | None:
        return None if self._raft is None or self.failure is not None else self._raft.leader_id

    @property
    def members(self) -> Members:
        """The last ones in this member's log, committed or not."""
        return self.store.snapshot.members if self._raft is None else self._raft.members

    @property
    def is_alone(self) -> bool:
        """Whether this member is the only voter, and works: then there is no other that could decide anything."""
        is_sole = tuple(self.members.voters) == (self.me.node_id,)
        return is_sole and self.has_settled_members and self.failure is None

    @property
    def has_settled_members(self) -> bool:
        """Whether the members are committed, as far as this member knows."""
        return self._raft is None or self._raft.log.members_index() <= self._raft.commit_index

    @property
    def commit_index(self) -> int:
        return 0 if self._raft is None else self._raft.commit_index

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, and has applied everything that its predecessors committed."""
        raft = self._raft
        if raft is None or self.failure is not None or raft.leading is None:
            return False
        return self.applied_index >= raft.leading.first_index

    def matched(self) -> dict[int, int]:
        """Up to which index each other member is known to have everything; only the leader knows."""
        leading = None if self._raft is None else self._raft.leading
        return {} if leading is None else {node_id: one.matched for node_id, one in leading.followers.items()}

    def silent_ms(self, node_id: int) -> int | None:
        """Since when nothing was heard of another member; None unless this member leads and knows it."""
        leading = None if self._raft is None else self._raft.leading
        follower = None if leading is None else leading.followers.get(node_id)
        return None if follower is None else max(0, self._now_ms() - follower.heard_ms)

    def caught_up(self, node_id: int) -> bool:
        """Whether a member has all entries but the last few, and so can be made a voter; only the leader knows."""
        raft = self._raft
        if raft is None or raft.leading is None:
            return False
        if node_id == self.me.node_id:
            return True
        follower = raft.leading.followers.get(node_id)
        if follower is None or follower.snapshot is not None or follower.is_probed:
            return False
        is_heard = self._now_ms() - follower.heard_ms < self.pace.election_ms
        return is_heard and follower.matched + _CAUGHT_UP_ENTRIES >= raft.log.last_index

    def listen(self, on_applied: OnApplied, on_reset: OnReset, on_leading: OnLeading) -> None:
        """Hear of every entry once it is applied (with no records, if it holds none), of the metadata being replaced
        by a snapshot, and of this member beginning and ceasing to lead, each from the moment on that `is_leader` is."""
        self._machine.listen(on_applied, on_reset)
        self._on_leading.append(on_leading)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part, on the running loop."""
        store = self.store
        assert store.is_formed, "a member begins with members"
        raft_log = RaftLog(store.snapshot, store.entries)
        self._raft = Raft(store.member, store.hard_state, raft_log, self.pace, self._random)
        self._peers.on_lost(self._on_lost)
        try:
            self._machine.restore(store.snapshot)
        except msgspec.MsgspecError as error:
            raise DataDirectoryError(
                f"The metadata snapshot in {store.directory} cannot be understood: {error}. Use the version of "
                "Penstock that wrote it, or a later one."
            ) from error
        self._peers.serve(RAFT_MESSAGE, self._on_message)
        self._writer = asyncio.get_running_loop().create_task(self._write_on())
        self._tick()

    async def stop(self) -> None:
        """Hand over the lead if another member can take it, end what is being written, and close the store."""
        await self._hand_over()
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.fail_all(ControllerUnavailable("This node is stopping."))
        self._has_work.set()
        if self._writer is not None:
            await self._writer
        if self.failure is None:
            await asyncio.to_thread(self.store.close)

    async def _hand_over(self) -> None:
        voters = [
            (matched, node_id)
            for node_id, matched in sorted(self.matched().items())
            if node_id in self.members.voters and self.caught_up(node_id)
        ]
        if self.is_leader and voters:
            try:
                await self.transfer(max(voters)[1])
            except (NotController, ControllerUnavailable):
                return  # the others elect a leader when they miss this one

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _tick(self) -> None:
        if self._raft is not None and self.failure is None and not self._is_stopping:
            now_ms, ticked_ms = self._now_ms(), self._ticked_ms
            self._ticked_ms = now_ms
            if ticked_ms is None or now_ms - ticked_ms < self.pace.election_ms // 2:
                self._raft.tick(now_ms)
                self._wake()
            else:  # what others have said meanwhile has to be read before a member counts as silent
                log.info("Node %d stood still for %d ms.", self.me.node_id, now_ms - ticked_ms)
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _on_lost(self, node_id: int) -> None:
        if self._raft is not None and self.failure is None and not self._is_stopping:
            self._raft.doubt(node_id, self._now_ms())

    # -- asking -------------------------------------------------------------------------------------------------------

    async def propose(self, records: Sequence[MetadataRecord]) -> int:
        """Have records committed; their index, once they are applied here.

        `NotController` means that nothing happened, `ControllerUnavailable` that it is not known.
        """
        raft = self._leading()
        index = raft.propose(encode_records(list(records)))
        return await self._committed(index, raft.term)

    async def change_members(self, members: Members) -> None:
        """Take one step to other members; done when it is committed."""
        raft = self._leading()
        if members != raft.members:
            index = raft.change_members(members)
            await self._committed(index, raft.term)

    async def read_index(self) -> int:
        """The index up to which to apply before reading, so as to read everything that is committed now."""
        raft = self._leading()
        token, future = self._waiting.for_read(asyncio.get_running_loop())
        raft.read(token)
        self._wake()
        return await future

    async def applied(self, index: int) -> None:
        """Return once everything up to an index is applied here."""
        if self.applied_index < index:
            await self._waiting.for_index(asyncio.get_running_loop(), index)

    async def transfer(self, node_id: int) -> None:
        """Hand the lead to another voter; done when it leads."""
        raft = self._leading()
        raft.transfer(node_id)
        self._wake()
        until = self._now_ms() + 2 * self.pace.election_ms
        while raft.leader_id != node_id:
            if self._now_ms() >= until or (raft.leading is not None and raft.leading.successor is None):
                raise ControllerUnavailable(f"Node {node_id} did not take over the lead in time.")
            await asyncio.sleep(_POLL_S)

    def _leading(self) -> Raft:
        raft = self._raft
        if raft is None or self._is_stopping or not self.is_leader:
            raise NotController(f"Node {self.me.node_id} does not lead the quorum.")
        return raft

    async def _committed(self, index: int, term: int) -> int:
        future = self._waiting.for_entry(asyncio.get_running_loop(), index, term)
        self._wake()
        return await future

    # -- the core's effects -------------------------------------------------------------------------------------------

    def _on_message(self, sender: int, request: PackedMessage, body: memoryview) -> Nothing:
        del body
        check_sender(sender, request.sender.node_id)
        if self._raft is not None and self.failure is None and not self._is_stopping and request.to == self.me:
            self._directories[request.sender.node_id] = request.sender.directory_id
            self._raft.receive(unpack(request), self._now_ms())
            self._wake()
        return Nothing()

    def _wake(self) -> None:
        """Look at the core's effects in a moment: what else happens until then is done in the same go."""
        if not self._is_awake:
            self._is_awake = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_awake = False
        if self._raft is None or self.failure is not None:
            return
        try:
            self._do(self._raft, self._raft.take())
        except Exception as error:
            # What the core wanted is done in part: nothing that this member says could be relied on.
            self._fail(PenstockError(f"It cannot go on after {error!r}."))
            raise

    def _do(self, raft: Raft, effects: Effects) -> None:
        self._machine.apply(effects)
        for message in effects.messages:
            self._send(message)
        for read in effects.reads:
            self._waiting.on_read(read.token, read.index)
        if effects.hard_state or effects.installed or effects.entries:
            self._to_write.append(effects)
            self._has_work.set()
        elif effects.promises:
            if not self._is_writing and not self._to_write:
                self._keep_promises(effects)
            elif len(self._to_write) < _WAITING_MAX:
                self._to_write.append(effects)  # they may rest on what is being written
        self._note_lead(raft)
        self._snapshot_if_due(raft)

    def _send(self, message: RaftMessage) -> None:
        directory_id = self._directory_of(message)
        if directory_id is not None:
            self._peers.tell(message.to, RAFT_MESSAGE, pack(message, directory_id))

    def _directory_of(self, message: RaftMessage) -> str | None:
        """The disk that a message is for: an answer goes to the sender, anything else to the member."""
        members = self.members
        if isinstance(message, _ANSWERS):
            return self._directories.get(message.to)
        known = message.to in members.voters or message.to in members.learners
        return members.directory_of(message.to) if known else None

    def _keep_promises(self, effects: Effects) -> None:
        for message in effects.promises:
            self._send(message)

    def _note_lead(self, raft: Raft) -> None:
        if not raft.is_leader:
            self._waiting.on_lead_lost(None)
        elif self._lead_told is not None and self._lead_told != raft.term:
            self._waiting.on_lead_lost(raft.term)
        now = raft.term if self.is_leader else None
        if now == self._lead_told:
            return
        had, self._lead_told = self._lead_told, now
        if had is not None:
            log.info("Node %d no longer leads the quorum.", self.me.node_id)
            self._notify_leading(is_leading=False)
        if now is not None:
            log.info("Node %d leads the quorum in term %d.", self.me.node_id, now)
            self._notify_leading(is_leading=True)

    def _notify_leading(self, *, is_leading: bool) -> None:
        for on_leading in self._on_leading:
            on_leading(is_leading)

    def _snapshot_if_due(self, raft: Raft) -> None:
        if self._to_snapshot is None and self.applied_index - raft.log.snapshot.index >= self._snapshot_every:
            # Entries up to here are on disk, or wait to be written before this.
            self._to_snapshot = self._machine.snapshot(raft.log)
            self._has_work.set()

    # -- the disk -----------------------------------------------------------------------------------------------------

    async def _write_on(self) -> None:
        """Write whatever waits, for as long as this member takes part."""
        while not self._is_stopping:
            await self._has_work.wait()
            self._has_work.clear()
            try:
                await self._write()
            except StorageError as error:
                self._fail(error)
                return
            except Exception as error:
                self._fail(PenstockError(f"It cannot go on after {error!r}."))
                raise

    async def _write(self) -> None:
        works, self._to_write = self._to_write, []
        snapshot, raft = self._to_snapshot, self._raft
        assert raft is not None
        self._is_writing = True
        try:
            while works:
                try:
                    await asyncio.to_thread(self.store.write, works)
                    break
                except ResourcesExhausted as error:
                    log.error("The quorum's log waits. %s", error.message)
                    await asyncio.sleep(_RETRY_S)
                    if self._is_stopping:
                        return
            for work in works:
                self._keep_promises(work)
                if work.entries:
                    raft.on_durable(work.entries[-1].index, work.entries[-1].term)
            if snapshot is not None:
                await self._save_snapshot(raft, snapshot)
        finally:
            self._is_writing = False
        if self._to_write:
            self._has_work.set()
        self._wake()

    async def _save_snapshot(self, raft: Raft, snapshot: Snapshot) -> None:
        try:
            await asyncio.to_thread(self.store.save_snapshot, snapshot)
            raft.compact(snapshot)
        except ResourcesExhausted as error:
            log.warning("The quorum's log cannot be shortened now. %s", error.message)
        finally:
            self._to_snapshot = None

    def _fail(self, error: PenstockError) -> None:
        """Take no part any more: what this member says could not be relied on."""
        self.failure = error
        log.error(
            "This node no longer takes part in the quorum. %s Check the disk and restart the node.", error.message
        )
        self._waiting.fail_all(ControllerUnavailable("This node's disk failed; it takes no part in the quorum."))
        if self._lead_told is not None:
            self._lead_told = None
            self._notify_leading(is_leading=False)
