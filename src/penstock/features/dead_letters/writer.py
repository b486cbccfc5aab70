"""Writes the messages that a queue gave up on to its dead-letter topic, each once, and then confirms them.

One batch at a time for each queue, in the order in which messages died. The queue numbers its dead letters, and they
are written as one idempotent producer that the queue remembers. The next leader after a crash asks the leader of the
dead letters how far that producer got, and goes on from there. Numbers without a message (retention or a seek took it
meanwhile) are written too, as gaps in a batch: so a write of a former leader that comes late, from when the message was
still there, is the same one. Only where they are very many the producer begins a new epoch in their place.

What cannot be written now is tried again, with longer and longer pauses; the messages stay with the queue until then.

The flood breaker: a group is paused when too many of its messages fail, before all of them become dead letters.

One bad message is for the dead letters. If most fail, what is wrong is elsewhere: a database that is down, a release
with a bug. Then every retry is in vain, and a pause keeps the messages where they are until an operator has looked.

Each node counts what ended on the partitions that it leads. `Breaker` knows no clock; `Breakers` wires it to pausing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from penstock.clock import Clock
from penstock.consensus.controller import TopicSpec
from penstock.consensus.controller.companions import SHARED_CONFIGS
from penstock.consensus.queue_config import QueueSettings
from penstock.consensus.setting import INT32_MAX
from penstock.errors import (
    CoordinationError,
    DuplicateSequence,
    InvalidRequest,
    MessageTooLarge,
    OutOfOrderSequence,
    PenstockError,
    ProducerFenced,
    TopicExists,
)
from penstock.features.dead_letters.letters import (
    HEADERS_BYTES_MAX,
    DeadLetterOrigin,
    dead_letter_topic,
    retrieve,
    with_origin,
)
from penstock.features.dead_letters.sequences import UNKNOWN, Sequences
from penstock.features.messages.publishing import OutgoingMessage, chunks
from penstock.features.queues.core.intervals import IntervalSet
from penstock.features.queues.core.messages import (
    AssignDeadLetterProducer,
    ConfirmDeadLetters,
    PendingDeadLetter,
    SkipGaps,
)
from penstock.features.queues.core.queue import Queue
from penstock.features.queues.core.state import QueueTally
from penstock.machines.messages import ProducerIdentity, Request
from penstock.machines.ports import Ports
from penstock.records import Codec, Record, encode_batch, filter_batch
from penstock.storage.producers import SEQUENCE_WRAP
from penstock.supervision import Supervision

log = logging.getLogger(__name__)


_SLOTS: Final = 20  # a window moves on by this share of itself

Pause = Callable[[str, str, str], Awaitable[None]]  # topic, group, reason
Where = tuple[str, str]  # topic, group


class FailureFlood(NamedTuple):
    """Too many failures: how many of how many."""

    failed: int
    ended: int
    window_ms: int

    def reason(self, share: float) -> str:
        """What happened and what to do, for the operator who finds the group paused."""
        return (
            f"The breaker opened: {self.failed} of {self.ended} deliveries failed within {self.window_ms / 1000:g} s, "
            f"more than the share of {share:g} that queue.breaker.share allows. Nothing is lost. Mend the cause, then "
            "resume the group."
        )


class _Slot:
    """What ended within a part of the window."""

    __slots__ = ("failed", "succeeded", "until_ms")

    def __init__(self, until_ms: int) -> None:
        self.until_ms = until_ms
        self.succeeded = 0
        self.failed = 0


class Breaker:
    """The deliveries of one group that ended within the last window."""

    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque()
        self._succeeded = 0
        self._failed = 0

    def note(self, succeeded: int, failed: int, settings: QueueSettings, now_ms: int) -> FailureFlood | None:
        """Count what ended just now; what to pause for, if it is too much."""
        window_ms = settings.breaker_window_ms
        self._pass_time(now_ms, window_ms)
        slots = self._slots
        if not slots or slots[-1].until_ms <= now_ms:
            slots.append(_Slot(now_ms + max(window_ms // _SLOTS, 1)))
        slots[-1].succeeded += succeeded
        slots[-1].failed += failed
        self._succeeded += succeeded
        self._failed += failed
        ended = self._succeeded + self._failed
        is_flood = ended >= settings.breaker_min and self._failed > settings.breaker_share * ended
        return FailureFlood(self._failed, ended, window_ms) if is_flood and settings.breaker_share > 0 else None

    def _pass_time(self, now_ms: int, window_ms: int) -> None:
        """Forget what ended before the window."""
        slots = self._slots
        while slots and slots[0].until_ms <= now_ms - window_ms:
            slot = slots.popleft()
            self._succeeded -= slot.succeeded
            self._failed -= slot.failed


class Breakers:
    """The breakers of all groups that this node serves."""

    def __init__(self, clock: Clock, pause: Pause, supervision: Supervision) -> None:
        self._supervision = supervision
        self._clock = clock
        self._pause = pause
        self._breakers: dict[Where, Breaker] = {}
        self._tasks: dict[Where, asyncio.Task[None]] = {}
        self.opened: Counter[Where] = Counter()  # how often, by topic and group

    def note(self, topic: str, group: str, settings: QueueSettings, tally: QueueTally) -> None:
        """Count what became of deliveries. A group whose breaker opens is paused everywhere, soon."""
        where = (topic, group)
        if settings.breaker_share <= 0:
            self._breakers.pop(where, None)
            return
        if not (tally.acked or tally.failed) or where in self._tasks:
            return
        breaker = self._breakers.setdefault(where, Breaker())
        # Windows are measured, so this is no wall clock, which may jump.
        flood = breaker.note(tally.acked, tally.failed, settings, int(self._clock.monotonic() * 1000))
        if flood is not None:
            task = self._tasks[where] = asyncio.ensure_future(self._open(where, flood.reason(settings.breaker_share)))
            task.add_done_callback(lambda _: self._tasks.pop(where, None))
            self._supervision.watch("pausing queue groups", task)

    async def _open(self, where: Where, reason: str) -> None:
        try:
            await self._pause(*where, reason)
        except PenstockError as error:  # the counts stay, so the next failure tries again
            log.warning("Group %r of %s fails too often but cannot be paused: %s", where[1], where[0], error.message)
            return
        self.opened[where] += 1
        self.reset(*where)
        log.warning("Group %r of %s is paused. %s", where[1], where[0], reason)

    def reset(self, topic: str, group: str) -> None:
        """Begin to count anew, as when the group goes on or is forgotten."""
        self._breakers.pop((topic, group), None)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# The queue's own machine is asked; the answer comes when what it says is committed.
Ask = Callable[[str, Request[Any]], Awaitable[Any]]

_APPEND_TIMEOUT_MS: Final = 30_000
_READ_BYTES: Final = 4 * 1024 * 1024
_LETTERS_AT_ONCE: Final = 100
_BATCH_BYTES_MAX: Final = 1024 * 1024
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 10.0
_EPOCH_MAX: Final = 30_000
_GAP_MAX: Final = 100_000  # numbers in a row without a message; consumers see them as offsets that are not there


class DeadLetterWriters:
    """The writers of all queues that this node leads."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._sequences = Sequences(ports.metadata, ports.peers, ports.partitions.find)
        self._tasks: dict[Queue, asyncio.Task[bool]] = {}

    def serve(self) -> None:
        """Answer other nodes from now on."""
        self._sequences.serve()

    def look(self, queue: Queue, ask: Ask) -> None:
        """Begin to write if the queue has dead letters and no writer is under way. Cheap: call it often."""
        if queue in self._tasks or not queue.dead_letters(1):
            return
        writer = DeadLetterWriter(self._ports, self._sequences, queue, ask)
        task = self._tasks[queue] = asyncio.ensure_future(writer.run())
        task.add_done_callback(lambda done: self._end(queue, ask, done))

    def _end(self, queue: Queue, ask: Ask, task: asyncio.Task[bool]) -> None:
        self._tasks.pop(queue, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._ports.supervision.note("dead letters", error)  # the next change of the queue looks again
        elif task.result():
            self.look(queue, ask)  # something may have died since it last looked

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Numbered(NamedTuple):
    """A dead letter that is to be written."""

    sequence: int
    offset: int  # of the message that it was
    record: Record


class DeadLetterWriter:
    """The dead letters of one queue on their way, until there are none left."""

    def __init__(self, ports: Ports, sequences: Sequences, queue: Queue, ask: Ask) -> None:
        self._ports = ports
        self._sequences = sequences
        self._queue = queue
        self._ask = ask
        self._reached: tuple[str, int, int] | None = None  # where to, and the last sequence that is there
        self._is_failing = False

    async def run(self) -> bool:
        """Bury until nothing is left, or until another node leads this queue; whether it still is led here."""
        pause_s = _PAUSE_SECONDS_MIN
        while letters := self._queue.dead_letters(_LETTERS_AT_ONCE):
            try:
                await self.write(letters)
            except CoordinationError:
                return False  # its next leader goes on
            except PenstockError as error:
                self._tell(error)
                self._reached = None
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_SECONDS_MAX)
            else:
                pause_s, self._is_failing = _PAUSE_SECONDS_MIN, False
        return True

    def _tell(self, error: PenstockError) -> None:
        is_known, self._is_failing = self._is_failing, True
        if not is_known:
            log.warning("Dead letters of %r cannot be written now, and are kept: %s", self._queue, error.message)

    async def write(self, letters: Sequence[PendingDeadLetter]) -> None:
        """Write dead letters and confirm them, or bring things closer to that."""
        queue, ids = self._queue, tuple(dict.fromkeys(letter.id for letter in letters))
        await self._ask(
            queue.id, ConfirmDeadLetters(())
        )  # changes nothing, and is answered when what we see is committed
        name = dead_letter_topic(queue.topic, queue.settings)
        if name is None:
            await self._ask(
                queue.id, ConfirmDeadLetters(ids)
            )  # rejected for good: they stay in the log, and nowhere else
            return
        if queue.producer is None:
            await self._take_producer(None)
            return
        index = queue.partition % await ensure_dead_letter_topic(self._ports, queue.topic, name)
        for at, letter in enumerate(letters):
            offset = letter.first
            while offset <= letter.last:
                found = await retrieve(self._ports, queue.topic, queue.partition, offset, letter.last, _READ_BYTES)
                left = await self._left(name, index, queue.producer, letter, found.records)
                if not await self._write(name, index, queue.producer, left):
                    await self._close_gap(letters[:at], letter, left)
                    return
                offset = found.next_offset
        await self._ask(queue.id, ConfirmDeadLetters(ids))

    async def _left(
        self, name: str, index: int, producer: ProducerIdentity, letter: PendingDeadLetter, records: Sequence[Record]
    ) -> list[Numbered]:
        """Those that are not written yet, as dead letters, each with its sequence."""
        last = await self._last_written(name, index, producer)
        now_ms = self._ports.clock.now_ms()
        found: list[Numbered] = []
        for record in records:
            sequence = (letter.sequence + record.offset - letter.first) % SEQUENCE_WRAP
            if not _is_written(sequence, last):
                origin = DeadLetterOrigin(
                    topic=self._queue.topic,
                    partition=self._queue.partition,
                    offset=record.offset,
                    timestamp_ms=record.timestamp,
                    group=self._queue.id,
                    tries=letter.tries,
                    reason=letter.reason,
                    time_ms=now_ms,
                )
                found.append(Numbered(sequence, record.offset, with_origin(record, origin)))
        return found

    # -- as whom ------------------------------------------------------------------------------------------------------

    async def _take_producer(self, before: ProducerIdentity | None) -> None:
        """Write as another producer from now on, or as the same one in its next epoch."""
        if before is not None and before.epoch < _EPOCH_MAX:
            producer = ProducerIdentity(before.producer_id, before.epoch + 1)
        else:
            producer = ProducerIdentity(await self._ports.topics.allocate_producer_id(), 0)
        await self._ask(self._queue.id, AssignDeadLetterProducer(producer))
        self._reached = None

    async def _last_written(self, name: str, index: int, producer: ProducerIdentity) -> int:
        if self._reached is None or self._reached[:2] != (name, index):
            self._reached = (name, index, await self._sequences.last(name, index, producer))
        return self._reached[2]

    async def _close_gap(
        self, done: Sequence[PendingDeadLetter], letter: PendingDeadLetter, left: Sequence[Numbered]
    ) -> None:
        """Be done with what is written or gone, and have the rest numbered anew.

        That is all of the letters before this one, and of this one what is not left, as far as it was looked at.
        """
        gone = IntervalSet()
        gone.add(letter.first, left[-1].offset)
        for each in left:
            gone.clear(each.offset, each.offset)
        for piece in done:
            if piece.id == letter.id:
                gone.add(piece.first, piece.last)
        if ids := tuple(dict.fromkeys(piece.id for piece in done if piece.id != letter.id)):
            await self._ask(self._queue.id, ConfirmDeadLetters(ids))
        if len(gone):
            await self._ask(self._queue.id, SkipGaps(gone.intervals()))
        await self._take_producer(self._queue.producer)

    # -- where to -----------------------------------------------------------------------------------------------------

    async def _write(self, name: str, index: int, producer: ProducerIdentity, left: Sequence[Numbered]) -> bool:
        """Append dead letters; False if they cannot be, because of a gap in what this producer has written."""
        if not left:
            return True
        last = await self._last_written(name, index, producer)
        base = _following(last, left[0].sequence)
        if _distance(base, left[0].sequence) > _GAP_MAX:
            return False
        messages = [
            OutgoingMessage(key=each.record.key, value=each.record.value, headers=each.record.headers) for each in left
        ]
        limit = min(self._ports.topics.settings_of(name).max_message_bytes, _BATCH_BYTES_MAX)
        for chunk in chunks(messages, range(len(messages)), limit):
            try:
                await self._append(name, index, producer, base, [left[at] for at in chunk])
            except (OutOfOrderSequence, DuplicateSequence):
                self._reached = None
                if await self._last_written(name, index, producer) != last:
                    raise  # another node wrote it, or a part of it: look again
                return False  # the producer is known there, but not in this epoch, which has to begin at 0
            last = left[chunk[-1]].sequence
            base = _following(last, last)
            self._reached = (name, index, last)
        return True

    async def _append(
        self, name: str, index: int, producer: ProducerIdentity, base: int, chunk: Sequence[Numbered]
    ) -> None:
        """Append a batch whose numbers go from ``base`` to that of the last dead letter."""
        records = [each.record._replace(offset=_distance(base, each.sequence)) for each in chunk]
        is_thinned = records[-1].offset >= len(records)
        limit = self._ports.topics.settings_of(name).max_message_bytes
        batch = _encode(records, producer, base, Codec.NONE)
        if len(batch) > limit:
            batch = _encode(records, producer, base, Codec.ZSTD)
        if len(batch) > limit:
            await self._make_room(name, len(batch))
        try:
            append = self._ports.partitions.append
            await append(name, index, batch, timeout_ms=_APPEND_TIMEOUT_MS, is_thinned=is_thinned)
        except MessageTooLarge:  # its leader goes by older settings
            await self._make_room(name, len(batch))
            raise
        except ProducerFenced:
            await self._take_producer(None)
            raise

    async def _make_room(self, name: str, size: int) -> None:
        if size + HEADERS_BYTES_MAX > INT32_MAX:
            raise MessageTooLarge(f"A dead letter of {size} bytes is more than any topic takes.")
        limit = max(size + HEADERS_BYTES_MAX, self._ports.topics.settings_of(name).max_message_bytes)
        log.warning("A dead letter has %d bytes; max.message.bytes of %s is raised to %d.", size, name, limit)
        await self._ports.topics.configure(name, {"max.message.bytes": str(limit)})


