"""Transactions: the leader of a partition of ``__transaction_state`` coordinates those kept there.

A node that leads a data partition asks the coordinator whether a producer may write to it. The answer takes a while,
and so may the marker of an end that was decided after it: if the marker is here first, the answer no longer holds, and
what was to be written would begin a transaction that no coordinator ends. So every question remembers the partitions
as they were, and one that a marker or a new leadership has overtaken is refused (KIP-890 guards verification in the
same way). The node may ask again.

A node can believe for a moment that it still coordinates. What it says then is recognised by its epoch, if the present
coordinator has ended a transaction of the producer here; and if not, what is written now comes before that end.

A decision to end a transaction is committed before the first partition is told of it, and completed after the last one
was. The caller that asked for the end is told then, without waiting for the completion to be committed: it only spares
the next coordinator from telling the partitions once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from penstock.config.settings import TransactionSettings
from penstock.consensus.records import NO_LEADER
from penstock.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    InvalidProducerIdMapping,
    InvalidRequest,
    NotCoordinator,
    PeerUnavailable,
    PenstockError,
    UnknownPartition,
    UnknownTopic,
)
from penstock.features.transactions import records
from penstock.features.transactions.epochs import is_last
from penstock.features.transactions.markers import ClusterMarkers, EndMarker, LocalMarkers, MarkerWriter, OffsetsEnd
from penstock.features.transactions.messages import AddToTransaction, End, Init, Verify, Where
from penstock.features.transactions.records import NO_PRODUCER, Reason, TransactionChange
from penstock.features.transactions.states import DECIDED, TransactionState
from penstock.features.transactions.transaction import Transaction
from penstock.machines.clocks import PatientClock
from penstock.machines.coordinator import NamedCoordinator
from penstock.machines.journal import Journal, PartitionJournal
from penstock.machines.leaders import Leaders, shard_of
from penstock.machines.messages import AnswerT, Outcome, ProducerIdentity, Rejected, Reply, Request
from penstock.machines.shard import Defer, Shard, resolve
from penstock.model import TRANSACTIONS_TOPIC
from penstock.network.port import Method
from penstock.partitions.partition import Partition
from penstock.partitions.stats import TransactionStats
from penstock.supervision import Supervision

log = logging.getLogger(__name__)


class TransactionShard(Shard[Transaction, TransactionChange]):
    """Transactions by transactional id."""

    def __init__(
        self,
        journal: Journal[TransactionChange],
        config: TransactionSettings,
        markers: MarkerWriter,
        stats: TransactionStats,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        defer: Defer,
        *,
        epoch: int,
    ) -> None:
        """``epoch`` is that of the leadership under which this shard coordinates."""
        super().__init__(journal, now_ms, wall_ms, defer)
        self._config = config
        self._markers = markers
        self._stats = stats
        self.epoch = epoch

    def make(self, name: str) -> Transaction:
        return Transaction(name, self._config)

    def name_of(self, change: TransactionChange) -> str:
        return change.key.transactional_id

    def on_applied(self, machine: Transaction, change: TransactionChange) -> None:
        stored = change.value
        if stored is None:
            return
        if stored.state is TransactionState.PREPARE_COMMIT:
            self._stats.committed += 1
        elif stored.state is TransactionState.PREPARE_ABORT:
            reason = stored.reason or Reason.CLIENT
            self._stats.count_aborted(reason.value)
            if reason is not Reason.CLIENT:
                log.info("The transaction of %s is aborted: %s.", machine.id, reason.value)

    def open(self, machines: dict[str, Transaction]) -> None:
        is_wanted = self.is_loading
        super().open(machines)
        if is_wanted:
            for machine in machines.values():
                if machine.owes_markers():  # the log as it was read may not be safe yet: another node may lack its end
                    self.when_committed(self._end, partial(self._mark, machine))

    def perform(self, decisions: Sequence[tuple[Transaction, Outcome[TransactionChange]]]) -> None:
        super().perform(decisions)
        for machine, _ in decisions:
            self._follow_up(machine)

    def expire(self) -> None:
        """Forget transactional ids that no producer uses any more."""
        wall_ms = self._wall_ms()
        for machine in tuple(self.machines.values()):
            if machine.id in self.machines:
                self.perform([(machine, machine.expire(wall_ms))])

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _is_current(self, machine: Transaction) -> bool:
        return self.machines.get(machine.id) is machine

    def _follow_up(self, machine: Transaction) -> None:
        """Do what a decision leads to, beyond being written."""
        if not self._is_current(machine):
            return
        if machine.owes_markers():
            self.when_committed(self.written_to(machine), partial(self._mark, machine))
        if machine.state not in DECIDED:
            self._tell(machine)
        for request, reply in machine.take_waiting():
            self._ask_again(machine.id, request, reply)
        if self._is_current(machine):
            self.note_deadline(machine)

    def _tell(self, machine: Transaction) -> None:
        for reply, producer in machine.take_ending():
            reply(producer)

    def _ask_again(self, name: str, request: Request[Any], reply: Reply) -> None:
        try:
            self.ask(name, request, reply)
        except PenstockError as error:
            reply(Rejected(error))

    def _mark(self, machine: Transaction, error: PenstockError | None) -> None:
        stored = machine.stored
        if error is not None or not self._is_current(machine) or stored is None:
            return  # the shard is closed, and the next leader goes on from what is in the log
        marker = EndMarker(stored.producer, stored.state is TransactionState.PREPARE_COMMIT, self.epoch)
        partitions = [(topic, index) for topic, indexes in stored.partitions.items() for index in indexes]
        self._markers.write(marker, partitions, partial(self._is_current, machine), partial(self._on_marked, machine))

    def _on_marked(self, machine: Transaction) -> None:
        if not self._is_current(machine):
            return
        self.perform([(machine, machine.on_marked(self._now_ms()))])
        self._tell(machine)  # even if the completion could not be written: everybody sees the end


# What is told of partitions: those that are not in the transaction, or that it is refused.
AdmissionReply = Callable[[frozenset[Where] | Rejected], None]

_TIMEOUT_SECONDS: Final = 3.0  # a node that fell silent coordinates nothing any more by then


class AdmitPartitions(msgspec.Struct, frozen=True):
    """May this producer write to these partitions? If it ``adds``, they are taken into its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    places: tuple[Where, ...]
    adds: bool


