"""The machines of one partition: what they decide is written, applied, and only then answered.

Changes are applied as they are written, so memory is always what reading the log would give. Replies wait until all
that was written of their machine is committed, so no caller hears of what could still be lost. If a write is refused
nothing was applied, and the caller may try again. If a write that was applied fails later, memory is ahead of the log
for good: the shard closes, and the next leader of the partition, here or elsewhere, reads the log anew.

Time costs nothing where nothing is due: each machine says when it wants to be woken, and the earliest of these sets the
shard's alarm.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from penstock.errors import (
    CoordinationError,
    CoordinatorLoading,
    MessageTooLarge,
    NotCoordinator,
    PenstockError,
    ProducerFenced,
)
from penstock.machines.clocks import Alarm
from penstock.machines.journal import Decided, Journal, Written
from penstock.machines.messages import AnswerT, ChangeT, Outcome, ProducerIdentity, Rejected, Reply, Request

log = logging.getLogger(__name__)

# What the caller can do something about. Whatever else keeps a shard from writing, all that a caller can do is to look
# for a coordinator that can.
_TOLD_AS_IT_IS: Final = (CoordinationError, MessageTooLarge, ProducerFenced)


class Machine(Protocol[ChangeT]):
    """One thing that is coordinated, as a state machine without clock, socket or log."""

    @property
    def id(self) -> str: ...

    @property
    def wake_ms(self) -> float:
        """Nothing happens by itself before this time."""

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be lost with it."""

    def handle(self, request: Request[Any], now_ms: int, reply: Reply) -> Outcome[ChangeT]:
        """Decide on a request. The reply is in this outcome or a later one; an error instead changes nothing."""

    def tick(self, now_ms: int) -> Outcome[ChangeT]:
        """Let time pass."""

    def apply(self, change: ChangeT, at_ms: int, now_ms: int = 0) -> None:
        """Take over what was written to the log at ``at_ms``."""

    def resume(self, now_ms: int) -> None:
        """Begin to work, just read from the log."""

    def dismiss_all(self, error: PenstockError) -> Outcome[ChangeT]:
        """End every wait, as when another node takes over."""


class PromptMachine(ABC, Generic[ChangeT]):
    """A machine in which no caller ever waits and nothing happens by itself: each request is decided by its rule."""

    id: str
    wake_ms: float = inf
    rules: ClassVar[Mapping[type[Request[Any]], Callable[[Any, Any, int], tuple[list[Any], object]]]]

    def handle(self, request: Request[Any], now_ms: int, reply: Reply) -> Outcome[ChangeT]:
        changes, answer = self.rules[type(request)](self, request, now_ms)
        return Outcome(changes, [(reply, answer)])

    def tick(self, now_ms: int) -> Outcome[ChangeT]:  # noqa: ARG002
        return Outcome()

    def resume(self, now_ms: int) -> None:
        """Nothing of it is only in memory."""

    def dismiss_all(self, error: PenstockError) -> Outcome[ChangeT]:  # noqa: ARG002
        return Outcome()


MachineT = TypeVar("MachineT", bound=Machine[Any])
Replies = list[tuple[Reply, object]]
Defer = Callable[[Callable[[], None]], object]
Done = Callable[[PenstockError | None], None]

_RETRY_MS: Final = 50  # until a machine is woken again whose decision could not be written


def resolve(future: asyncio.Future[Any], value: object) -> None:
    """Answer once; the caller may be gone by then."""
    if not future.done():
        future.set_result(value)


