"""Redrives under way: dead letters go back to where they came from, each once, at the pace that was asked for.

A step is planned in the ledger before it is done, as a producer of its own. If the node dies in the middle, the next
leader of the ledger repeats the step, and the partitions drop what they have. So a message is never lost, and appears
once, as long as a step is repeated within a day: for so long partitions remember a producer that is silent.

The redrives of a cluster: the leader of a partition of ``__redrives`` keeps its ledgers and does their work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import ceil
from typing import Any, Final

import msgspec

from penstock.errors import (
    CoordinationError,
    CorruptRecords,
    DuplicateSequence,
    InvalidRequest,
    NotCoordinator,
    OutOfOrderSequence,
    PenstockError,
    UnknownPartition,
    UnknownTopic,
)
from penstock.features.dead_letters.letters import SUFFIX, DeadMessage, revived, scan
from penstock.features.dead_letters.sequences import UNKNOWN, Sequences
from penstock.features.queues.core.intervals import IntervalSet
from penstock.features.redrives import records as redrive_records
from penstock.features.redrives.ledger import CancelJob, EndJob, LookedAt, MakePlan, OpenJob, RedriveLedger, SettlePlan
from penstock.features.redrives.records import (
    DeadLetterFilter,
    JobState,
    MovePlan,
    RedriveChange,
    RedriveJob,
    RedriveTarget,
    Span,
)
from penstock.machines.coordinator import NamedCoordinator
from penstock.machines.journal import PartitionJournal
from penstock.machines.messages import ProducerIdentity, Request
from penstock.machines.ports import Ports
from penstock.machines.shard import Shard
from penstock.model import REDRIVES_TOPIC, is_internal
from penstock.network.port import Method
from penstock.partitions.partition import Partition
from penstock.records import HEADER_BYTES, Codec, KeyHash, Record, encode_batch

log = logging.getLogger(__name__)

_STEP_MESSAGES: Final = 200
_STEP_BYTES: Final = 512 * 1024
_STEPS_A_SECOND: Final = 5  # with a rate: small steps make an even pace
_APPEND_TIMEOUT_MS: Final = 30_000
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0
_PARTITIONER: Final = KeyHash()

Ask = Callable[[Request[RedriveJob]], Awaitable[RedriveJob]]


class RedriveRoute:
    """Where dead letters go: to a topic that was named, or each to where it came from."""

    def __init__(self, ports: Ports, dead_letters: str, target: str | None) -> None:
        self._ports = ports
        self._dead_letters = dead_letters
        self._target = target

    def of(self, message: DeadMessage) -> tuple[str, int]:
        """The topic and partition for a message; an error tells why there is none."""
        origin = message.origin
        if not message.is_readable:
            raise CorruptRecords(f"{message.topic}-{message.partition}@{message.offset} cannot be unpacked.")
        name = self._target or origin.topic or self._dead_letters.removesuffix(SUFFIX)
        if name == self._dead_letters or is_internal(name):
            raise UnknownTopic(f"Nothing tells where {message.topic}-{message.partition}@{message.offset} came from.")
        count = len(self._ports.metadata.topic(name).partitions)
        if name == origin.topic and origin.partition is not None and 0 <= origin.partition < count:
            return name, origin.partition
        key = message.record.key
        return name, message.partition % count if key is None else _PARTITIONER.partition(key, count)


class RedriveRunner:
    """One job, carried on from wherever it stands."""

    def __init__(self, ports: Ports, sequences: Sequences, ledger: RedriveLedger, job: str, ask: Ask) -> None:
        self._ports = ports
        self._sequences = sequences
        self._ledger = ledger
        self._id = job
        self._ask = ask
        self._next_step = ports.clock.monotonic()
        self._woken = asyncio.Event()
        self.trouble: str | None = None  # why it does not get on at the moment

    @property
    def _job(self) -> RedriveJob:
        """The job as it is now: it may have been cancelled at any moment."""
        return self._ledger.jobs[self._id]

    async def run(self) -> None:
        """Carry the job to its end, or until another node leads its ledger."""
        pause_s = _PAUSE_SECONDS_MIN
        while not self._job.state.is_over:
            try:
                await self.step()
            except CoordinationError:
                return
            except PenstockError as error:
                if self.trouble is None:
                    log.warning("Redrive %s of %s waits: %s", self._id, self._ledger.id, error.message)
                self.trouble = error.message
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_SECONDS_MAX)
            else:
                pause_s, self.trouble = _PAUSE_SECONDS_MIN, None

    def wake(self) -> None:
        """Look at the job now, it has changed."""
        self._woken.set()

    async def step(self) -> None:
        """Carry out the plan if there is one, else make the next one or come to the end."""
        job = self._job
        if job.plan is not None:
            await self._ask(await self._carry_out(job, job.plan))
            return
        topic = self._ports.metadata.topics.get(job.dead_letters)
        if topic is None or str(topic.topic_id) != job.topic_id:
            await self._end(f"Topic {job.dead_letters!r} was deleted.")
            return
        place = next((at for at, end in sorted(job.ends.items()) if job.cursors.get(at, 0) < end), None)
        is_enough = job.limit is not None and job.moved >= job.limit
        if place is None or is_enough or job.state is not JobState.RUNNING:
            await self._end(None)
        elif await self._keep_pace():
            await self._plan(job, place, job.cursors.get(place, 0), job.ends[place])

    async def _end(self, error: str | None) -> None:
        await self._ask(EndJob(self._id, error))

    async def _keep_pace(self) -> bool:
        """Wait until the next messages may go; False if something else came up."""
        wait_s = self._next_step - self._ports.clock.monotonic()
        if wait_s <= 0:
            return True
        self._woken.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._woken.wait()
        except TimeoutError:
            return True
        return False

    # -- planning -----------------------------------------------------------------------------------------------------

    async def _plan(self, job: RedriveJob, partition: int, offset: int, end: int) -> None:
        looked = await scan(self._ports, job.dead_letters, partition, offset, end, job.filter)
        done = IntervalSet()
        for first, last in self._ledger.marks(job.topic_id, partition, offset, looked.next_offset):
            done.add(first, last)
        found = [each for each in looked.messages if not done.covers(each.offset, each.offset)]
        chosen = self._choose(job, found)
        next_offset = looked.next_offset if len(chosen) == len(found) else chosen[-1].offset + 1
        scanned = next_offset - offset
        if not chosen:
            await self._ask(LookedAt(job.id, partition, next_offset, scanned))
            return
        targets, reason = self._targets(job, chosen)
        stranded = len(chosen) - sum(len(target.offsets) for target in targets)
        producer_id = await self._ports.topics.allocate_producer_id()
        if self._job.state is not JobState.RUNNING:
            return  # cancelled meanwhile
        plan = MovePlan(partition, producer_id, next_offset, targets, stranded, reason)
        await self._ask(MakePlan(job.id, plan, scanned))
        if job.rate is not None:
            self._next_step = self._ports.clock.monotonic() + len(chosen) / job.rate

    def _choose(self, job: RedriveJob, found: Sequence[DeadMessage]) -> list[DeadMessage]:
        """As many as make a step."""
        count = _STEP_MESSAGES
        if job.rate is not None:
            count = max(1, min(count, ceil(job.rate / _STEPS_A_SECOND)))
        if job.limit is not None:
            count = min(count, job.limit - job.moved)
        size = 0
        for at, message in enumerate(found[:count]):
            size += len(message.record.key or b"") + len(message.record.value or b"")
            if at and size > _STEP_BYTES:
                return list(found[:at])
        return list(found[:count])

    def _targets(self, job: RedriveJob, chosen: Sequence[DeadMessage]) -> tuple[list[RedriveTarget], str | None]:
        """Where each goes; and why some go nowhere, if they do."""
        places: dict[tuple[str, int], list[int]] = {}
        reason: str | None = None
        route = RedriveRoute(self._ports, job.dead_letters, job.target)
        for message in chosen:
            try:
                places.setdefault(route.of(message), []).append(message.offset)
            except PenstockError as error:
                reason = error.message
        topics = self._ports.metadata.topics
        return [
            RedriveTarget(name, str(topics[name].topic_id), index, offsets) for (name, index), offsets in places.items()
        ], reason

    # -- carrying out -------------------------------------------------------------------------------------------------

    async def _carry_out(self, job: RedriveJob, plan: MovePlan) -> SettlePlan:
        """Publish what was planned, possibly for the second time."""
        moved: list[int] = []
        planned, reason = plan.stranded, plan.reason
        for target in plan.targets:
            planned += len(target.offsets)
            try:
                moved += await self._publish(job, plan, target)
            except (InvalidRequest, UnknownTopic, UnknownPartition) as error:
                reason = error.message
        return SettlePlan(job.id, moved, planned - len(moved), reason)

    async def _publish(self, job: RedriveJob, plan: MovePlan, target: RedriveTarget) -> list[int]:
        """Have the messages for one partition in there; which those are."""
        topic = self._ports.metadata.topics.get(target.topic)
        if topic is None or str(topic.topic_id) != target.topic_id:
            raise UnknownTopic(f"Topic {target.topic!r} was deleted in the meantime.")
        messages = await self._read(job, plan, target)
        if not messages:
            return []  # retention was faster
        producer = ProducerIdentity(plan.producer_id, 0)
        limit = self._ports.topics.settings_of(target.topic).max_message_bytes
        records = [revived(each.record)._replace(offset=at) for at, each in enumerate(messages)]
        try:
            await self._ports.partitions.append(
                target.topic, target.partition, encode(records, producer, limit), timeout_ms=_APPEND_TIMEOUT_MS
            )
        except (OutOfOrderSequence, DuplicateSequence):
            # This producer has written nothing else there, so it is this step; with more messages than are left now.
            if await self._sequences.last(target.topic, target.partition, producer) == UNKNOWN:
                raise
        return [each.offset for each in messages]

    async def _read(self, job: RedriveJob, plan: MovePlan, target: RedriveTarget) -> list[DeadMessage]:
        wanted = DeadLetterFilter(places=[(plan.partition, offset) for offset in target.offsets])
        found: list[DeadMessage] = []
        offset, end = target.offsets[0], target.offsets[-1] + 1
        while offset < end:
            looked = await scan(self._ports, job.dead_letters, plan.partition, offset, end, wanted)
            found += looked.messages
            offset = looked.next_offset
        return found


def encode(records: Sequence[Record], producer: ProducerIdentity, limit: int) -> bytearray:
    """A batch that a partition recognises; compressed if it is too large as it is."""
    fields: dict[str, Any] = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "base_sequence": 0,
    }
    batch = encode_batch(records, **fields)
    is_fitting = len(batch) <= max(limit, HEADER_BYTES)
    return batch if is_fitting else encode_batch(records, codec=Codec.ZSTD, **fields)


PARTITIONS: Final = 4


class OpenRedrive(msgspec.Struct, frozen=True):
    job: RedriveJob


class CancelRedriveJob(msgspec.Struct, frozen=True):
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
    job: RedriveJob


class AllRedrives(msgspec.Struct, frozen=True):
    jobs: list[RedriveJob]


class FoundMarks(msgspec.Struct, frozen=True):
    spans: list[Span]


OPEN: Final = Method("redrive.open", OpenRedrive, OneRedrive)
CANCEL: Final = Method("redrive.cancel", CancelRedriveJob, OneRedrive)
LIST: Final = Method("redrive.list", AskRedrives, AllRedrives)
MARKS: Final = Method("redrive.marks", AskMarks, FoundMarks)


class RedriveShard(Shard[RedriveLedger, RedriveChange]):
    """Ledgers by the name of their dead-letter topic."""

    def make(self, name: str) -> RedriveLedger:
        return RedriveLedger(name)

    def name_of(self, change: RedriveChange) -> str:
        return change.key.dead_letters


class Redrives(NamedCoordinator[RedriveShard]):
    """All redrives whose ledgers this node leads, and the way to those of other nodes."""

    topic = REDRIVES_TOPIC
    what = "redrives"

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports.leaders, ports.time, ports.supervision)
        self._ports = ports
        self._sequences = Sequences(ports.metadata, ports.peers, ports.partitions.find)
        self._running: dict[RedriveLedger, RedriveRunner] = {}

    def make_shard(self, partition: Partition) -> RedriveShard:
        return RedriveShard(
            PartitionJournal(partition, redrive_records, syncs=self._ports.syncs_before_ack),
            self._clock.now_ms,
            self._clock.now_ms,
            asyncio.get_running_loop().call_soon,
        )

    def start(self) -> None:
        super().start()
        peers = self._ports.peers
        peers.serve(OPEN, self._serve_open)
        peers.serve(CANCEL, self._serve_cancel)
        peers.serve(LIST, self._serve_list)
        peers.serve(MARKS, self._serve_marks)

    # -- the work -----------------------------------------------------------------------------------------------------

    def on_opened(self, shard: RedriveShard) -> None:
        """Carry on with the redrives that are open, as after a change of leaders."""
        for ledger in tuple(shard.machines.values()):
            self._run_open(ledger)

    async def upkeep(self, shard: RedriveShard) -> None:
        """Begin again what ended with an error."""
        await super().upkeep(shard)
        self.on_opened(shard)

    def _run_open(self, ledger: RedriveLedger) -> None:
        job = ledger.open_job
        if job is None or ledger in self._running:
            return
        redrive = RedriveRunner(self._ports, self._sequences, ledger, job.id, partial(self._ask_of, ledger))
        self._running[ledger] = redrive
        self.background.spawn(self._run(ledger, redrive))

    async def _run(self, ledger: RedriveLedger, redrive: RedriveRunner) -> None:
        try:
            await self.settled(ledger.id)  # what is read from a log need not be committed
            await redrive.run()
        except PenstockError as error:
            log.warning("A redrive of %s is left to its next leader: %s", ledger.id, error.message)
        except Exception:
            log.exception("A redrive of %s met a bug.", ledger.id)
        finally:
            del self._running[ledger]

    async def _ask_of(self, ledger: RedriveLedger, request: Request[RedriveJob]) -> RedriveJob:
        if self.shard(ledger.id).machines.get(ledger.id) is not ledger:
            raise NotCoordinator(f"The redrives of {ledger.id!r} have been read anew.")
        return await self.ask(ledger.id, request)

    # -- asked by other nodes -----------------------------------------------------------------------------------------

    async def _serve_open(self, _node_id: int, request: OpenRedrive, _body: memoryview) -> OneRedrive:
        name = request.job.dead_letters
        job = await self.ask(name, OpenJob(request.job))
        ledger = self.shard(name).machines.get(name)
        if ledger is not None:
            self._run_open(ledger)
        return OneRedrive(job)

    async def _serve_cancel(self, _node_id: int, request: CancelRedriveJob, _body: memoryview) -> OneRedrive:
        name = request.dead_letters
        job = await self.ask(name, CancelJob(request.job))
        ledger = self.shard(name).machines.get(name)
        running = None if ledger is None else self._running.get(ledger)
        if running is not None:
            running.wake()
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

    async def open(self, job: RedriveJob) -> RedriveJob:
        """Begin a redrive; `RedriveRunning` if there is one of these dead letters."""
        await self._ports.topics.ensure_internal(REDRIVES_TOPIC)
        reply: OneRedrive = await self._at(job.dead_letters, OPEN, OpenRedrive(job))
        return reply.job

    async def cancel(self, dead_letters: str, job: str) -> RedriveJob:
        reply: OneRedrive = await self._at(dead_letters, CANCEL, CancelRedriveJob(dead_letters, job))
        return reply.job

    async def jobs(self, dead_letters: str) -> list[RedriveJob]:
        """Every redrive that is remembered, the oldest first."""
        if REDRIVES_TOPIC not in self._ports.metadata.topics:
            return []
        reply: AllRedrives = await self._at(dead_letters, LIST, AskRedrives(dead_letters))
        return reply.jobs

    async def marks(self, dead_letters: str, topic_id: str, partition: int, first: int, last: int) -> list[Span]:
        """Which dead letters between two offsets were sent back."""
        if REDRIVES_TOPIC not in self._ports.metadata.topics or last < first:
            return []
        request = AskMarks(dead_letters, topic_id, partition, first, last)
        reply: FoundMarks = await self._at(dead_letters, MARKS, request)
        return reply.spans

    async def _at(self, name: str, method: Method[Any, Any], request: msgspec.Struct) -> Any:
        """Have the leader of a ledger answer."""
        where = self._ports.leaders.where(REDRIVES_TOPIC, name)
        if where is None:
            raise NotCoordinator(f"No node keeps the redrives of {name!r} now. Try again in a moment.")
        # A node that did not answer may have opened it: that is not done twice.
        received = await self._ports.leaders.ask(where, method, request, repeats=method is not OPEN)
        return received.reply
