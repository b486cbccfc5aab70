"""Where the messages of schedules go: the partition of each, and the records that they become.

A message with a key goes where every producer would send it. Those without one that are due together go to one
partition, and the next ones to the next, as far as these have leaders.

One firing's batch into its partition, wherever that is led: repeated until it is there or certainly is not.

Numbers make repeating safe. A refusal counts only if no earlier attempt can have got through: otherwise the partition
is asked what it has of this producer.

What is due, on its way into its topics: read, sorted by partition, written down, appended, confirmed.

There is one firing at a time for each partition, and many partitions at a time. What is due for a partition that is
busy waits in line here; when lines are long nothing else is taken. For a partition that is *stuck*, because it has been
busy for long, only a short line is kept and the rest is put off, so that one without a leader holds up no other.

Firings begin in *rounds*, one for all lines whose partitions are free. Only a few rounds are under way at once: what
becomes due meanwhile makes a larger one. So the more there is to do the less it costs each, by itself.

Nothing is fired twice: a `ScheduleFirer` with sequence numbers is committed before the batch is appended with them, and
a leader in doubt appends the same batch again. A firing is one batch, so it is in its partition whole or not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.consensus.metadata import Topic
from penstock.consensus.records import NO_LEADER
from penstock.errors import (
    DuplicateSequence,
    InvalidRequest,
    OutOfOrderSequence,
    PenstockError,
    ProducerFenced,
    UnknownPartition,
    UnknownTopic,
)
from penstock.features.dead_letters.sequences import UNKNOWN, Sequences
from penstock.features.schedules.leading.shard import NAME, ScheduleShard
from penstock.features.schedules.messages import (
    AssignScheduleProducer,
    ConfirmFiring,
    DueSchedule,
    FailSchedules,
    Fire,
    FireAll,
    GrantedFiring,
    RefuseFiring,
)
from penstock.features.schedules.records import ScheduledMessage, StoredSchedule
from penstock.machines.messages import ProducerIdentity, Rejected
from penstock.machines.ports import Ports
from penstock.partitions.partition import Partition
from penstock.priorities import PRIORITY_HEADER
from penstock.records import HEADER_BYTES, Record, encode_batch, key_hash
from penstock.storage.producers import SEQUENCE_WRAP

ID_HEADER: Final = "penstock-schedule-id"
DUE_HEADER: Final = "penstock-due"

BATCH_BYTES_MAX: Final = 1024 * 1024
# The most that a record's lengths and deltas take, the headers that we add, and each header beside its name and value.
_RECORD_OVERHEAD_BYTES: Final = 36
_OWN_HEADERS_BYTES: Final = 320
_HEADER_OVERHEAD_BYTES: Final = 10
_UTF8_BYTES_MAX: Final = 4


class FiringTarget(NamedTuple):
    """A partition of a topic that may meanwhile be another one of the same name."""

    topic: str
    topic_id: bytes
    partition: int


class FiringTargets:
    """Chooses partitions, by what this node knows of topics."""

    def __init__(self, ports: Ports, turn: int) -> None:
        self._ports = ports
        self._turn = turn
        self._chosen: dict[str, FiringTarget] = {}  # for messages without a key, until the next turn

    def next_turn(self) -> None:
        """What comes now is not due together with what came before."""
        if self._chosen:
            self._turn += 1
            self._chosen.clear()

    def of(self, message: ScheduledMessage) -> FiringTarget | None:
        """Where a message goes; None if there is no such topic or partition."""
        is_free = message.key is None and message.partition is None
        if is_free and (chosen := self._chosen.get(message.topic)) is not None:
            return chosen
        topic = self._ports.metadata.topics.get(message.topic)
        if topic is None:
            return None
        partition = message.partition
        if partition is None:
            partition = self._choose(topic) if message.key is None else key_hash(message.key) % len(topic.partitions)
        if not 0 <= partition < len(topic.partitions):
            return None
        target = FiringTarget(message.topic, topic.topic_id.bytes, partition)
        if is_free:
            self._chosen[message.topic] = target
        return target

    def _choose(self, topic: Topic) -> int:
        led = [each.partition for each in topic.partitions if each.leader != NO_LEADER]
        usable = led or range(len(topic.partitions))
        return usable[self._turn % len(usable)]

    def why_not(self, message: ScheduledMessage) -> str:
        """Why there is nowhere to go."""
        if message.topic not in self._ports.metadata.topics:
            return f"There is no topic {message.topic!r} any more."
        return f"Topic {message.topic!r} has no partition {message.partition}."

    def batch_bytes(self, target: FiringTarget) -> int:
        """How large a batch may be there."""
        topic = self._ports.metadata.topics.get(target.topic)
        if topic is None:
            return BATCH_BYTES_MAX
        return min(self._ports.topics.settings_of(target.topic).max_message_bytes, BATCH_BYTES_MAX)


def size_of(message: ScheduledMessage) -> int:
    """How many bytes a message takes in a batch, at most."""
    size = _RECORD_OVERHEAD_BYTES + _OWN_HEADERS_BYTES + len(message.key or b"") + len(message.value or b"")
    for name, value in message.headers:
        size += _HEADER_OVERHEAD_BYTES + _UTF8_BYTES_MAX * len(name) + len(value or b"")
    return size


def batch_size_of(message: ScheduledMessage) -> int:
    """How many bytes a batch with this message alone takes, at most."""
    return HEADER_BYTES + size_of(message)


def to_records(schedules: Sequence[StoredSchedule], now_ms: int) -> list[Record]:
    """Messages as they come into their topic: stamped with the time at which they do, and with when they were due."""
    return [
        Record(delta, now_ms, schedule.message.key, schedule.message.value, _headers(schedule))
        for delta, schedule in enumerate(schedules)
    ]


def _headers(schedule: StoredSchedule) -> tuple[tuple[str, bytes | None], ...]:
    message = schedule.message
    headers = message.headers
    if headers and any(
        name in (ID_HEADER, DUE_HEADER) for name, _ in headers
    ):  # what was fired before is scheduled again
        headers = tuple(header for header in headers if header[0] not in (ID_HEADER, DUE_HEADER))
    if message.priority and all(name != PRIORITY_HEADER for name, _ in headers):
        headers = (*headers, (PRIORITY_HEADER, message.priority.encode()))
    # Ours come first: what is alike in all messages of a batch, such as their priority, is best last.
    return ((ID_HEADER, schedule.id.encode()), (DUE_HEADER, b"%d" % schedule.due_ms), *headers)


log = logging.getLogger(__name__)

_APPEND_TIMEOUT_MS: Final = 30_000
_PAUSE_MIN_S: Final = 0.05
_PAUSE_MAX_S: Final = 2.0
# The partition has not taken the batch, and never will as it is.
_REFUSED: Final = (InvalidRequest, UnknownTopic, UnknownPartition, OutOfOrderSequence, ProducerFenced)
_TOLD_FROM: Final = 5  # attempts, after most of a second
_GONE_TRIES: Final = 8  # looks for a topic that was there when the firing began, some five seconds in all

OnDelivered = Callable[["FiringDelivery", str | None], None]  # with why it was refused, None if it is there


class FiringDelivery:
    """Schedules that are to be appended, in order, with the numbers that they were given."""

    def __init__(
        self,
        shard: ScheduleShard,
        target: FiringTarget,
        granted: GrantedFiring,
        schedules: list[StoredSchedule],
        on_done: OnDelivered,
        *,
        is_doubtful: bool,
    ) -> None:
        self.shard = shard
        self.target = target
        self.granted = granted
        self.schedules = schedules
        self.on_done = on_done
        self.is_doubtful = is_doubtful  # an attempt may have got through unanswered
        self.attempts = 0
        self.pause_s = _PAUSE_MIN_S
        self.is_failing = False

    def encode(self) -> bytearray:
        """The batch, stamped with the present time."""
        return encode_batch(
            to_records(self.schedules, self.shard.now_ms()),
            producer_id=self.granted.producer_id,
            producer_epoch=self.granted.epoch,
            base_sequence=self.granted.sequence,
        )

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.granted.producer_id, self.granted.epoch)

    def is_covered_by(self, last: int) -> bool:
        """Whether a producer whose last message is ``last`` has written all of this; numbers go round."""
        own = (self.granted.sequence + len(self.schedules) - 1) % SEQUENCE_WRAP
        return last != UNKNOWN and (last - own) % SEQUENCE_WRAP < SEQUENCE_WRAP // 2


class ScheduleAppender:
    """Brings deliveries to partitions."""

    def __init__(self, ports: Ports, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._ports = ports
        self.spawn = spawn
        self._sequences = Sequences(ports.metadata, ports.peers, ports.partitions.find)

    def send(self, delivery: FiringDelivery) -> None:
        """Bring it there; its ``on_done`` is called when that is settled, unless the shard is led elsewhere by then."""
        if not delivery.shard.is_ready:
            return
        delivery.attempts += 1
        target = delivery.target
        partition = self._ports.partitions.find(UUID(bytes=target.topic_id), target.partition)
        if partition is None or not partition.is_leader:
            self.spawn(self._send_away(delivery))
            return
        try:
            partition.check_in_sync()
            batch = memoryview(delivery.encode())
            now_ms = self._ports.clock.now_ms()
            written = partition.append(batch, now_ms, is_durable=self._ports.syncs_before_ack)
        except PenstockError as error:
            self._on_error(delivery, error)
        else:
            partition.when_committed(written.next_offset, partial(self._on_committed, delivery, partition))

    def _on_committed(self, delivery: FiringDelivery, partition: Partition, error: PenstockError | None) -> None:
        if error is None:
            self._end(delivery, None)
        else:
            delivery.is_doubtful = True  # it is written here, and the next leader may have it
            log.debug("A firing to %s is repeated: %s", partition.id, error.message)
            self._again(delivery, error)

    async def _send_away(self, delivery: FiringDelivery) -> None:
        target = delivery.target
        try:
            known = self._ports.metadata.topic_by_id(UUID(bytes=target.topic_id))
            if known is None:
                raise UnknownTopic(f"Topic {target.topic!r} was deleted.")
            batch = delivery.encode()
            delivery.is_doubtful = True  # what comes back tells of the last of several attempts
            await self._ports.partitions.append(known.name, target.partition, batch, timeout_ms=_APPEND_TIMEOUT_MS)
        except PenstockError as error:
            self._on_error(delivery, error)
        else:
            self._end(delivery, None)

    def _end(self, delivery: FiringDelivery, refusal: str | None) -> None:
        if delivery.is_failing:
            log.info("Schedules reach %s-%d again.", delivery.target.topic, delivery.target.partition)
        delivery.on_done(delivery, refusal)

    def _on_error(self, delivery: FiringDelivery, error: PenstockError) -> None:
        if isinstance(error, DuplicateSequence):
            self._end(delivery, None)
        elif isinstance(error, UnknownTopic):  # deleted, or this node has yet to hear of it
            if delivery.is_doubtful and delivery.attempts < _GONE_TRIES:
                self._again(delivery, error)
            else:
                self._end(delivery, error.message)
        elif isinstance(error, _REFUSED) and not delivery.is_doubtful:
            self._end(delivery, error.message)
        elif isinstance(error, _REFUSED):
            self.spawn(self._find_out(delivery, error))
        else:
            self._again(delivery, error)

    async def _find_out(self, delivery: FiringDelivery, refusal: PenstockError) -> None:
        """An attempt is refused and an earlier one may not have been: ask what is there."""
        target = delivery.target
        try:
            last = await self._sequences.last(target.topic, target.partition, delivery.producer)
        except PenstockError as error:
            self._again(delivery, error)
        else:
            self._end(delivery, None if delivery.is_covered_by(last) else refusal.message)

    def _again(self, delivery: FiringDelivery, error: PenstockError) -> None:
        if not delivery.is_failing and delivery.attempts >= _TOLD_FROM:  # leaders change, which is nothing to tell
            delivery.is_failing = True
            place = f"{delivery.target.topic}-{delivery.target.partition}"
            log.warning("Schedules cannot reach %s now, and are kept: %s", place, error.message)
        asyncio.get_running_loop().call_later(delivery.pause_s, self.send, delivery)
        delivery.pause_s = min(2 * delivery.pause_s, _PAUSE_MAX_S)


_TAKEN_AT_ONCE: Final = 250  # are read and sorted before others have a turn on the loop
_FIRED_AT_ONCE: Final = 500
_WAITING_MAX: Final = 2_000  # in all lines
_ROUNDS_MAX: Final = 2
_ROUND_MS: Final = 100  # a round that takes longer keeps nothing back any more
_STUCK_MS: Final = 500  # a firing that takes longer
_STUCK_LINE_MAX: Final = 100
_PUT_OFF_MAX_MS: Final = 5_000
_UNWRITTEN_MS: Final = 250  # until something is tried again that could not be written
_UNREADABLE_MS: Final = 30_000
_MISSING_TRIES: Final = 4  # looks at a topic that is not there, some three seconds in all

Due = tuple[DueSchedule, StoredSchedule]


class ScheduleFirer:
    """The firings of one shard, as long as it is led here."""

    def __init__(self, ports: Ports, shard: ScheduleShard, appender: ScheduleAppender) -> None:
        self._ports = ports
        self._shard = shard
        self._appender = appender
        self._missing: set[str] = set()  # topics that schedules failed for, told once
        self._loop = asyncio.get_running_loop()
        self._targets = FiringTargets(ports, shard.number)
        self._lines: dict[FiringTarget, deque[Due]] = {}
        self._waiting = 0  # in all lines
        self._busy: dict[FiringTarget, int] = {}  # since when
        self._is_waiting = False  # a timer is set to look again
        self._has_begun = False  # what was left over is under way again
        self._is_woken = False
        self._is_assigning = False
        self._done: list[tuple[FiringTarget, ConfirmFiring | RefuseFiring]] = []
        self._is_told = False  # `_done` is about to be looked at

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def _is_led(self) -> bool:
        return self._shard.is_ready

    def begin(self) -> None:
        """Repeat what may or may not be written, once it is certain that it was to be; then go on with what is due."""
        self._shard.when_settled(self._on_settled)

    def _on_settled(self, error: PenstockError | None) -> None:
        if error is not None or not self._is_led:
            return
        for event in self._shard.machine.unfinished():
            target = FiringTarget(event.topic, event.topic_id, event.partition)
            self._busy[target] = self._shard.now_ms()
            granted = GrantedFiring(
                event.number, event.producer_id, event.epoch, event.sequence, tuple(at for _, at, _ in event.entries)
            )
            self._repeat(target, granted)
        self._has_begun = True
        self.wake()

    def _repeat(self, target: FiringTarget, granted: GrantedFiring) -> None:
        if not self._is_led:
            return
        found = self._shard.library.read(granted.offsets)
        if len(found) < len(granted.offsets):
            log.error("Schedules that were to be fired to %s-%d cannot be read.", target.topic, target.partition)
            self._loop.call_later(_UNREADABLE_MS / 1000, self._repeat, target, granted)
            return
        self._deliver(target, granted, found, is_repeated=True)

    def wake(self) -> None:
        """Look at what is due, soon."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_woken = False
        if not self._is_led or not self._has_begun:
            return
        machine = self._shard.machine
        machine.tick(self._shard.now_ms())
        if not machine.is_due and not self._lines:
            return
        if machine.producer_id is None:
            self._assign()
            return
        if self._has_room():
            self._sort(machine.take(_TAKEN_AT_ONCE))
            if machine.is_due:
                self.wake()
        if not self._is_crowded():
            self._fire()
            self._targets.next_turn()

    def _has_room(self) -> bool:
        """Whether more can stand in line, if need be without those that wait for a partition that is stuck."""
        if self._waiting >= _WAITING_MAX:
            for target, line in self._lines.items():
                if stuck_ms := self._stuck_ms(target):
                    self._shorten(line, stuck_ms)
        if self._waiting < _WAITING_MAX:
            return True
        self._look_in(_STUCK_MS)  # what comes of a firing stirs, and otherwise it is stuck by then
        return False

    def _is_crowded(self) -> bool:
        """Whether enough is under way for now. What comes of it stirs, and otherwise it takes too long to wait for."""
        now_ms = self._shard.now_ms()
        rounds = {since_ms for since_ms in self._busy.values() if now_ms - since_ms < _ROUND_MS}
        if len(rounds) < _ROUNDS_MAX:
            return False
        self._look_in(_ROUND_MS)
        return True

    def _look_in(self, delay_ms: int) -> None:
        """Look again in a while, unless a timer is set already."""
        if not self._is_waiting:
            self._is_waiting = True
            self._loop.call_later(delay_ms / 1000, self._look_again)

    def _look_again(self) -> None:
        self._is_waiting = False
        self.wake()

    def _stuck_ms(self, target: FiringTarget) -> int:
        """For how long a partition has been busy, 0 if that is not long."""
        since_ms = self._busy.get(target)
        busy_ms = 0 if since_ms is None else self._shard.now_ms() - since_ms
        return busy_ms if busy_ms > _STUCK_MS else 0

    def _shorten(self, line: deque[Due], stuck_ms: int) -> None:
        kept = min(_STUCK_LINE_MAX, _WAITING_MAX // (2 * len(self._lines)))
        excess = [line.pop()[0] for _ in range(len(line) - kept)]
        self._waiting -= len(excess)
        self._put_off(excess, min(stuck_ms, _PUT_OFF_MAX_MS))

    def _assign(self) -> None:
        if not self._is_assigning:
            self._is_assigning = True
            self._appender.spawn(self._take_producer())

    async def _take_producer(self) -> None:
        try:
            await self._shard.ask_schedules(AssignScheduleProducer(await self._ports.topics.allocate_producer_id()))
        except PenstockError as error:
            log.info("Schedules of shard %d have to wait for a producer id: %s", self._shard.number, error.message)
            await asyncio.sleep(_UNWRITTEN_MS / 1000)
        finally:
            self._is_assigning = False
        self.wake()

    # -- sorting ------------------------------------------------------------------------------------------------------

    def _sort(self, candidates: Sequence[DueSchedule]) -> None:
        """Have what is due stand in line for its partition."""
        if not candidates:
            return
        found = self._shard.library.read([candidate.offset for candidate in candidates])
        for candidate in candidates:
            schedule = found.get(candidate.offset)
            if schedule is None:
                self._put_off([candidate], _UNREADABLE_MS)
                log.error("A schedule at offset %d of shard %d is unreadable.", candidate.offset, self._shard.number)
                continue
            target = self._targets.of(schedule.message)
            if target is None:
                self._miss(candidate, schedule)
                continue
            line = self._lines.setdefault(target, deque())
            line.append((candidate, schedule))
            self._waiting += 1
            if len(line) == _FIRED_AT_ONCE:
                self._targets.next_turn()
            if len(line) > 2 * _STUCK_LINE_MAX and (stuck_ms := self._stuck_ms(target)):
                # The longer it takes already the longer it may take, and looking again costs reading again.
                self._shorten(line, stuck_ms)

    def _put_off(self, candidates: Sequence[DueSchedule], by_ms: int) -> None:
        self._shard.machine.put_off(candidates, self._shard.now_ms(), is_refusal=False, busy_ms=by_ms)

    def _miss(self, candidate: DueSchedule, schedule: StoredSchedule) -> None:
        """There is nowhere for a message to go. It may be that this node does not know of a new topic yet."""
        machine = self._shard.machine
        exhausted = machine.put_off([candidate], self._shard.now_ms(), is_refusal=True)
        if exhausted or machine.tries_of(candidate) >= _MISSING_TRIES:
            reason = self._targets.why_not(schedule.message)
            if schedule.message.topic not in self._missing:
                self._missing.add(schedule.message.topic)
                log.warning("Schedules fail: %s `penstock schedule list --state failed` shows them.", reason)
            self._shard.ask(NAME, FailSchedules([(candidate, schedule)], reason), lambda _: None)

    # -- firing -------------------------------------------------------------------------------------------------------

    def _fire(self) -> None:
        """Have the first of every line whose partition is free fired."""
        groups: list[tuple[FiringTarget, list[Due]]] = []
        for target, line in list(self._lines.items()):
            if target in self._busy:
                continue
            group = self._next_group(target, line)
            if not line:
                del self._lines[target]
            if group:
                groups.append((target, group))
        if not groups:
            return
        now_ms = self._shard.now_ms()
        for target, _ in groups:
            self._busy[target] = now_ms
        fires = [Fire(target.topic, target.topic_id, target.partition, group) for target, group in groups]
        self._shard.ask(NAME, FireAll(fires), partial(self._on_granted, groups))

    def _next_group(self, target: FiringTarget, line: deque[Due]) -> list[Due]:
        """As many as fit one batch. One that was refused before comes alone: it may be what others fail with."""
        machine = self._shard.machine
        group: list[Due] = []
        size, limit = HEADER_BYTES, self._targets.batch_bytes(target)
        while line and len(group) < _FIRED_AT_ONCE:
            candidate, schedule = line[0]
            is_suspect = machine.tries_of(candidate) > 0
            size += size_of(schedule.message)
            if group and (is_suspect or size > limit):
                break
            group.append(line.popleft())
            self._waiting -= 1
            if is_suspect:
                break
        return group

    def _on_granted(
        self, groups: list[tuple[FiringTarget, list[Due]]], answer: tuple[GrantedFiring | None, ...] | Rejected
    ) -> None:
        if not self._is_led:
            return
        if isinstance(answer, Rejected):  # nothing was written
            for target, group in groups:
                self._busy.pop(target, None)
                self._put_off([candidate for candidate, _ in group], _UNWRITTEN_MS)
            return
        for (target, group), granted in zip(groups, answer, strict=True):
            fired = set(() if granted is None else granted.offsets)
            self._shard.machine.let_go([candidate for candidate, _ in group if candidate.offset not in fired])
            if granted is None:
                self._busy.pop(target, None)
                self.wake()
            else:
                found = {candidate.offset: schedule for candidate, schedule in group}
                self._deliver(target, granted, found, is_repeated=False)

    def _deliver(
        self, target: FiringTarget, granted: GrantedFiring, found: dict[int, StoredSchedule], *, is_repeated: bool
    ) -> None:
        schedules = [found[offset] for offset in granted.offsets]
        delivery = FiringDelivery(self._shard, target, granted, schedules, self._on_delivered, is_doubtful=is_repeated)
        self._appender.send(delivery)

    # -- afterwards ---------------------------------------------------------------------------------------------------

    def _on_delivered(self, delivery: FiringDelivery, refusal: str | None) -> None:
        """A firing is in its partition, or certainly is not."""
        if not self._is_led:
            return
        found = dict(zip(delivery.granted.offsets, delivery.schedules, strict=True))
        number = delivery.granted.number
        if refusal is None:
            now_ms, machine = self._shard.now_ms(), self._shard.machine
            for schedule in delivery.schedules:
                machine.note_late(now_ms - schedule.due_ms)
            again = {offset: schedule for offset, schedule in found.items() if schedule.rule is not None}
            self._done.append((delivery.target, ConfirmFiring(number, again)))
            self._shard.library.forget(found)
        else:
            self._done.append((delivery.target, RefuseFiring(number, 0, refusal, found)))
        if not self._is_told:
            self._is_told = True
            self._loop.call_soon(self._note_done)

    def _note_done(self) -> None:
        """Write down what came of firings, all that is known at this moment at once."""
        self._is_told = False
        if not self._is_led:
            return
        done, self._done = self._done, []
        machine, now_ms = self._shard.machine, self._shard.now_ms()
        self._shard.flush()
        decisions = [(machine, machine.handle(request, now_ms, lambda _: None)) for _, request in done]
        self._shard.perform(decisions)
        self._after_done(done)

    def _after_done(self, done: list[tuple[FiringTarget, ConfirmFiring | RefuseFiring]]) -> None:
        """Partitions are free again; what could not be written down is tried again."""
        if not self._is_led:
            return
        machine = self._shard.machine
        under_way = {event.number for event in machine.unfinished()}
        for target, request in done:
            if request.number in under_way:
                self._done.append((target, request))
            else:
                self._busy.pop(target, None)
        if self._done:
            self._is_told = True
            self._loop.call_later(_UNWRITTEN_MS / 1000, self._note_done)
        if self._lines or machine.is_due:
            self.wake()
