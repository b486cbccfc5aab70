"""Planners of a simulated cluster: they add schedules on any node, cancel them, move them, and run them at once.

A planner that was not answered leaves a schedule alone from then on: whatever it asked for may be done at any later
time. At the end all clocks are set right, then put ahead by hours, and everything that was planned has to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.broker import Broker
from penstock.errors import PenstockError, ScheduleBeingFired, ScheduleNotFound
from penstock.features.schedules.messages import PlacedSchedule, ScheduleOutcome, ScheduleRequest
from penstock.features.schedules.records import ScheduledMessage, StoredSchedule
from penstock.features.schedules.recurrence import ByCron, Every, Missed, Rule
from sim.cluster.agenda import Agenda, Plan
from sim.cluster.clients import Client
from sim.cluster.schedule_shape import PLANNED, ScheduleShape
from sim.cluster.world import Unreachable

if TYPE_CHECKING:
    from sim.cluster.simulation import Simulation

_DEEDS: Final = (*("add",) * 8, *("cancel",) * 3, *("move",) * 2, "run", "show")
_DELAYS_MS: Final = (-5_000, 0, 0, 7, 100, 300, 300, 1_000, 1_000, 2_500, 6_000, 15_000, 4 * 3_600_000, 12 * 3_600_000)
_RULES: Final = (
    (Every(200, 0), Missed.ONCE),
    (Every(700, 0), Missed.SKIP),
    (Every(60_000, 0), Missed.ALL),
    (ByCron("* * * * *"), Missed.ONCE),
)
_UNKNOWN: Final = (PenstockError, Unreachable)


class Planner(Client):
    """One who plans. It asks any node, or always the one that a story names."""

    def __init__(self, simulation: Simulation, name: str, shape: ScheduleShape) -> None:
        super().__init__(simulation, name)
        self._shape = shape
        self._agenda: Agenda = simulation.planning.agenda
        self._count = 0
        self._mine: list[Plan] = []  # of which everything is known

    async def run(self) -> None:
        while not self.simulation.is_over:
            await self.pause(0.4)
            deed = self.random.choice(_DEEDS) if self._mine else "add"
            if deed == "add":
                await self.add_some(self.random.choice((1, 1, 1, 3, 12)))
            elif deed == "cancel":
                most = min(len(self._mine), self.random.choice((1, 1, 4)))
                await self.cancel(self.random.sample(self._mine, most))
            elif deed == "move":
                await self.move(self.random.choice(self._mine), self.random.choice(_DELAYS_MS))
            elif deed == "run":
                await self.run_now(self.random.choice(self._mine))
            else:
                await self._show(self.random.choice(self._mine))

    # -- adding -------------------------------------------------------------------------------------------------------

    async def add_some(self, count: int) -> None:
        has_id = self.random.random() < 0.5
        wanted = [(self.random.choice(_DELAYS_MS), self._draw_rule()) for _ in range(count)]
        await self.add(wanted, has_id=has_id, partition=self._draw_partition())

    def _draw_rule(self) -> tuple[Rule, Missed] | None:
        is_rule = self._shape.has_rules and self.random.random() < 0.05
        return self.random.choice(_RULES) if is_rule else None

    def _draw_partition(self) -> int | None:
        return self.random.choice((None, None, self.random.randrange(self._shape.partitions)))

    async def add(
        self,
        wanted: Sequence[tuple[int, tuple[Rule, Missed] | None]],
        *,
        has_id: bool = False,
        partition: int | None = None,
        size: int = 0,
    ) -> list[Plan]:
        """Add schedules with these delays or rules, all at once; their plans."""
        plans = [self._plan(rule, has_id=has_id, size=size) for _, rule in wanted]

        async def work(broker: Broker) -> list[PlacedSchedule]:
            now_ms = broker.clock.now_ms()
            news = []
            for plan, (delay_ms, rule) in zip(plans, wanted, strict=True):
                due_ms = None if rule else now_ms + delay_ms
                plan.dues = [] if due_ms is None else [due_ms]
                key = plan.value[-1:] if self.random.random() < 0.3 else None
                message = ScheduledMessage(PLANNED, partition, key, plan.value)
                id_ = plan.id if plan.is_given else ""
                if rule is None:
                    news.append(ScheduleRequest(message=message, id=id_, due_ms=due_ms))
                else:
                    news.append(ScheduleRequest(message=message, id=id_, rule=rule[0], missed=rule[1]))
            return await broker.schedules.add(news)

        try:
            placed = await self.ask_anybody(work)
        except _UNKNOWN as error:
            self.history.note(f"{self.name} adds {_told(plans)}: {type(error).__name__}")
            for plan in plans:
                plan.is_unsure = True
            return plans
        for plan, each in zip(plans, placed, strict=True):
            plan.id, plan.is_acked = each.id, True
            if plan.comes_again:
                plan.first_ms = each.due_ms
            elif plan.dues != [each.due_ms]:
                self.history.violate("no schedule is lost", f"{plan} is told to be due at {each.due_ms}")
            self.history.acked += 1
        self.history.count("schedules added", len(plans))
        self._mine += plans
        self.history.note(f"{self.name} has {_told(plans)} planned for {[each.due_ms for each in placed]}")
        return plans

    def _plan(self, rule: tuple[Rule, Missed] | None, *, has_id: bool, size: int) -> Plan:
        value = f"{self.name}/{self._count}/".encode().ljust(size, b".")
        self._count += 1
        self.history.operations += 1
        plan = Plan(value, id=f"{self.name}-{self._count}" if has_id else "", is_given=has_id)
        plan.comes_again = rule is not None
        plan.may_skip = rule is not None and rule[1] is Missed.SKIP
        self._agenda.plans[value] = plan
        return plan

    # -- changing -----------------------------------------------------------------------------------------------------

    def _leave(self, plans: Sequence[Plan]) -> None:
        self._mine = [plan for plan in self._mine if all(plan is not each for each in plans)]

    async def cancel(self, plans: Sequence[Plan]) -> list[ScheduleOutcome]:
        """Cancel schedules; nothing if there was no answer."""
        for plan in plans:
            plan.is_cancel_asked = True
        self._leave(plans)
        try:
            fates = await self.ask_anybody(lambda broker: broker.schedules.cancel([plan.id for plan in plans]))
        except _UNKNOWN as error:
            self.history.note(f"{self.name} cancels {_told(plans)}: {type(error).__name__}")
            for plan in plans:
                plan.is_unsure = True
            return []
        self.history.note(f"{self.name} cancels {_told(plans)}: {[fate.value for fate in fates]}")
        for plan, fate in zip(plans, fates, strict=True):
            if fate is ScheduleOutcome.DONE:
                plan.cancelled_s = self._agenda.now_s()
                self.history.count("schedules cancelled")
            elif fate is ScheduleOutcome.TOO_LATE and not plan.comes_again:
                plan.is_cancel_asked = False  # it is on its way, so it has to come
        return fates

    async def move(self, plan: Plan, delay_ms: int) -> None:
        """Give a schedule another time."""
        wanted: list[int] = []

        async def work(broker: Broker) -> StoredSchedule:
            due_ms = broker.clock.now_ms() + delay_ms
            wanted.append(due_ms)
            return await broker.schedules.reschedule(plan.id, due_ms=due_ms)

        plan.is_changed = True
        try:
            changed = await self.ask_anybody(work)
        except (ScheduleNotFound, ScheduleBeingFired):
            plan.dues = [*plan.dues, *wanted] if plan.dues else []  # an earlier attempt may have got through
            self.history.note(f"{self.name} moves {_told([plan])} too late")
        except _UNKNOWN as error:
            self._lose_sight_of(plan, "moves", error)
        else:
            plan.dues = [] if plan.comes_again else [changed.due_ms]
            self.history.note(f"{self.name} moves {_told([plan])} to {changed.due_ms}")

    async def run_now(self, plan: Plan) -> None:
        plan.is_changed, plan.dues = True, []
        try:
            await self.ask_anybody(lambda broker: broker.schedules.run_now(plan.id))
        except (ScheduleNotFound, ScheduleBeingFired):
            return
        except _UNKNOWN as error:
            self._lose_sight_of(plan, "runs", error)
        else:
            self.history.note(f"{self.name} runs {_told([plan])}")

    def _lose_sight_of(self, plan: Plan, verb: str, error: Exception) -> None:
        self.history.note(f"{self.name} {verb} {_told([plan])}: {type(error).__name__}")
        plan.is_unsure, plan.dues = True, []
        self._leave([plan])

    async def _show(self, plan: Plan) -> None:
        try:
            found = await self.ask_anybody(lambda broker: broker.schedules.show(plan.id))
        except _UNKNOWN:
            return
        if found.message.value != plan.value:
            self.history.violate("no schedule is lost", f"{plan} is shown as {found}")

    # -- the end ------------------------------------------------------------------------------------------------------

    async def end_rules(self) -> None:
        """Cancel all that comes again, also what nobody knows the id of."""
        while True:
            found = await self.insist("lists schedules", self._with_rules)
            if not found:
                return
            for plan in self._agenda.plans.values():
                plan.is_cancel_asked |= plan.comes_again
            ids = [schedule.id for schedule in found]
            fates = await self.insist("cancels", partial(self._cancel_ids, ids))
            self.history.note(f"{self.name} ends {ids}: {[fate.value for fate in fates]}")

    async def _cancel_ids(self, ids: list[str]) -> list[ScheduleOutcome]:
        return await self.ask_anybody(lambda broker: broker.schedules.cancel(ids))

    async def _with_rules(self) -> list[StoredSchedule]:
        async def work(broker: Broker) -> list[StoredSchedule]:
            found: list[StoredSchedule] = []
            after = ""
            while True:
                page = await broker.schedules.page(limit=7, after=after)
                found += page.schedules
                if not page.next:
                    return found
                after = page.next

        return [schedule for schedule in await self.ask_anybody(work) if schedule.rule is not None]


def _told(plans: Sequence[Plan]) -> str:
    return ", ".join(plan.value[:24].decode().rstrip("./") for plan in plans)