class Deadlines:
    """When each machine wants to be woken, the earliest first. A machine that puts it off costs nothing until then."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._wake_ms: dict[str, float] = {}

    @property
    def next_ms(self) -> float:
        """No machine wants to be woken before this."""
        return self._heap[0][0] if self._heap else inf

    def note(self, name: str, wake_ms: float) -> bool:
        """A machine wants to be woken then; whether that is earlier than was known of it."""
        if wake_ms >= self._wake_ms.get(name, inf):
            return False
        self._wake_ms[name] = wake_ms
        heappush(self._heap, (wake_ms, name))
        return True

    def pop(self, now_ms: int) -> list[str]:
        """The machines whose time may have come; each is to be noted again."""
        found: dict[str, None] = {}
        while self._heap and self._heap[0][0] <= now_ms:
            wake_ms, name = heappop(self._heap)
            if self._wake_ms.get(name) == wake_ms:
                del self._wake_ms[name]
                found[name] = None
        return list(found)


class Shard(ABC, Generic[MachineT, ChangeT]):
    """Machines by id. ``now_ms`` measures, ``wall_ms`` stamps records, ``defer`` runs work soon."""

    def __init__(
        self,
        journal: Journal[ChangeT],
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        defer: Defer,
    ) -> None:
        self._journal = journal
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._defer = defer
        self._end = self._read_to = journal.end_offset  # not all of what is read need be committed
        self._written: dict[str, int] = {}  # up to where, for each machine that is not all committed
        self._is_refused = False  # the last write was
        self._is_appending = False
        self._held_back: list[tuple[Done, PenstockError | None]] = []
        self._refusal: PenstockError | None = CoordinatorLoading()
        self._deadlines = Deadlines()
        self._waking: MachineT | None = None
        self.on_bug: Callable[[Exception], None] = _log_bug  # in a machine that time passes for
        self.alarm: Alarm | None = None  # rings for `tick`; without one, time passes when the owner says so
        self.machines: dict[str, MachineT] = {}

    # -- what they are ------------------------------------------------------------------------------------------------

    @abstractmethod
    def make(self, name: str) -> MachineT:
        """A machine of that id of which nothing is known yet."""

    @abstractmethod
    def name_of(self, change: ChangeT) -> str:
        """The id of the machine that a change is about."""

    def on_applied(self, machine: MachineT, change: ChangeT) -> None:
        """A change was written and applied just now."""

    def on_woken(self, machine: MachineT) -> None:
        """Time has passed for a machine."""

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return self._refusal is None

    @property
    def is_loading(self) -> bool:
        return isinstance(self._refusal, CoordinatorLoading)

    def now_ms(self) -> int:
        """The time that deadlines are measured by here."""
        return self._now_ms()

    def check(self) -> None:
        """Refuse unless the log has been read and can be written."""
        if self._refusal is not None:
            raise self._refusal

    def read_log(self) -> dict[str, MachineT]:
        """Every machine, rebuilt from the log. Runs in any thread; it changes nothing here."""
        machines: dict[str, MachineT] = {}
        for entry in self._journal.replay():
            assert isinstance(entry, Written), "nothing here is written in transactions"
            self.machine_of(entry.change, machines).apply(entry.change, entry.at_ms)
        return {name: machine for name, machine in machines.items() if not machine.is_forgettable}

    def machine_of(self, change: ChangeT, machines: dict[str, MachineT]) -> MachineT:
        """The machine that a change is about, new if need be."""
        name = self.name_of(change)
        machine = machines.get(name)
        if machine is None:
            machine = machines[name] = self.make(name)
        return machine

    def open(self, machines: dict[str, MachineT]) -> None:
        """Begin to coordinate what `read_log` found, unless it is too late for that."""
        if not self.is_loading:
            return
        for machine in machines.values():
            machine.resume(self._now_ms())
        self.machines = machines
        self._refusal = None
        for machine in machines.values():
            self._deadlines.note(machine.id, machine.wake_ms)
        self._set_alarm()

    def close(self, error: PenstockError) -> None:
        """Stop for good; callers that wait are sent to look for another coordinator."""
        self.flush()
        if self.alarm is not None:
            self.alarm.cancel()
        self._refusal = _tellable(error)
        machines, self.machines = self.machines, {}
        for machine in machines.values():
            _send(machine.dismiss_all(self._refusal).replies)

    # -- requests -----------------------------------------------------------------------------------------------------

    def ask(self, name: str, request: Request[Any], reply: Reply) -> None:
        """Have a machine decide on a request; it is replied to unless this raises an error."""
        self.check()
        self.flush()
        machine, outcome = self.decide(name, request, reply)
        self.perform([(machine, outcome)])

    def decide(self, name: str, request: Request[Any], reply: Reply) -> tuple[MachineT, Outcome[ChangeT]]:
        """What a machine decides; a new one is kept if there is something to keep."""
        machine = self.machines.get(name) or self.make(name)
        outcome = machine.handle(request, self._now_ms(), reply)
        if outcome.changes or not machine.is_forgettable:
            self.machines[name] = machine
        return machine, outcome

    def flush(self) -> None:
        """Write what was put off, if anything is."""

    async def request(
        self, name: str, request: Request[AnswerT], on_abandoned: Callable[[AnswerT], None] | None = None
    ) -> AnswerT:
        """The answer to a request, as soon as it holds; an error if it is refused.

        If the caller is cancelled meanwhile, ``on_abandoned`` gets the answer in its place.
        """
        future: asyncio.Future[AnswerT | Rejected] = asyncio.get_running_loop().create_future()

        def reply(answer: AnswerT | Rejected) -> None:
            if not future.done():
                future.set_result(answer)
            elif on_abandoned is not None and not isinstance(answer, Rejected):
                on_abandoned(answer)

        self.ask(name, request, reply)
        try:
            answer = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                answer = future.result()
                if on_abandoned is not None and not isinstance(answer, Rejected):
                    on_abandoned(answer)
            raise
        if isinstance(answer, Rejected):
            raise answer.error
        return answer

    def when_settled(self, done: Done) -> None:
        """Call ``done`` once all that can be seen here now is committed."""
        self.flush()
        self.when_committed(self._end, done)

    async def settled(self) -> None:
        """Return once all that can be seen here now is committed."""
        self.check()
        future: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
        self.when_settled(partial(resolve, future))
        error = await future
        if error is not None:
            raise error

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def wake_ms(self) -> float:
        """When time matters next to a machine here."""
        return self._deadlines.next_ms

    def tick(self) -> None:
        """Let time pass for the machines that it matters to."""
        if not self.is_ready:
            return
        self.flush()
        now_ms = self._now_ms()
        for name in self._deadlines.pop(now_ms):
            machine = self.machines.get(name)
            if machine is not None:
                self._wake(machine, now_ms)
        self._set_alarm()

    def _wake(self, machine: MachineT, now_ms: int) -> None:
        has_moved = False
        self._waking = machine
        try:
            if machine.wake_ms <= now_ms:
                outcome = machine.tick(now_ms)
                self.perform([(machine, outcome)])
                has_moved = bool(outcome.changes) and not self._is_refused
        except Exception as error:  # a bug in one machine must not stop time for all others
            self.on_bug(error)
        finally:
            self._waking = None
        self.on_woken(machine)
        if self.machines.get(machine.id) is machine:
            wake_ms = machine.wake_ms
            self._deadlines.note(machine.id, wake_ms if wake_ms > now_ms or has_moved else now_ms + _RETRY_MS)

    def _retry_later(self, decisions: Sequence[tuple[MachineT, Outcome[ChangeT]]]) -> None:
        """Wake machines whose decision could not be written, but not at once."""
        earliest_ms = self._now_ms() + _RETRY_MS
        for machine, _ in decisions:
            if machine.id in self.machines and machine is not self._waking:
                self._deadlines.note(machine.id, max(machine.wake_ms, earliest_ms))
        self._set_alarm()

    def note_deadline(self, machine: MachineT) -> None:
        """A machine may want to be woken earlier than before."""
        if self._deadlines.note(machine.id, machine.wake_ms):
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self.alarm is not None:
            self.alarm.set(self._deadlines.next_ms)

    def expire(self) -> None:
        """Forget machines and facts that are of no use any more. Called rarely."""

    # -- decisions ----------------------------------------------------------------------------------------------------

    def perform(self, decisions: Sequence[tuple[MachineT, Outcome[ChangeT]]]) -> None:
        """Write, apply and reply, in this order. Decisions of a transaction come alone."""
        changes = [change for _, outcome in decisions for change in outcome.changes]
        replies = [reply for _, outcome in decisions for reply in outcome.replies]
        if changes:
            at_ms = self._wall_ms()
            try:
                self._end = self._append(changes, at_ms, decisions[0][1].producer)
            except PenstockError as error:
                self._on_refused(decisions, replies, error)
                self._drop_forgettable(decisions)  # what was to begin with this
                self._retry_later(decisions)
                self._go_on()
                return
            if self._is_refused:
                log.warning("What is coordinated can be stored again.")
                self._is_refused = False
            self._apply(decisions, at_ms)
            self._written.update((machine.id, self._end) for machine, outcome in decisions if outcome.changes)
        self._drop_forgettable(decisions)
        for machine, _ in decisions:
            if machine.id in self.machines and machine is not self._waking:
                self.note_deadline(machine)
        self._go_on()
        if changes or replies:
            until = max(self.written_to(machine) for machine, _ in decisions)
            self.when_committed(until, partial(self._on_committed, replies, decisions, until))

    def _append(self, changes: list[ChangeT], at_ms: int, producer: ProducerIdentity | None) -> int:
        self._is_appending = True
        try:
            return self._journal.append(changes, at_ms, producer)
        finally:
            self._is_appending = False

    def when_committed(self, offset: int, done: Done) -> None:
        """Call ``done`` once the log is committed up to there, or with what went wrong.

        A write can commit what was written before it, at once. A caller that hears of that may ask something, and that
        must not be decided before the write itself is applied; so it hears of it then.
        """
        self._journal.when_committed(offset, partial(self._hear, done))

    def _hear(self, done: Done, error: PenstockError | None) -> None:
        if self._is_appending:
            self._held_back.append((done, error))
        else:
            done(error)

    def _go_on(self) -> None:
        held_back, self._held_back = self._held_back, []
        for done, error in held_back:
            done(error)

    def written_to(self, machine: MachineT) -> int:
        """Once the log is committed up to here, all that is known of a machine is."""
        return self._written.get(machine.id, self._read_to)

    def _drop_forgettable(self, decisions: Sequence[tuple[MachineT, Outcome[ChangeT]]]) -> None:
        for machine, _ in decisions:
            if machine.is_forgettable:
                self.machines.pop(machine.id, None)

    def _apply(self, decisions: Sequence[tuple[MachineT, Outcome[ChangeT]]], at_ms: int) -> None:
        now_ms = self._now_ms()
        for machine, outcome in decisions:
            for change in outcome.changes:
                machine.apply(change, at_ms, now_ms)
                self.on_applied(machine, change)

    def _on_refused(
        self, decisions: Sequence[tuple[MachineT, Outcome[ChangeT]]], replies: Replies, error: PenstockError
    ) -> None:
        if isinstance(error, MessageTooLarge) and len(decisions) > 1:
            for decision in decisions:  # too much for one batch, so each for itself
                self.perform([decision])
            return
        if not self._is_refused and not isinstance(error, _TOLD_AS_IT_IS):
            log.warning("What is coordinated cannot be stored at the moment: %s", error.message)
            self._is_refused = True
        _reject(replies, error)

    def _on_committed(
        self,
        replies: Replies,
        decisions: Sequence[tuple[MachineT, Outcome[ChangeT]]],
        until: int,
        error: PenstockError | None,
    ) -> None:
        if error is not None:
            _reject(replies, error)
            self.close(error)
            return
        for machine, outcome in decisions:
            if outcome.changes and self._written.get(machine.id) == until:
                del self._written[machine.id]
        _send(replies)
        if replies:  # which may have told a machine something
            for machine, _ in decisions:
                if self.machines.get(machine.id) is machine:
                    self.note_deadline(machine)


def _log_bug(error: Exception) -> None:
    log.error("Time did not pass for a machine.", exc_info=error)


def _send(replies: Replies) -> None:
    for reply, what in replies:
        reply(what)


def _reject(replies: Replies, error: PenstockError) -> None:
    rejected = Rejected(_tellable(error))
    for reply, _ in replies:
        reply(rejected)


def _tellable(error: PenstockError) -> PenstockError:
    return error if isinstance(error, _TOLD_AS_IT_IS) else NotCoordinator(error.message)


class HoldingMachine(Machine[ChangeT], Protocol[ChangeT]):
    """A machine some of whose changes are written in transactions, and held until these end."""

    def hold(self, change: ChangeT, at_ms: int, producer_id: int) -> None:
        """Take over what was written to the log as a part of a transaction, which decides whether it counts."""

    def producers_held(self) -> Iterable[int]:
        """The producers for whose open transactions something is held."""

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> object:
        """Take over the end of a transaction."""


HoldingT = TypeVar("HoldingT", bound=HoldingMachine[Any])


class TransactionalShard(Shard[HoldingT, ChangeT]):
    """Machines whose changes may be part of a producer's transaction.

    Memory follows the log: what is written in a transaction is held, and the marker that ends it takes effect in the
    turn in which it is written. So the next leader, which reads the log, knows the same.
    """

    def __init__(
        self, journal: Journal[ChangeT], now_ms: Callable[[], int], wall_ms: Callable[[], int], defer: Defer
    ) -> None:
        super().__init__(journal, now_ms, wall_ms, defer)
        self._holders: dict[int, dict[str, None]] = {}  # machines by the producer for whose transaction they hold
        self._ended_while_loading: list[Decided] = []

    def on_ended(self, machine: HoldingT, result: object) -> None:
        """A transaction that a machine held changes for has ended; ``result`` is what the machine made of it."""

    def read_log(self) -> dict[str, HoldingT]:
        machines: dict[str, HoldingT] = {}
        holders: dict[int, dict[str, None]] = {}
        for entry in self._journal.replay():
            if isinstance(entry, Decided):
                for name in holders.pop(entry.producer_id, ()):
                    machines[name].end_transaction(entry.producer_id, is_commit=entry.is_commit)
                continue
            machine = self.machine_of(entry.change, machines)
            if entry.producer_id < 0:
                machine.apply(entry.change, entry.at_ms)
            else:
                machine.hold(entry.change, entry.at_ms, entry.producer_id)
            for producer_id in machine.producers_held():  # a snapshot tells of several at once
                holders.setdefault(producer_id, {})[machine.id] = None
        return {name: machine for name, machine in machines.items() if not machine.is_forgettable}

    def open(self, machines: dict[str, HoldingT]) -> None:
        # The read may have been past these; and what it saw already changes nothing now.
        for end in self._ended_while_loading if self.is_loading else ():
            for machine in machines.values():
                machine.end_transaction(end.producer_id, is_commit=end.is_commit)
        for machine in machines.values():
            for producer_id in machine.producers_held():
                self._holders.setdefault(producer_id, {})[machine.id] = None
        super().open({name: machine for name, machine in machines.items() if not machine.is_forgettable})

    def _apply(self, decisions: Sequence[tuple[HoldingT, Outcome[ChangeT]]], at_ms: int) -> None:
        machine, outcome = decisions[0]
        if outcome.producer is None:
            super()._apply(decisions, at_ms)
            return
        for change in outcome.changes:
            machine.hold(change, at_ms, outcome.producer.producer_id)
        self._holders.setdefault(outcome.producer.producer_id, {})[machine.id] = None

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """The end of a transaction has just been written to the log."""
        if self.is_loading:
            self._ended_while_loading.append(Decided(producer_id, is_commit))
            return
        self._end = self._journal.end_offset
        for name in self._holders.pop(producer_id, ()):
            machine = self.machines.get(name)
            if machine is None:
                continue  # it was deleted meanwhile
            result = machine.end_transaction(producer_id, is_commit=is_commit)
            if machine.is_forgettable:
                del self.machines[name]
            self.on_ended(machine, result)
