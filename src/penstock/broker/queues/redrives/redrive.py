"""Redrives under way: dead letters go back to where they came from, each once, at the pace that was asked for.

A step is planned in the ledger before it is done, as a producer of its own. If the node dies in the middle, whoever
leads the ledger next repeats the step, and the partitions drop what they have. So a message is never lost, and appears
once, as long as a step is repeated within a day: for so long partitions remember a producer that is silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.coordination.messages import ProducerIdentity, Request
from penstock.broker.queues.core.intervals import IntervalSet
from penstock.broker.queues.letters.letters import DeadMessage, look
from penstock.broker.queues.letters.origins import SUFFIX, revive
from penstock.broker.queues.letters.sequences import UNKNOWN, Sequences
from penstock.broker.queues.redrives.ledger import EndJob, Ledger, LookedAt, MakePlan, SettlePlan
from penstock.broker.queues.redrives.records import Filter, Job, JobState, Plan, Target
from penstock.errors import (
    CoordinationError,
    CorruptRecords,
    DuplicateSequence,
    InvalidRequest,
    OutOfOrderSequence,
    PenstockError,
    UnknownPartition,
    UnknownTopic,
)
from penstock.model import is_internal
from penstock.records import HEADER_BYTES, Codec, KeyHash, Record, encode_batch

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger(__name__)

_STEP_MESSAGES: Final = 200
_STEP_BYTES: Final = 512 * 1024
_STEPS_A_SECOND: Final = 5  # with a rate: small steps make an even pace
_APPEND_TIMEOUT_MS: Final = 30_000
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0
_PARTITIONER: Final = KeyHash()

Ask = Callable[[Request[Job]], Awaitable[Job]]


class Route:
    """Where dead letters go: to a topic that was named, or each to where it came from."""

    def __init__(self, broker: Broker, dead_letters: str, target: str | None) -> None:
        self._broker = broker
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
        count = len(self._broker.metadata.topic(name).partitions)
        if name == origin.topic and origin.partition is not None and 0 <= origin.partition < count:
            return name, origin.partition
        key = message.record.key
        return name, message.partition % count if key is None else _PARTITIONER.partition(key, count)


class Redrive:
    """One job, carried on from wherever it stands."""

    def __init__(self, broker: Broker, sequences: Sequences, ledger: Ledger, job: str, ask: Ask) -> None:
        self._broker = broker
        self._sequences = sequences
        self._ledger = ledger
        self._id = job
        self._ask = ask
        self._next_step = broker.clock.monotonic()
        self._stirred = asyncio.Event()
        self.trouble: str | None = None  # why it does not get on at the moment

    @property
    def _job(self) -> Job:
        """The job as it is now: it may have been cancelled at any moment."""
        return self._ledger.jobs[self._id]

    async def run(self) -> None:
        """Carry the job to its end, or until somebody else leads its ledger."""
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

    def stir(self) -> None:
        """Look at the job now, it has changed."""
        self._stirred.set()

    async def step(self) -> None:
        """Carry out the plan if there is one, else make the next one or come to the end."""
        job = self._job
        if job.plan is not None:
            await self._ask(await self._carry_out(job, job.plan))
            return
        topic = self._broker.metadata.topics.get(job.dead_letters)
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
        wait_s = self._next_step - self._broker.clock.monotonic()
        if wait_s <= 0:
            return True
        self._stirred.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._stirred.wait()
        except TimeoutError:
            return True
        return False

    # -- planning -----------------------------------------------------------------------------------------------------

    async def _plan(self, job: Job, partition: int, offset: int, end: int) -> None:
        looked = await look(self._broker, job.dead_letters, partition, offset, end, job.filter)
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
        producer_id = await self._broker.allocate_producer_id()
        if self._job.state is not JobState.RUNNING:
            return  # cancelled meanwhile
        plan = Plan(partition, producer_id, next_offset, targets, stranded, reason)
        await self._ask(MakePlan(job.id, plan, scanned))
        if job.rate is not None:
            self._next_step = self._broker.clock.monotonic() + len(chosen) / job.rate

    def _choose(self, job: Job, found: Sequence[DeadMessage]) -> list[DeadMessage]:
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

    def _targets(self, job: Job, chosen: Sequence[DeadMessage]) -> tuple[list[Target], str | None]:
        """Where each goes; and why some go nowhere, if they do."""
        places: dict[tuple[str, int], list[int]] = {}
        reason: str | None = None
        route = Route(self._broker, job.dead_letters, job.target)
        for message in chosen:
            try:
                places.setdefault(route.of(message), []).append(message.offset)
            except PenstockError as error:
                reason = error.message
        topics = self._broker.metadata.topics
        return [
            Target(name, str(topics[name].topic_id), index, offsets) for (name, index), offsets in places.items()
        ], reason

    # -- carrying out -------------------------------------------------------------------------------------------------

    async def _carry_out(self, job: Job, plan: Plan) -> SettlePlan:
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

    async def _publish(self, job: Job, plan: Plan, target: Target) -> list[int]:
        """Have the messages for one partition in there; which those are."""
        topic = self._broker.metadata.topics.get(target.topic)
        if topic is None or str(topic.topic_id) != target.topic_id:
            raise UnknownTopic(f"Topic {target.topic!r} was deleted in the meantime.")
        messages = await self._read(job, plan, target)
        if not messages:
            return []  # retention was faster
        producer = ProducerIdentity(plan.producer_id, 0)
        limit = self._broker.topic_settings(target.topic).max_message_bytes
        records = [revive(each.record)._replace(offset=at) for at, each in enumerate(messages)]
        try:
            await self._broker.remote.append(
                target.topic, target.partition, encode(records, producer, limit), timeout_ms=_APPEND_TIMEOUT_MS
            )
        except (OutOfOrderSequence, DuplicateSequence):
            # This producer has written nothing else there, so it is this step; with more messages than are left now.
            if await self._sequences.last(target.topic, target.partition, producer) == UNKNOWN:
                raise
        return [each.offset for each in messages]

    async def _read(self, job: Job, plan: Plan, target: Target) -> list[DeadMessage]:
        wanted = Filter(places=[(plan.partition, offset) for offset in target.offsets])
        found: list[DeadMessage] = []
        offset, end = target.offsets[0], target.offsets[-1] + 1
        while offset < end:
            looked = await look(self._broker, job.dead_letters, plan.partition, offset, end, wanted)
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