class AdmittedPartitions(msgspec.Struct, frozen=True):
    """Those of the places that are not in the transaction, as of a coordinator's epoch."""

    missing: tuple[Where, ...]
    coordinator_epoch: int


ADMIT: Final = Method("transactions.admit", AdmitPartitions, AdmittedPartitions)


class _Question:
    """What was asked, and the partitions as they were when it was."""

    def __init__(self, producer: ProducerIdentity, epochs: dict[Where, int]) -> None:
        self.producer = producer
        self.epochs = epochs  # of leadership, by partition
        self.is_overtaken = False


class Admissions:
    """Questions to coordinators elsewhere that are not answered yet."""

    def __init__(
        self,
        leaders: Leaders,
        find: Callable[[str, int], Partition],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._leaders = leaders
        self._find = find
        self._spawn = spawn
        self._open: dict[tuple[Where, int], list[_Question]] = {}

    def ask(
        self,
        node_id: int,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[Where],
        reply: AdmissionReply,
        *,
        adds: bool,
    ) -> None:
        """Ask a node; ``reply`` is called in a turn in which the answer holds for partitions of this node."""
        places = tuple(sorted(partitions))
        request = AdmitPartitions(transactional_id, *producer, places, adds)
        question = _Question(producer, {where: self._find(*where).leader_epoch for where in places})
        self._spawn(self._ask(node_id, request, question, reply))

    async def _ask(self, node_id: int, request: AdmitPartitions, question: _Question, reply: AdmissionReply) -> None:
        answer: frozenset[Where] | Rejected
        for where in question.epochs:
            self._open.setdefault((where, question.producer.producer_id), []).append(question)
        try:
            received = await self._leaders.peers.call(node_id, ADMIT, request, timeout_s=_TIMEOUT_SECONDS)
            admitted: AdmittedPartitions = received.reply
            check_coordinator(self._find, question.producer, question.epochs, admitted.coordinator_epoch)
            answer = frozenset(admitted.missing)
        except PeerUnavailable as error:
            answer = Rejected(NotCoordinator(error.message))
        except PenstockError as error:
            answer = Rejected(error)
        except asyncio.CancelledError:
            reply(Rejected(NotCoordinator("This node is stopping.")))
            raise
        finally:
            self._forget(question)
        if not isinstance(answer, Rejected) and self._is_overtaken(question):
            answer = Rejected(
                ConcurrentTransactions(f"A transaction of {request.transactional_id!r} ended while it was asked about.")
            )
        reply(answer)

    def on_marker(self, where: Where, producer_id: int) -> None:
        """The end of a transaction was written to a partition: answers that are on their way are too old for it."""
        for question in self._open.get((where, producer_id), ()):
            question.is_overtaken = True

    def _is_overtaken(self, question: _Question) -> bool:
        if question.is_overtaken:
            return True
        for where, epoch in question.epochs.items():
            try:
                partition = self._find(*where)
            except PenstockError:
                continue  # it is gone, and the producer will hear so
            if partition.is_leader and partition.leader_epoch != epoch:
                return True  # somebody else led meanwhile, and may have written a marker
        return False

    def _forget(self, question: _Question) -> None:
        for where in question.epochs:
            at = (where, question.producer.producer_id)
            questions = self._open[at]
            questions.remove(question)
            if not questions:
                del self._open[at]


def check_coordinator(
    find: Callable[[str, int], Partition], producer: ProducerIdentity, places: Iterable[Where], epoch: int
) -> None:
    """Refuse the word of a coordinator if a later one has ended a transaction of the producer in these partitions."""
    for where in places:
        try:
            known = find(*where).log.producers.coordinator_epoch_of(producer.producer_id)
        except PenstockError:
            continue  # it is gone, and the producer will hear so
        if known > epoch:
            raise NotCoordinator(
                f"Coordinator epoch {epoch} is over: epoch {known} has ended a transaction in {where[0]}-{where[1]}."
            )


# How long a node passes on what comes to it as the coordinator that it was: less than any client waits for an answer.
_HANDOVER_SECONDS: Final = 1.0
_HANDOVER_PAUSE_SECONDS: Final = 0.05


class TransactionCoordinator(NamedCoordinator[TransactionShard]):
    """All transactional ids whose partitions this node leads, and a way to ask about those it does not."""

    topic = TRANSACTIONS_TOPIC
    what = "transactions"

    def __init__(
        self,
        config: TransactionSettings,
        leaders: Leaders,
        time: PatientClock,
        stats: TransactionStats,
        find: Callable[[str, int], Partition],
        groups: OffsetsEnd,
        allocate_producer_id: Callable[[], Awaitable[int]],
        *,
        syncs: bool,
        supervision: Supervision,
    ) -> None:
        super().__init__(leaders, time, supervision)
        self._config = config
        self._stats = stats
        self._find = find
        self._allocate_producer_id = allocate_producer_id
        self._syncs = syncs
        local = LocalMarkers(find, groups, leaders.clock, syncs=syncs)
        self.markers = ClusterMarkers(local, leaders, _later, self.background.spawn)
        self._admissions = Admissions(leaders, find, self.background.spawn)
        local.on_written = self._admissions.on_marker

    def start(self) -> None:
        super().start()
        self.markers.serve()
        self._leaders.peers.serve(ADMIT, self._on_admit)

    def make_shard(self, partition: Partition) -> TransactionShard:
        return TransactionShard(
            PartitionJournal(partition, records, syncs=self._syncs),
            self._config,
            self.markers,
            self._stats,
            self._time.now_ms,
            self._clock.now_ms,
            asyncio.get_running_loop().call_soon,
            epoch=partition.leader_epoch,
        )

    async def ask(self, name: str, request: Request[AnswerT]) -> AnswerT:
        """The answer to a request, as soon as it holds; an early one waits a moment for the log to be read."""
        await self.await_shard(name)
        return await super().ask(name, request)

    async def init(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None = None
    ) -> ProducerIdentity:
        """Start a producer, fencing every other instance of it."""
        if not transactional_id:
            raise InvalidRequest("A transactional id must not be empty.")
        await self.await_shard(transactional_id)
        self.shard(transactional_id)  # a client that asks the wrong node does not cost a producer id
        fresh = await self._allocate_producer_id()
        return await self.ask(transactional_id, Init(timeout_ms=timeout_ms, fresh_producer_id=fresh, expected=expected))

    async def add(self, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[Where]) -> None:
        """Take partitions into a transaction, also if another node coordinates it since a moment ago.

        A producer of the first protocol that is sent away and then aborts asks the next coordinator to end what it was
        never told of. That has to be refused, since it might be about the commit before, and some clients never
        recover from it (librdkafka); so a coordinator that hands over passes on what still comes to it.
        """
        until = self._clock.monotonic() + _HANDOVER_SECONDS
        while True:
            try:
                await self.ask(transactional_id, AddToTransaction(producer, partitions))
                return
            except NotCoordinator as refusal:
                if await self._pass_on(transactional_id, producer, partitions):
                    return
                if self._clock.monotonic() >= until:
                    raise refusal
            await asyncio.sleep(_HANDOVER_PAUSE_SECONDS)

    async def _pass_on(self, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[Where]) -> bool:
        """Whether the node that coordinates now has taken the partitions in; it may not know yet that it does."""
        request = AdmitPartitions(transactional_id, *producer, tuple(sorted(partitions)), adds=True)
        try:
            node_id = self._home_of(transactional_id)
            if node_id is None:
                return False
            await self._leaders.peers.call(node_id, ADMIT, request, timeout_s=_HANDOVER_SECONDS)
        except (NotCoordinator, CoordinatorLoading, PeerUnavailable):
            return False
        return True

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, *, is_commit: bool, bumps: bool
    ) -> ProducerIdentity:
        """Commit or abort; who the producer is in its next transaction."""
        began = self._clock.monotonic()
        fresh = await self._allocate_producer_id() if bumps and is_last(producer.epoch) else NO_PRODUCER
        request = End(producer=producer, is_commit=is_commit, bumps=bumps, fresh_producer_id=fresh)
        successor = await self.ask(transactional_id, request)
        if is_commit:
            self._stats.commit_latency.observe(self._clock.monotonic() - began)
        return successor

    def admit(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[Where],
        reply: AdmissionReply,
        *,
        adds: bool,
    ) -> None:
        """Find out whether a producer may write to partitions: those are answered that are not in its transaction.

        If ``adds``, they are taken into it instead. ``reply`` is called in the very turn in which the answer holds:
        what it writes to those partitions is there before the marker of any end that is decided after this.
        """
        try:
            node_id = self._home_of(transactional_id)
            if node_id is None:
                self._admit_here(transactional_id, producer, partitions, reply, adds=adds)
            else:
                self._admissions.ask(node_id, transactional_id, producer, partitions, reply, adds=adds)
        except PenstockError as error:
            reply(Rejected(error))

    def _home_of(self, transactional_id: str) -> int | None:
        """The node that coordinates a transactional id, None if it is this one."""
        count, leaders = self.shard_count, self._leaders
        if not count:
            if not leaders.is_alone:
                raise CoordinatorLoading("This node does not know yet who coordinates transactions.")
            raise InvalidProducerIdMapping(f"No producer has the transactional id {transactional_id!r}.")
        leader = leaders.leader_of(TRANSACTIONS_TOPIC, shard_of(transactional_id, count))
        if leader == NO_LEADER:
            raise NotCoordinator(f"No node coordinates transaction {transactional_id!r} now.")
        return None if leader == leaders.node_id else leader

    def _admit_here(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[Where],
        reply: AdmissionReply,
        *,
        adds: bool,
    ) -> None:
        request = AddToTransaction(producer, partitions) if adds else Verify(producer, partitions)
        shard = self.shard(transactional_id)
        check_coordinator(self._find, producer, partitions, shard.epoch)
        shard.ask(transactional_id, request, lambda answer: reply(answer or frozenset()))

    async def _on_admit(self, _node_id: int, request: AdmitPartitions, _body: memoryview) -> AdmittedPartitions:
        """Another node asks for a partition of its own."""
        await self.await_shard(request.transactional_id)
        epoch = self.shard(request.transactional_id).epoch
        if request.adds:
            self._check_known(request.places)
        answer: asyncio.Future[frozenset[Where] | Rejected] = asyncio.get_running_loop().create_future()
        self._admit_here(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            frozenset(request.places),
            partial(resolve, answer),
            adds=request.adds,
        )
        missing = await answer
        if isinstance(missing, Rejected):
            raise missing.error
        return AdmittedPartitions(tuple(sorted(missing)), epoch)

    def _check_known(self, places: Iterable[Where]) -> None:
        """Take in only what this node knows of: what it does not it would take for deleted when the end comes."""
        for where in places:
            try:
                self._leaders.leader_of(*where)
            except (UnknownTopic, UnknownPartition) as error:
                raise CoordinatorLoading(f"The coordinator does not know {where[0]}-{where[1]} yet.") from error

    async def write_marker(self, marker: EndMarker, where: Where) -> None:
        """Write a marker to a partition that this node leads, and return once it is committed.

        For operators who end what is open in a partition and unknown to every coordinator.
        """
        if where[0] == TRANSACTIONS_TOPIC:
            raise UnknownPartition(f"Nothing in {TRANSACTIONS_TOPIC} is part of a transaction.")
        partition, offset = self.markers.local.append(marker, where)
        error = await partition.committed(offset)
        if error is not None:
            raise error

    def find(self, transactional_id: str) -> Transaction | None:
        """The transactional id as it is at this moment, or None where no producer has it."""
        return self.shard(transactional_id).machines.get(transactional_id)

    def all_transactions(self) -> list[Transaction]:
        """Every transactional id coordinated here; `CoordinatorLoading` while some are not known yet."""
        return [each for shard in self.loaded_shards() for each in shard.machines.values()]


def _later(seconds: float, work: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, work)
