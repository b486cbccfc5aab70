"""What is due, on its way into its topics: read, sorted by partition, written down, appended, confirmed.

There is one firing at a time for each partition, and many partitions at a time. What is due for a partition that is
busy waits in line here; when lines are long nothing else is taken. For a partition that is *stuck*, because it has been
busy for long, only a short line is kept and the rest is put off, so that one without a leader holds up no other.

Firings begin in *rounds*, one for all lines whose partitions are free. Only a few rounds are under way at once: what
becomes due meanwhile makes a larger one. So the more there is to do the less it costs each, by itself.

Nothing is fired twice: a `Firing` with sequence numbers is committed before the batch is appended with them, and
whoever is not sure appends the same batch again. A firing is one batch, so it is in its partition whole or not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.coordination.messages import Rejected
from penstock.broker.schedules.leading.delivery import Delivery, Postman
from penstock.broker.schedules.leading.shard import NAME, ScheduleShard
from penstock.broker.schedules.leading.targets import Target, Targets, size_of
from penstock.broker.schedules.messages import AssignProducer, Candidate, Confirm, Fail, Fire, FireAll, Granted, Refuse
from penstock.broker.schedules.records import Schedule
from penstock.errors import PenstockError
from penstock.records import HEADER_BYTES

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger(__name__)

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

Due = tuple[Candidate, Schedule]


class Firing:
    """The firings of one shard, as long as it is led here."""

    def __init__(self, broker: Broker, shard: ScheduleShard, postman: Postman) -> None:
        self._broker = broker
        self._shard = shard
        self._postman = postman
        self._missing: set[str] = set()  # topics that schedules failed for, told once
        self._loop = asyncio.get_running_loop()
        self._targets = Targets(broker, shard.number)
        self._lines: dict[Target, deque[Due]] = {}
        self._waiting = 0  # in all lines
        self._busy: dict[Target, int] = {}  # since when
        self._is_waiting = False  # somebody looks again in a while
        self._has_begun = False  # what was left over is under way again
        self._is_stirred = False
        self._is_assigning = False
        self._done: list[tuple[Target, Confirm | Refuse]] = []
        self._is_told = False  # somebody will look at what is done

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
            target = Target(event.topic, event.topic_id, event.partition)
            self._busy[target] = self._shard.now_ms()
            granted = Granted(
                event.number, event.producer_id, event.epoch, event.sequence, tuple(at for _, at, _ in event.entries)
            )
            self._repeat(target, granted)
        self._has_begun = True
        self.stir()

    def _repeat(self, target: Target, granted: Granted) -> None:
        if not self._is_led:
            return
        found = self._shard.library.read(granted.offsets)
        if len(found) < len(granted.offsets):
            log.error("Schedules that were to be fired to %s-%d cannot be read.", target.topic, target.partition)
            self._loop.call_later(_UNREADABLE_MS / 1000, self._repeat, target, granted)
            return
        self._deliver(target, granted, found, is_repeated=True)

    def stir(self) -> None:
        """Look at what is due, soon."""
        if not self._is_stirred:
            self._is_stirred = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_stirred = False
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
                self.stir()
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
        """Look again in a while, unless somebody does so anyway."""
        if not self._is_waiting:
            self._is_waiting = True
            self._loop.call_later(delay_ms / 1000, self._look_again)

    def _look_again(self) -> None:
        self._is_waiting = False
        self.stir()

    def _stuck_ms(self, target: Target) -> int:
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
            self._postman.spawn(self._take_producer())

    async def _take_producer(self) -> None:
        try:
            await self._shard.request(AssignProducer(await self._broker.allocate_producer_id()))
        except PenstockError as error:
            log.info("Schedules of shard %d have to wait for a producer id: %s", self._shard.number, error.message)
            await asyncio.sleep(_UNWRITTEN_MS / 1000)
        finally:
            self._is_assigning = False
        self.stir()

    # -- sorting ------------------------------------------------------------------------------------------------------

    def _sort(self, candidates: Sequence[Candidate]) -> None:
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

    def _put_off(self, candidates: Sequence[Candidate], by_ms: int) -> None:
        self._shard.machine.put_off(candidates, self._shard.now_ms(), is_refusal=False, busy_ms=by_ms)

    def _miss(self, candidate: Candidate, schedule: Schedule) -> None:
        """There is nowhere for a message to go. It may be that this node does not know of a new topic yet."""
        machine = self._shard.machine
        exhausted = machine.put_off([candidate], self._shard.now_ms(), is_refusal=True)
        if exhausted or machine.tries_of(candidate) >= _MISSING_TRIES:
            reason = self._targets.why_not(schedule.message)
            if schedule.message.topic not in self._missing:
                self._missing.add(schedule.message.topic)
                log.warning("Schedules fail: %s `penstock schedule list --state failed` shows them.", reason)
            self._shard.ask(NAME, Fail([(candidate, schedule)], reason), lambda _: None)

    # -- firing -------------------------------------------------------------------------------------------------------

    def _fire(self) -> None:
        """Have the first of every line whose partition is free fired."""
        groups: list[tuple[Target, list[Due]]] = []
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

    def _next_group(self, target: Target, line: deque[Due]) -> list[Due]:
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
        self, groups: list[tuple[Target, list[Due]]], answer: tuple[Granted | None, ...] | Rejected
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
                self.stir()
            else:
                found = {candidate.offset: schedule for candidate, schedule in group}
                self._deliver(target, granted, found, is_repeated=False)

    def _deliver(self, target: Target, granted: Granted, found: dict[int, Schedule], *, is_repeated: bool) -> None:
        schedules = [found[offset] for offset in granted.offsets]
        delivery = Delivery(self._shard, target, granted, schedules, self._on_delivered, is_doubtful=is_repeated)
        self._postman.send(delivery)

    # -- afterwards ---------------------------------------------------------------------------------------------------

    def _on_delivered(self, delivery: Delivery, refusal: str | None) -> None:
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
            self._done.append((delivery.target, Confirm(number, again)))
            self._shard.library.forget(found)
        else:
            self._done.append((delivery.target, Refuse(number, 0, refusal, found)))
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

    def _after_done(self, done: list[tuple[Target, Confirm | Refuse]]) -> None:
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
            self.stir()
