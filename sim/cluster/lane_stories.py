"""Stories of lanes: who is handed out when, by priority and by tenant, and that a new leader does no less.

The stage is that of other queues: one partition with three replicas, led by node 1. While nothing is wrong, and
critical messages never end, the lowest lane is served within its boost time and a moment, and without any boost it gets
its share; one noisy tenant does not keep another one waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Final

from penstock.priorities import Headers, with_priority
from sim.cluster.clients import Producer
from sim.cluster.queue_shape import PLAIN, TENANT, QueueShape
from sim.cluster.queue_stories import QueueStage, Script, dead_letters, inherit, tell_queues
from sim.cluster.simulation import Shape
from sim.cluster.stage import OF_THREE, PATIENCE_S, PLACE
from sim.cluster.workers import Worker

_BOOST_S: Final = 0.5
_SLACK_S: Final = 0.25
_NEVER_MS: Final = 0
_QUEUE: Final = QueueShape(groups=(PLAIN,), workers=0, tries=3, visibility_timeout_ms=3_000, has_lanes=True)
_OF_LANES: Final = replace(OF_THREE, queue=replace(_QUEUE, boost_ms=int(_BOOST_S * 1000)))
_OF_SHARES: Final = replace(OF_THREE, queue=replace(_QUEUE, boost_ms=_NEVER_MS))
_OF_TENANTS: Final = replace(OF_THREE, queue=replace(_QUEUE, boost_ms=_NEVER_MS, fair_by=f"header:{TENANT}"))


class LaneProducer(Producer):
    """Writes messages of one priority and one tenant. Their names tell both."""

    def __init__(self, stage: QueueStage, priority: str, tenant: str = "all") -> None:
        super().__init__(stage, f"{tenant}-{priority}", [PLACE])
        self._stage = stage
        self._headers: Headers = with_priority(((TENANT, tenant.encode()),), priority)

    def headers_of(self, number: int) -> Headers:  # noqa: ARG002
        return self._headers

    async def write(self, count: int) -> None:
        await self._begin()
        await self._stage.bounded(self._produce(PLACE, count), PATIENCE_S, "a write is not acknowledged")


async def _work(stage: QueueStage, worker: Worker, count: int, most: int = 1) -> list[tuple[float, str]]:
    """Have messages handed out and acked; when each was, and the name of who wrote it."""
    served: list[tuple[float, str]] = []
    while len(served) < count:
        found = await stage.take(worker, most)
        served += [(each.told_s, each.value.decode().partition("/")[0]) for each in found]
        await stage.settle(worker, "ack", found)
    return served


def _check_turns(stage: QueueStage, served: list[tuple[float, str]], name: str) -> None:
    """The one of that name was never kept waiting for longer than its boost time and a moment."""
    times = [served[0][0], *(at_s for at_s, who in served if who == name), served[-1][0]]
    longest_s = max(after - before for before, after in pairwise(times))
    if longest_s > _BOOST_S + _SLACK_S:
        stage.history.violate("lanes get their turn", f"{name} has waited for {longest_s:.3f} s")


def _check_count(stage: QueueStage, served: list[tuple[float, str]], name: str, least: int, most: int) -> None:
    count = sum(who == name for _, who in served)
    if not least <= count <= most:
        stage.history.violate("lanes get their turn", f"{count} of {len(served)} are of {name}: {least} to {most} may")


async def _boost(stage: QueueStage) -> None:
    """Critical messages never end: the lowest lane comes within its boost time, also after somebody else took over."""
    await stage.controlled_by(2)
    urgent, lowest = LaneProducer(stage, "critical"), LaneProducer(stage, "background")
    for _ in range(6):
        await urgent.write(40)
        await lowest.write(4)
    served = await _work(stage, stage.worker("ann", at=1), 45)
    _check_turns(stage, served, lowest.name)
    await stage.leader_dies(1, then=2)
    served = await _work(stage, stage.worker("bob", at=2), 45)
    _check_turns(stage, served, lowest.name)
    stage.nodes[1].start()
    await stage.in_sync(1, 2, 3)


async def _shares(stage: QueueStage) -> None:
    """Without any boost each lane that has messages gets its share of every round, the urgent ones first."""
    urgent, low, lowest = (LaneProducer(stage, each) for each in ("critical", "low", "background"))
    await lowest.write(30)
    await low.write(30)
    await urgent.write(130)
    served = await _work(stage, stage.worker("ann"), 120, most=10)  # two rounds of 50, 7 and 3
    _check_count(stage, served[:50], urgent.name, 40, 50)  # it may begin before it has looked at everything
    for producer, share in ((urgent, 100), (low, 14), (lowest, 6)):
        _check_count(stage, served, producer.name, share - 2, share + 2)


async def _tenants(stage: QueueStage) -> None:
    """One tenant has written a lot before another one came: that one does not wait until it is all done."""
    noisy, quiet = LaneProducer(stage, "normal", "noisy"), LaneProducer(stage, "normal", "quiet")
    await noisy.write(90)
    await quiet.write(8)
    served = await _work(stage, stage.worker("ann"), 30, most=5)
    _check_count(stage, served, quiet.name, 8, 8)


async def _letters(stage: QueueStage) -> None:
    """Messages of all priorities die, some before and some after their leader does."""
    await stage.controlled_by(2)
    await stage.write(16)
    ann, bob = stage.worker("ann", at=1), stage.worker("bob", at=2)
    found = await stage.take(ann, 12)
    await stage.settle(ann, "reject", found[:6])
    await stage.wait_for(lambda: dead_letters(stage) == 6, "the dead letters are not written")
    await stage.leader_dies(1, then=2)
    await stage.settle(bob, "reject", found[6:])
    stage.nodes[1].start()
    await stage.in_sync(1, 2, 3)
    await stage.wait_for(lambda: dead_letters(stage) == 12, "the other dead letters are not written")


_SHAPES: Final[dict[Script, Shape]] = {_shares: _OF_SHARES, _tenants: _OF_TENANTS}
_SCRIPTS: Final = {
    "the lowest lane comes within its boost time": _boost,
    "each lane gets its share": _shares,
    "one tenant is noisy": _tenants,
    "a new leader knows what became of every message of every lane": inherit,
    "dead letters have priorities": _letters,
}


def _story(script: Script) -> Callable[[], None]:
    return lambda: tell_queues(script, _SHAPES.get(script, _OF_LANES))


LANE_STORIES: Final[dict[str, Callable[[], None]]] = {name: _story(script) for name, script in _SCRIPTS.items()}