def _encode(records: Sequence[Record], producer: ProducerIdentity, base: int, codec: Codec) -> bytearray:
    """A batch with sequences from ``base`` on; the offset of a record tells how far its own is from there."""
    has_gap = records[0].offset > 0  # a batch begins with its first record, so one stands in for what is not there
    whole = encode_batch(
        (Record(0, records[0].timestamp, None, None), *records) if has_gap else records,
        codec=codec,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=base,
    )
    return (filter_batch(whole, lambda record: record.offset > 0) or whole) if has_gap else whole


def _is_written(sequence: int, last: int) -> bool:
    """Whether a producer whose last message is ``last`` has written this one; numbers go round."""
    return last != UNKNOWN and (last - sequence) % SEQUENCE_WRAP < SEQUENCE_WRAP // 2


def _following(last: int, first: int) -> int:
    """The sequence after the last one; where nothing is known of the producer it may begin with any."""
    return first if last == UNKNOWN else (last + 1) % SEQUENCE_WRAP


def _distance(base: int, sequence: int) -> int:
    return (sequence - base) % SEQUENCE_WRAP


async def ensure_dead_letter_topic(ports: Ports, topic: str, name: str) -> int:
    """Make the dead-letter topic of another one if it is not there; how many partitions it has.

    It takes what the topic takes and the headers beside that, is as safe as that one, and keeps all for ever: dead
    letters have the times of their messages, so retention by time would remove old ones as soon as they come.
    """
    if name not in ports.metadata.topics:
        parent = ports.metadata.topic(topic)
        limit = min(ports.topics.settings_of(topic).max_message_bytes + HEADERS_BYTES_MAX, INT32_MAX)
        configs = {"max.message.bytes": str(limit), "retention.ms": "-1", "retention.bytes": "-1"}
        configs |= {key: parent.configs[key] for key in SHARED_CONFIGS if key in parent.configs}
        spec = TopicSpec(
            name=name,
            partitions=len(parent.partitions),
            replication_factor=parent.replication_factor,
            configs=configs,
        )
        try:
            await ports.topics.create(spec)
        except TopicExists:
            pass  # the queue of another partition was faster
        except InvalidRequest as error:
            raise type(error)(f"The dead letters of {topic!r} cannot be kept in {name!r}: {error.message}") from error
    return len(ports.metadata.topic(name).partitions)
