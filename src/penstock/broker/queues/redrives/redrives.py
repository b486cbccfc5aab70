"""The redrives of a cluster: whoever leads a partition of ``__redrives`` keeps its ledgers and does their work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.broker.coordination.coordinator import Coordinator, shard_of
from penstock.broker.coordination.journal import PartitionJournal
from penstock.broker.coordination.messages import Request
from penstock.broker.coordination.shard import Shard
from penstock.broker.partition import Partition
from penstock.broker.queues.letters.sequences import Sequences
from penstock.broker.queues.redrives import records as redrive_records
from penstock.broker.queues.redrives.ledger import CancelJob, Ledger, OpenJob
from penstock.broker.queues.redrives.records import Change, Job, Span
from penstock.broker.queues.redrives.redrive import Redrive
from penstock.cluster.records import NO_LEADER
from penstock.errors import CoordinatorLoading, NotCoordinator, PeerNotReached, PeerUnavailable, PenstockError
from penstock.model import REDRIVES_TOPIC
from penstock.peers.port import Method

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger(__name__)

PARTITIONS: Final = 4

_LOOK_SECONDS: Final = 0.5
_PATIENCE_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.05


class OpenRedrive(msgspec.Struct, frozen=True):
    job: Job


class CancelRedrive(msgspec.Struct, frozen=True):
    dead_letters: str
    job: str


class AskRedrives(msgspec.Struct, frozen=True):
    dead_letters: str


class AskMarks(msgspec.Struct, frozen=True):
    dead_letters: str
    topic_id: str
    partition: int
    first: int
    last: int


class OneRedrive(msgspec.Struct, frozen=True):
    job: Job


class AllRedrives(msgspec.Struct, frozen=True):
    jobs: list[Job]


class FoundMarks(msgspec.Struct, frozen=True):
    spans: list[Span]


OPEN: Final = Method("redrive.open", OpenRedrive, OneRedrive)
CANCEL: Final = Method("redrive.cancel", CancelRedrive, OneRedrive)
LIST: Final = Method("redrive.list", AskRedrives, AllRedrives)
MARKS: Final = Method("redrive.marks", AskMarks, FoundMarks)


class RedriveShard(Shard[Ledger, Change]):
    """Ledgers by the name of their dead-letter topic."""

    def make(self, name: str) -> Ledger:
        return Ledger(name)

    def name_of(self, change: Change) -> str:
        return change.key.dead_letters


class Redrives(Coordinator[RedriveShard]):
    """All redrives whose ledgers this node leads, and the way to those of other nodes."""

    topic = REDRIVES_TOPIC
    what = "redrive"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.clock)
        self._broker = broker
        self._sequences = Sequences(broker.metadata, broker.peers, broker.replicas.find)
        self._running: dict[Ledger, Redrive] = {}

    def make_shard(self, partition: Partition) -> RedriveShard:
        return RedriveShard(
            PartitionJournal(partition, redrive_records, syncs=self._broker.syncs_before_ack),
            self._clock.now_ms,
            self._clock.now_ms,
            asyncio.get_running_loop().call_soon,
        )

    def start(self, shard_count: Callable[[], int]) -> None:
        super().start(shard_count)
        peers = self._broker.peers
        peers.serve(OPEN, self._serve_open)
        peers.serve(CANCEL, self._serve_cancel)
        peers.serve(LIST, self._serve_list)
        peers.serve(MARKS, self._serve_marks)
        self._errands.spawn(self._keep_going())

    # -- the work -----------------------------------------------------------------------------------------------------

    async def _keep_going(self) -> None:
        """Carry on whatever is open, as after a change of leaders."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for shard in [shard for shard in self._shards.values() if shard.is_ready]:
                for ledger in tuple(shard.machines.values()):
                    self._look(ledger)

    def _look(self, ledger: Ledger) -> None:
        job = ledger.open_job
        if job is None or ledger in self._running:
            return
        redrive = Redrive(self._broker, self._sequences, ledger, job.id, partial(self._ask_of, ledger))
        self._running[ledger] = redrive
        self._errands.spawn(self._run(ledger, redrive))

    async def _run(self, ledger: Ledger, redrive: Redrive) -> None:
        try:
            await self.settled(ledger.id)  # what is read from a log need not be committed
            await redrive.run()
        except PenstockError as error:
            log.warning("A redrive of %s is left to whoever leads it: %s", ledger.id, error.message)
        except Exception:
            log.exception("A redrive of %s met a bug.", ledger.id)
        finally:
            del self._running[ledger]

    async def _ask_of(self, ledger: Ledger, request: Request[Job]) -> Job:
        if self.shard(ledger.id).machines.get(ledger.id) is not ledger:
            raise NotCoordinator(f"The redrives of {ledger.id!r} have been read anew.")
        return await self.ask(ledger.id, request)

    # -- asked by other nodes -----------------------------------------------------------------------------------------

    async def _serve_open(self, _node_id: int, request: OpenRedrive, _body: memoryview) -> OneRedrive:
        name = request.job.dead_letters
        job = await self.ask(name, OpenJob(request.job))
        ledger = self.shard(name).machines.get(name)
        if ledger is not None:
            self._look(ledger)
        return OneRedrive(job)

    async def _serve_cancel(self, _node_id: int, request: CancelRedrive, _body: memoryview) -> OneRedrive:
        name = request.dead_letters
        job = await self.ask(name, CancelJob(request.job))
        ledger = self.shard(name).machines.get(name)
        running = None if ledger is None else self._running.get(ledger)
        if running is not None:
            running.stir()
        return OneRedrive(job)

    async def _serve_list(self, _node_id: int, request: AskRedrives, _body: memoryview) -> AllRedrives:
        ledger = self.shard(request.dead_letters).machines.get(request.dead_letters)
        if ledger is None:
            return AllRedrives([])
        running = self._running.get(ledger)
        jobs = [
            msgspec.structs.replace(job, error=running.trouble)
            if running is not None and running.trouble is not None and not job.state.is_over
            else job
            for job in ledger.jobs.values()
        ]
        return AllRedrives(sorted(jobs, key=lambda job: job.opened_ms))

    def _serve_marks(self, _node_id: int, request: AskMarks, _body: memoryview) -> FoundMarks:
        ledger = self.shard(request.dead_letters).machines.get(request.dead_letters)
        place = (request.topic_id, request.partition, request.first, request.last)
        return FoundMarks([] if ledger is None else ledger.marks(*place))

    # -- asking any node ----------------------------------------------------------------------------------------------

    async def open(self, job: Job) -> Job:
        """Begin a redrive; `RedriveRunning` if there is one of these dead letters."""
        await self._broker.ensure_redrives_topic()
        reply: OneRedrive = await self._at(job.dead_letters, OPEN, OpenRedrive(job))
        return reply.job

    async def cancel(self, dead_letters: str, job: str) -> Job:
        reply: OneRedrive = await self._at(dead_letters, CANCEL, CancelRedrive(dead_letters, job))
        return reply.job

    async def jobs(self, dead_letters: str) -> list[Job]:
        """Every redrive that is remembered, the oldest first."""
        if REDRIVES_TOPIC not in self._broker.metadata.topics:
            return []
        reply: AllRedrives = await self._at(dead_letters, LIST, AskRedrives(dead_letters))
        return reply.jobs

    async def marks(self, dead_letters: str, topic_id: str, partition: int, first: int, last: int) -> list[Span]:
        """Which dead letters between two offsets were sent back."""
        if REDRIVES_TOPIC not in self._broker.metadata.topics or last < first:
            return []
        request = AskMarks(dead_letters, topic_id, partition, first, last)
        reply: FoundMarks = await self._at(dead_letters, MARKS, request)
        return reply.spans

    async def _at(self, name: str, method: Method[Any, Any], request: msgspec.Struct) -> Any:
        """Have the leader of a ledger answer; a change of leaders is waited for."""
        deadline = self._clock.monotonic() + _PATIENCE_SECONDS
        while True:
            topic = self._broker.metadata.topics.get(REDRIVES_TOPIC)
            leader = NO_LEADER
            if topic is not None:
                leader = topic.partitions[shard_of(name, len(topic.partitions))].leader
            try:
                if leader == NO_LEADER:
                    raise NotCoordinator(f"No node keeps the redrives of {name!r} now. Try again in a moment.")
                return (await self._broker.peers.call(leader, method, request)).reply
            except PenstockError as error:
                # Whoever did not answer may have opened it: that is not done twice.
                is_safe = isinstance(error, (NotCoordinator, CoordinatorLoading, PeerNotReached)) or (
                    isinstance(error, PeerUnavailable) and method is not OPEN
                )
                if not is_safe or self._clock.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)
