"""Stories of schedules: the order of events in which a missing rule loses a message, or has it come twice or too soon.

There are three nodes and one shard. What is fired goes to a topic with three partitions, each led by another node and
copied to all. At the end of each story all clocks are put ahead, and everything is accounted for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from penstock.consensus.commands import ConfigureTopic
from penstock.features.schedules.leading.firing import FiringDelivery
from penstock.features.schedules.messages import ScheduleOutcome
from penstock.model import SCHEDULES_TOPIC
from penstock.testing.loop import SimulatedLoop
from sim.cluster.agenda import Plan
from sim.cluster.history import Place
from sim.cluster.planners import Planner
from sim.cluster.schedule_shape import PLANNED, ScheduleShape
from sim.cluster.seeds import live_through
from sim.cluster.simulation import BrokerNode, Shape
from sim.cluster.stage import OF_THREE, PATIENCE_S, BrokenPromise, Stage

_SHAPE: Final = replace(
    OF_THREE,
    schedule=ScheduleShape(planners=0, partitions=3, assignment=((1, 2, 3), (2, 3, 1), (3, 1, 2))),
)
# Followers sync all that they copy; only a node that is alone shows what a leader does not.
_OF_ONE: Final = replace(
    OF_THREE,
    nodes=1,
    replication_factor=1,
    min_insync_replicas=1,
    assignment=((1,),),
    schedule=ScheduleShape(planners=0),
)
_SHARD: Final[Place] = (SCHEDULES_TOPIC, 0)
_HOUR_MS: Final = 3_600_000


class ScheduleStage(Stage):
    """A cluster with a planner that does what a story says."""

    def __init__(self, loop: SimulatedLoop, script: Script, shape: Shape) -> None:
        super().__init__(loop, self._told, shape)
        self._story = script
        assert shape.schedule is not None
        self.ann = Planner(self, "ann", shape.schedule)

    async def _told(self, _: Stage) -> None:
        self._make_readers()
        await self._story(self)

    async def plan(
        self, delay_ms: int, count: int = 1, *, partition: int | None = None, size: int = 0, has_id: bool = False
    ) -> list[Plan]:
        """Schedules that are acknowledged."""
        while True:
            wanted = [(delay_ms, None)] * count
            plans = await self.ann.add(wanted, partition=partition, size=size, has_id=has_id)
            if plans[0].is_acked:
                return plans
            await self.look()

    async def cancelled(self, plans: list[Plan]) -> list[ScheduleOutcome]:
        while not (fates := await self.ann.cancel(plans)):
            await self.look()
        return fates

    def has_come(self, plans: list[Plan]) -> bool:
        there = {came.value for came in self.planning.came()}
        return all(plan.value in there for plan in plans)

    async def comes(self, plans: list[Plan]) -> None:
        await self.wait_for(lambda: self.has_come(plans), "a schedule does not come")

    # -- who leads ----------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> int:
        """Who leads the schedules, as the latest metadata says."""
        assigned = self.oracles.find_assigned(_SHARD)
        return -1 if assigned is None else assigned.leader

    async def led(self, *, but_not_by: int = -1) -> int:
        """Wait until somebody leads the schedules, and has read them."""

        def is_led() -> bool:
            leader = self.leader
            broker = None if leader in (-1, but_not_by) else self.nodes[leader].broker
            return broker is not None and bool(list(broker.schedules.coordinator))

        await self.wait_for(is_led, "nobody leads the schedules")
        return self.leader

    async def all_in_sync(self) -> None:
        await self.until(self._not_healed, 2 * PATIENCE_S, "replicas do not catch up")

    async def leader_dies(self) -> int:
        """Whoever leads the schedules is killed; who takes over."""
        before = await self.led()
        self.nodes[before].kill()
        return await self.led(but_not_by=before)

    async def all_back(self) -> None:
        for node in self.nodes.values():
            node.start()
        await self.all_in_sync()

    def claim(self, is_so: bool, complaint: str) -> None:
        if not is_so:
            self.fail(complaint)

    async def configure(self, topic: str, **changes: str) -> None:
        named = {name.replace("_", "."): value for name, value in changes.items()}
        await self.order(ConfigureTopic(name=topic, changes=named))
        await asyncio.sleep(0.3)


Script = Callable[[ScheduleStage], Awaitable[None]]


async def _before_append(stage: ScheduleStage) -> None:
    """A firing is written, its partition takes nothing for a while, and whoever leads dies meanwhile."""
    leader = await stage.led()
    other = leader % 3 + 1
    await stage.controlled_by(other)
    await stage.configure(PLANNED, min_insync_replicas="3")
    third = next(node_id for node_id in (1, 2, 3) if node_id not in (leader, other))
    stage.nodes[third].kill()
    await stage.wait_for(lambda: len(stage.assigned().in_sync) == 2, "nobody misses a node")
    plans = [plan for partition in range(3) for plan in await stage.plan(200, 2, partition=partition)]
    await stage.look_for(1.5)
    stage.claim(not stage.has_come(plans[:1]), "a message is taken with too few in sync")
    stage.nodes[leader].kill()
    stage.nodes[third].start()
    await stage.led(but_not_by=leader)
    await stage.all_back()
    await stage.comes(plans)
    await stage.comes(await stage.plan(100, 3))


async def _after_append(stage: ScheduleStage) -> None:
    """A message is in its topic, and whoever leads the schedules dies before it has heard of that, time after time."""
    for turn in range(3):
        leader = await stage.led()
        # The next leader leads the partition, too, or it does not.
        heirs = [node_id for node_id in stage.oracles.assigned(_SHARD).replicas if node_id != leader]
        target = heirs[turn % 2]

        def on_send(node: BrokerNode, delivery: FiringDelivery, target: int = target) -> None:
            if node.id != target and delivery.target.partition == target - 1:
                stage.network.cut(target, node.id)  # the answer does not come back

        stage.planning.agenda.on_send = on_send
        third = next(node_id for node_id in (1, 2, 3) if node_id not in (leader, target))
        await stage.controlled_by(third)
        plans = await stage.plan(300, 2, partition=target - 1)
        await stage.comes(plans)
        stage.planning.agenda.on_send = lambda *_: None
        await stage.leader_dies()
        stage.network.heal()
        await stage.all_back()
        await stage.comes(await stage.plan(100, partition=target - 1))


async def _clock_behind(stage: ScheduleStage) -> None:
    """The clock of the next leader is behind, then that of the one after is ahead: nothing is early by either."""
    leader = await stage.led()
    for node in stage.nodes.values():
        if node.id != leader:
            node.clock.skew_ms -= 4_000
    stage.history.count_fault("clock", "all but one are behind")
    stage.nodes[leader].clock.skew_ms += 2_000
    first = await stage.plan(1_000, 3)
    await stage.look_for(0.5)
    await stage.plan(2_500, 3)
    await stage.leader_dies()
    await stage.look_for(2.0)
    await stage.plan(500, 3)
    await stage.all_back()
    await stage.comes(first)
    behind = await stage.led()
    stage.nodes[behind].clock.skew_ms -= _HOUR_MS
    for node in stage.nodes.values():
        if node.id != behind:
            node.clock.skew_ms = 0
    for _ in range(3):  # some of the nodes that are asked go by another clock
        await stage.plan(12_000, 2)
    await stage.look_for(14.0)


async def _no_leader(stage: ScheduleStage) -> None:
    """A partition has no leader while schedules for it are due. Others come in time, and it gets its own later."""
    leader = await stage.led()
    target = leader % 3 + 1
    third = next(node_id for node_id in (1, 2, 3) if node_id not in (leader, target))
    await stage.controlled_by(leader)
    await stage.configure(PLANNED, min_insync_replicas="3")
    stage.nodes[third].kill()
    held = await stage.plan(100, 3, partition=target - 1)
    (doomed,) = await stage.plan(400, 1, partition=target - 1)
    await stage.look_for(2.0)
    stage.claim(await stage.cancelled(held[:1]) == [ScheduleOutcome.TOO_LATE], "what is being fired is cancelled")
    await stage.cancelled([doomed])
    await stage.all_back()
    await stage.comes(held)


async def _refusal(stage: ScheduleStage) -> None:
    """A message is too large for its topic when it is due. Once it is not any more it comes, and so do all others."""
    await stage.comes(await stage.plan(50, 2, partition=0))
    large = await stage.plan(800, 1, partition=0, size=3_000)
    await stage.configure(PLANNED, max_message_bytes="1000")
    await stage.look_for(1.5)
    await stage.leader_dies()
    await stage.all_back()
    await stage.look_for(1.0)
    await stage.configure(PLANNED, max_message_bytes="100000")
    await stage.comes(large)
    await stage.comes(await stage.plan(50, 2, partition=0))


async def _full_disk(stage: ScheduleStage) -> None:
    """The disk of whoever leads is full while schedules become due. They come when there is room again."""
    leader = await stage.led()
    plans = await stage.plan(600, 5)
    stage.nodes[leader].disk.fill(0)
    await stage.look_for(2.0)
    await stage.ann.add([(100, None)])
    stage.nodes[leader].disk.empty()
    await stage.all_back()
    await stage.comes(plans)
    await stage.comes(await stage.plan(100, 2))


async def _long_log(stage: ScheduleStage) -> None:
    """So much happens that snapshots are written, schedules are carried on, and the log is cut again and again."""
    far = await stage.plan(7 * _HOUR_MS, 3)
    kept = await stage.plan(2 * _HOUR_MS, 4, has_id=True)
    gone = [*await stage.plan(2 * _HOUR_MS, 2), *await stage.plan(8 * _HOUR_MS, 2)]
    await stage.cancelled(gone)
    for _ in range(3):
        for _ in range(5):
            plans = await stage.plan(100, 6)
            await stage.cancelled(await stage.plan(3_000, 6))
            await stage.comes(plans)
        await stage.look_for(3.0)
        leader = await stage.led()
        broker = stage.nodes[leader].broker
        assert broker is not None
        stage.history.note(f"the log begins at {broker.replicas.get(*_SHARD).log.start_offset}")
        stage.claim(broker.replicas.get(*_SHARD).log.start_offset > 0, "the log of schedules is not cut")
        await stage.leader_dies()
        await stage.all_back()
    for plans in (far, kept):
        stage.claim(not stage.has_come(plans[:1]), "a schedule of a later hour has come")


async def _far(stage: ScheduleStage) -> None:
    """Hours pass at once for whoever leads, then it dies: what was far is loaded once, and comes once."""
    plans = [*await stage.plan(4 * _HOUR_MS, 3), *await stage.plan(14 * _HOUR_MS, 3)]
    (doomed,) = await stage.plan(15 * _HOUR_MS)
    await stage.cancelled(await stage.plan(3_000, 19))  # which is worth a snapshot, and no more
    for hours in (2, 4, 6):
        for node in stage.nodes.values():
            node.clock.skew_ms = hours * _HOUR_MS
        await stage.look_for(1.5)
        if hours == 4:
            await stage.leader_dies()
            await stage.all_back()
    await stage.cancelled([doomed])
    await stage.leader_dies()
    await stage.all_back()
    await stage.comes(plans[:3])


async def _power(stage: ScheduleStage) -> None:
    """What was acknowledged stays so when the power fails right after, time after time; what was fired is not again."""
    for number in range(8):
        plans = await stage.plan(50 if number % 2 else 5_000, 2)
        if number % 4 == 0:
            await stage.cancelled(plans[:1])
        if number % 4 == 1:
            await stage.comes(plans)
        stage.nodes[1].cut_power()
        stage.nodes[1].start()
        await stage.led()


_SHAPES: Final[dict[Script, Shape]] = {_power: _OF_ONE}
_SCRIPTS: Final = {
    "a leader dies before a schedule is appended": _before_append,
    "a leader dies after a schedule is appended": _after_append,
    "clocks of leaders are behind": _clock_behind,
    "schedules are due for a partition that takes nothing": _no_leader,
    "a schedule is refused and a leader dies": _refusal,
    "a disk is full when schedules are due": _full_disk,
    "the log of schedules is cut while leaders change": _long_log,
    "hours pass for schedules that are far": _far,
    "the power fails after schedules are added": _power,
}


def _tell(script: Script) -> None:
    result = live_through(1, lambda loop: ScheduleStage(loop, script, _SHAPES.get(script, _SHAPE)))
    if result.violations:
        told = "\n".join(result.lines[-30:])
        raise BrokenPromise(f"{result.violation}\n{told}")


def _story(script: Script) -> Callable[[], None]:
    return lambda: _tell(script)


SCHEDULE_STORIES: Final[dict[str, Callable[[], None]]] = {name: _story(script) for name, script in _SCRIPTS.items()}
