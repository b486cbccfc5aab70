"""The machines of one partition: what they decide is written, applied, and only then told.

Changes are applied as they are written, so memory is always what reading the log would give. Replies wait until all
that was written of their machine is committed, so nobody hears of what could still be lost. If a write is refused
nothing was applied, and whoever asked may try again. If a write that was applied fails later, memory is ahead of the
log for good: the shard closes, and whoever leads the partition next, here or elsewhere, reads the log anew.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, Final, Generic, Protocol, TypeVar

from penstock.broker.coordination.journal import Journal, Written
from penstock.broker.coordination.messages import ChangeT, Outcome, ProducerIdentity, Rejected, Reply, Request
from penstock.errors import (
    CoordinationError,
    CoordinatorLoading,
    MessageTooLarge,
    NotCoordinator,
    PenstockError,
    ProducerFenced,
)

log = logging.getLogger(__name__)

# What whoever asked can do something about. Whatever else keeps us from writing, all they can do is to look for a
# coordinator that can.
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


MachineT = TypeVar("MachineT", bound=Machine[Any])
Replies = list[tuple[Reply, object]]
Defer = Callable[[Callable[[], None]], object]
Done = Callable[[PenstockError | None], None]


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

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return self._refusal is None

    @property
    def is_loading(self) -> bool:
        return isinstance(self._refusal, CoordinatorLoading)

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

    def close(self, error: PenstockError) -> None:
        """Stop for good; everybody who waits is sent to look for another coordinator."""
        self.flush()
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

    def when_settled(self, done: Callable[[PenstockError | None], None]) -> None:
        """Call ``done`` once all that can be seen here now is committed."""
        self.flush()
        self.when_committed(self._end, done)

    @property
    def wake_ms(self) -> float:
        """When time matters next to a machine here."""
        return min((machine.wake_ms for machine in self.machines.values()), default=inf)

    def tick(self) -> None:
        """Let time pass for every machine that it matters to."""
        self.flush()
        now_ms = self._now_ms()
        for machine in [machine for machine in self.machines.values() if machine.wake_ms <= now_ms]:
            if machine.id in self.machines:  # the shard may have been closed meanwhile
                self.perform([(machine, machine.tick(now_ms))])

    def expire(self) -> None:
        """Forget what nobody needs any more. Called rarely."""

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
                self._go_on()
                return
            if self._is_refused:
                log.warning("What is coordinated can be stored again.")
                self._is_refused = False
            self._apply(decisions, at_ms)
            self._written.update((machine.id, self._end) for machine, outcome in decisions if outcome.changes)
        self._drop_forgettable(decisions)
        self._go_on()
        if changes or replies:
            until = max(self.written_to(machine) for machine, _ in decisions)
            names = [machine.id for machine, outcome in decisions if outcome.changes]
            self.when_committed(until, partial(self._on_committed, replies, names, until))

    def _append(self, changes: list[ChangeT], at_ms: int, producer: ProducerIdentity | None) -> int:
        self._is_appending = True
        try:
            return self._journal.append(changes, at_ms, producer)
        finally:
            self._is_appending = False

    def when_committed(self, offset: int, done: Done) -> None:
        """Call ``done`` once the log is committed up to there, or with what went wrong.

        A write can commit what was written before it, at once. Whoever hears of that may ask something, which must not
        be decided before the write itself is applied; so they hear of it then.
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

    def _on_committed(self, replies: Replies, names: list[str], until: int, error: PenstockError | None) -> None:
        if error is not None:
            _reject(replies, error)
            self.close(error)
            return
        for name in names:
            if self._written.get(name) == until:
                del self._written[name]
        _send(replies)


def _send(replies: Replies) -> None:
    for reply, what in replies:
        reply(what)


def _reject(replies: Replies, error: PenstockError) -> None:
    rejected = Rejected(_tellable(error))
    for reply, _ in replies:
        reply(rejected)


def _tellable(error: PenstockError) -> PenstockError:
    return error if isinstance(error, _TOLD_AS_IT_IS) else NotCoordinator(error.message)
