"""The schedules of one shard, at the leader of its partition: requests, time, snapshots.

The machine decides; this has it written and lets time pass. One timer rings when something becomes due or a later
period comes near. It rings once a second at least: the clock may have been set meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, Final, Protocol

from penstock.broker.coordination.messages import AnswerT, Outcome, Rejected, Request
from penstock.broker.coordination.shard import Replies, Shard
from penstock.broker.schedules.config import ScheduleSettings
from penstock.broker.schedules.leading.day_clock import DayClock
from penstock.broker.schedules.leading.journal import ScheduleJournal
from penstock.broker.schedules.leading.library import Library
from penstock.broker.schedules.records import Change
from penstock.broker.schedules.schedules import Schedules
from penstock.errors import NotCoordinator, PenstockError, RequestTimedOut, StorageError

log = logging.getLogger(__name__)

NAME: Final = "schedules"  # of the one machine in each shard

_LOOK_MS: Final = 1_000
_LOADED_AT_ONCE: Final = 500
_SNAPSHOT_AGAIN_MS: Final = 10_000  # after one that could not be written

Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Firer(Protocol):
    """Who brings what is due into its topics."""

    def begin(self) -> None:
        """The shard is led here, and everything is known of it."""

    def stir(self) -> None:
        """Something is due. Called often; has to be quick."""


class ScheduleShard(Shard[Schedules, Change]):
    """One machine, with what it needs of the world."""

    def __init__(
        self, journal: ScheduleJournal, number: int, settings: ScheduleSettings, clock: DayClock, spawn: Spawn
    ) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(journal, clock.now_ms, clock.now_ms, self._loop.call_soon)
        self.journal = journal
        self.number = number
        self.library = Library(journal.partition.log)
        self.firer: Firer | None = None
        self._settings = settings
        self._clock = clock
        self._spawn = spawn
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: float = inf
        self._is_loading_period = False
        self._snapshot_from_ms = 0
        journal.on_noted = self._note

    def __repr__(self) -> str:
        return f"<ScheduleShard {self.number}, {'ready' if self.is_ready else 'not ready'}>"

    # -- what it is ---------------------------------------------------------------------------------------------------

    def make(self, name: str) -> Schedules:  # noqa: ARG002
        return Schedules(self.number, self._settings)

    def name_of(self, change: Change) -> str:  # noqa: ARG002
        return NAME

    @property
    def machine(self) -> Schedules:
        self.check()
        return self.machines[NAME]

    def now_ms(self) -> int:
        return self._clock.now_ms()

    @property
    def wait_ms(self) -> float:
        """How long nothing happens here by itself, 0 while something is being read."""
        if self.is_loading or self._is_loading_period:
            return 0
        return self.machines[NAME].wake_ms - self.now_ms() if self.is_ready else inf

    def _note(self, change: Change) -> None:
        self.library.note(change, self._clock.now_ms())

    # -- life ---------------------------------------------------------------------------------------------------------

    def read_log(self) -> dict[str, Schedules]:
        machine = self.make(NAME)
        machine.read(self.journal.read())
        return {NAME: machine}

    def open(self, machines: dict[str, Schedules]) -> None:
        super().open(machines)
        if self.is_ready:
            if self.firer is not None:
                self.firer.begin()
            self.pass_time()
            self._ring_at(self.machine.wake_ms)

    def close(self, error: PenstockError) -> None:
        super().close(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- requests -----------------------------------------------------------------------------------------------------

    async def request(self, request: Request[AnswerT]) -> AnswerT:
        """The answer to a request, once it is committed; an error if it is refused.

        `RequestTimedOut` if the shard got another leader before that: what was asked may have been done.
        """
        future: asyncio.Future[AnswerT | Rejected] = self._loop.create_future()

        def reply(answer: AnswerT | Rejected) -> None:
            if not future.done():
                future.set_result(answer)

        self.ask(NAME, request, reply)
        is_refused = future.done()  # at once, so nothing was written
        answer = await future
        if not isinstance(answer, Rejected):
            return answer
        if is_refused or not isinstance(answer.error, NotCoordinator):
            raise answer.error
        raise RequestTimedOut(f"Shard {self.number} of schedules got another leader; this may have been done or not.")

    async def settled(self) -> None:
        """Return once all that can be seen here now is committed."""
        future: asyncio.Future[PenstockError | None] = self._loop.create_future()

        def done(error: PenstockError | None) -> None:
            if not future.done():
                future.set_result(error)

        self.check()
        self.when_settled(done)
        error = await future
        if error is not None:
            raise error

    def perform(self, decisions: Sequence[tuple[Schedules, Outcome[Change]]]) -> None:
        super().perform(decisions)
        if self.is_ready and any(outcome.changes for _, outcome in decisions):
            self._follow_up()

    def _on_refused(
        self, decisions: Sequence[tuple[Schedules, Outcome[Change]]], replies: Replies, error: PenstockError
    ) -> None:
        if isinstance(error, StorageError):  # as it is: whoever asks may do something about a full disk
            for reply, _ in replies:
                reply(Rejected(error))
            replies = []
        super()._on_refused(decisions, replies, error)

    def snapshot(self) -> None:
        """Write all that is known, if that is due, so that whoever comes next reads little."""
        machine = self.machine
        if not machine.is_snapshot_due or self.now_ms() < self._snapshot_from_ms:
            return
        changes, at_ms = machine.snapshot(), self.now_ms()
        try:
            self._end = self.journal.append_snapshot(changes, at_ms)
        except PenstockError as error:
            log.warning("No snapshot of %r now: %s", machine, error.message)
            self._snapshot_from_ms = self.now_ms() + _SNAPSHOT_AGAIN_MS
            return
        self._written[NAME] = self._end
        for change in changes:
            machine.apply(change, at_ms, at_ms)
        self.when_committed(self._end, lambda error: self._on_committed([], [NAME], self._end, error))

    # -- time ---------------------------------------------------------------------------------------------------------

    def _follow_up(self) -> None:
        machine = self.machines[NAME]
        if machine.is_due and self.firer is not None:
            self.firer.stir()
        wake_ms = machine.wake_ms
        if wake_ms < self._timer_ms:
            self._ring_at(wake_ms)

    def _ring_at(self, wake_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now_ms = self.now_ms()
        self._timer_ms = min(max(wake_ms, now_ms), now_ms + _LOOK_MS)
        self._timer = self._loop.call_later((self._timer_ms - now_ms) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self.is_ready:
            return
        try:
            self.pass_time()
        finally:
            self._ring_at(max(self.machines[NAME].wake_ms, self.now_ms() + 1))

    def pass_time(self) -> None:
        """Let it be now: schedules become due, periods come near."""
        machine = self.machine
        machine.tick(self.now_ms())
        if machine.period_to_load is not None and not self._is_loading_period:
            self._is_loading_period = True
            self._spawn(self._load_periods(machine))
        if machine.is_due and self.firer is not None:
            self.firer.stir()

    async def _load_periods(self, machine: Schedules) -> None:
        """Have schedules of later periods that have come near in memory, some at once."""
        try:
            while self.machines.get(NAME) is machine and (period := machine.period_to_load) is not None:
                offsets = list(machine.far_offsets(period))
                for at in range(0, len(offsets), _LOADED_AT_ONCE):
                    found = self.library.read(offsets[at : at + _LOADED_AT_ONCE], is_strict=True)
                    machine.load(list(found.items()))
                    await asyncio.sleep(0)
                    if self.machines.get(NAME) is not machine:
                        return
                if len(list(machine.far_offsets(period))) == len(offsets):  # or the clock was set back meanwhile
                    machine.loaded(period)
                self._follow_up()
        except PenstockError as error:
            log.error("A period of %r cannot be loaded, which is tried again: %s", machine, error.message)
        finally:
            self._is_loading_period = False
