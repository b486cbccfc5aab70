"""Schedules of a simulated cluster as a whole: set up, planned by planners, brought to an end, judged.

At the end, when all clocks show more than the last time that anything was planned for:

- *no schedule is lost*: what was acknowledged and not cancelled is in its topic, and nothing has failed;
- *no schedule fires twice*: each is there once, or once for each of its times, if it comes again;
- *no schedule fires early*: no message is stamped with a time before it was due, as long as no clock was set;
- *cancelled schedules stay away*: of what a planner was told is cancelled nothing is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from penstock.broker.broker import Broker
from penstock.consensus.commands import CreateTopic
from penstock.errors import TopicExists
from penstock.features.schedules.leading.firing import DUE_HEADER, ID_HEADER
from penstock.features.schedules.schedules import ensure_schedules_topic
from penstock.records import decode_records, parse_header
from sim.cluster.agenda import Agenda, Plan
from sim.cluster.clients import Client
from sim.cluster.planners import Planner
from sim.cluster.schedule_shape import PLANNED

if TYPE_CHECKING:
    from sim.cluster.simulation import Simulation

_NEAR_MAX_S: Final = 60.0
_AHEAD_MS: Final = (3 * 3_600_000, 9 * 3_600_000, 22 * 3_600_000)  # within the time that partitions know producers


class Came(NamedTuple):
    """A message of a schedule, in its topic."""

    id: str
    due_ms: int
    at_ms: int
    value: bytes


class Planning:
    """All about schedules in one history; nothing where its shape has none."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._history = simulation.history
        self.shape = simulation.shape.schedule
        self.shards = 1 if self.shape is None else self.shape.shards
        self.agenda = Agenda(simulation)

    async def set_up(self, client: Client) -> None:
        shape, simulation = self.shape, self._simulation
        if shape is None:
            return
        least = min(simulation.shape.min_insync_replicas, simulation.shape.replication_factor)
        command = CreateTopic(
            name=PLANNED,
            topic_id=UUID(int=simulation.random.getrandbits(128)),
            partitions=None if shape.assignment else shape.partitions,
            replication_factor=None if shape.assignment else simulation.shape.replication_factor,
            assignment=shape.assignment,
            configs={"min.insync.replicas": str(least)},
        )

        async def create(broker: Broker) -> None:
            try:
                await broker.controller.submit(command)
            except TopicExists:
                return

        await client.insist("creates a topic", partial(client.ask_anybody, create))
        await client.insist(
            "creates a topic", partial(client.ask_anybody, lambda broker: ensure_schedules_topic(broker.ports))
        )

    def planners(self) -> list[Planner]:
        shape = self.shape
        if shape is None:
            return []
        return [Planner(self._simulation, f"planner-{number}", shape) for number in range(shape.planners)]

    # -- the end ------------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Have everything come that was planned: what is near by itself, what is far because clocks are put ahead."""
        simulation, shape = self._simulation, self.shape
        if shape is None:
            return
        self._set_clocks(0)
        await simulation.until(self._not_come, _NEAR_MAX_S, "schedules do not come")
        await simulation.bounded(Planner(simulation, "last-planner", shape).end_rules(), 30.0, "rules do not end")
        for ahead_ms in _AHEAD_MS:
            self._set_clocks(ahead_ms)
            await simulation.until(self._not_come, _NEAR_MAX_S, "schedules of later hours do not come")
        await simulation.until(self._pending, _NEAR_MAX_S, "something waits for ever")

    def _set_clocks(self, skew_ms: int) -> None:
        for node in self._simulation.nodes.values():
            node.clock.skew_ms = skew_ms
        self._history.note(f"all clocks are set {skew_ms} ms ahead")

    def _not_come(self) -> str:
        """What should be there by now; what nobody knows the time of has time until the end."""
        now_ms = min(node.clock.now_ms() for node in self._simulation.nodes.values())
        there = {came.value for came in self.came()}
        missing = [
            plan.value
            for plan in self.agenda.plans.values()
            if plan.has_to_come and plan.due_ms is not None and plan.due_ms <= now_ms and plan.value not in there
        ]
        return f"{missing[:3]} of {len(missing)}" if missing else ""

    def _pending(self) -> str:
        stats = [broker.schedules.stats_here() for _, broker in self._simulation.members()]
        pending = sum(each.pending for each in stats)
        is_led = sum(len(list(broker.schedules.coordinator)) for _, broker in self._simulation.members())
        if is_led < self.shards:
            return f"{is_led} shards are led"
        return f"{pending} wait" if pending else ""

    def check(self) -> None:
        if self.shape is None:
            return
        found: dict[bytes, list[Came]] = {}
        for came in self.came():
            found.setdefault(came.value, []).append(came)
        self._history.count("histories with schedules")
        self._history.count("schedules fired", sum(map(len, found.values())))
        for value, those in found.items():
            plan = self.agenda.plans.get(value)
            if plan is None:
                self._history.violate("no schedule fires twice", f"nobody planned {those}")
            else:
                self._check_plan(plan, those)
        for plan in self.agenda.plans.values():
            if plan.has_to_come and not plan.comes_again and plan.value not in found:
                self._history.violate("no schedule is lost", f"{plan} never came")
        failed = sum(broker.schedules.stats_here().failed for _, broker in self._simulation.members())
        if failed:
            self._history.violate("no schedule is lost", f"{failed} have failed")

    def _check_plan(self, plan: Plan, those: list[Came]) -> None:
        history = self._history
        dues = [came.due_ms for came in those]
        # Who sets another time, by a clock that may be set back, may well ask for one that was before.
        times = set(dues) if plan.comes_again and not plan.is_changed else dues if plan.comes_again else {0}
        if len(those) > len(times):
            history.violate("no schedule fires twice", f"{plan} came {len(those)} times: {those}")
        if not plan.comes_again and plan.cancelled_s < float("inf"):
            history.violate("cancelled schedules stay away", f"{plan} came: {those}")
        for came in those:
            if plan.id and came.id != plan.id:
                history.violate("no schedule is lost", f"{plan} came as {came.id}")
            if plan.dues and came.due_ms not in plan.dues:
                history.violate("no schedule is lost", f"{plan} came for another time: {came}")
            if came.at_ms < came.due_ms and not history.faults.get("clock"):
                history.violate("no schedule fires early", f"{came} is stamped with an earlier time")

    def came(self) -> Iterator[Came]:
        """All messages of schedules that are in their topic, as their leaders know them."""
        assert self.shape is not None
        for place in self.shape.places:
            for _, broker in self._simulation.members():
                if broker.replicas.has(*place) and broker.replicas.get(*place).is_leader:
                    log = broker.replicas.get(*place).log
                    for piece in log.good_batches(log.start_offset):
                        data = piece.read()
                        if parse_header(data).is_control:
                            continue
                        for record in decode_records(data):
                            headers = dict(record.headers)
                            yield Came(
                                (headers[ID_HEADER] or b"").decode(),
                                int(headers[DUE_HEADER] or b"0"),
                                record.timestamp,
                                record.value or b"",
                            )
                    break
