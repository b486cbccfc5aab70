"""Stories of whole clusters: the order of events in which a missing rule loses something, told step by step.

Each has a topic with replicas on nodes 1 to 3, led by node 1; there are five nodes where the quorum has to survive two.
A story raises `BrokenPromise` if an oracle was proved wrong in it, or if the cluster does not come right at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import msgspec

from penstock.broker.broker import Broker
from penstock.cluster.commands import Outcomes, TransferControl
from penstock.cluster.records import PartitionAssigned
from penstock.errors import PenstockError
from penstock.quorum.submission import Submitted
from penstock.quorum.wire import RAFT_MESSAGE
from penstock.testing.simulation.cluster.clients import Producer
from penstock.testing.simulation.cluster.history import Place
from penstock.testing.simulation.cluster.loop import SimulatedLoop
from penstock.testing.simulation.cluster.node import Unreachable
from penstock.testing.simulation.cluster.seeds import live_through
from penstock.testing.simulation.cluster.simulation import BrokerNode, Shape, Simulation

_PLACE: Final[Place] = ("alpha", 0)
_LAG_MS: Final = 600
_PATIENCE_S: Final = 15.0
_SHAPE: Final = Shape(
    nodes=3,
    places=(_PLACE,),
    replication_factor=3,
    min_insync_replicas=2,
    duration_s=1.0,
    producers=1,
    transactors=0,
    committers=0,
    assignment=((1, 2, 3),),
    replica_lag_ms=_LAG_MS,
    session_ms=4_000,
)


class BrokenPromise(AssertionError):
    """A story did not end as it has to."""


class Stage(Simulation):
    """A cluster that does what a story says."""

    def __init__(self, loop: SimulatedLoop, script: Callable[[Stage], Awaitable[None]]) -> None:
        shape = replace(_SHAPE, nodes=5, session_ms=6_000) if script in _OF_FIVE else _SHAPE
        super().__init__(1, loop, shape=shape, is_told=True)
        self._script = script
        self.faults.kinds = []
        self.producer = Producer(self, "producer", [_PLACE])
        self.other_producer = Producer(self, "other", [_PLACE])

    async def play(self) -> None:
        """The story itself, between a good beginning and a good end."""
        await self._script(self)

    # -- what stories do ----------------------------------------------------------------------------------------------

    def assigned(self) -> PartitionAssigned:
        """The partition as the latest metadata says."""
        return self.oracles.assigned(_PLACE)

    async def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        await self.until(lambda: "" if condition() else "not yet", _PATIENCE_S, what)

    async def in_sync(self, *node_ids: int) -> None:
        await self.wait_for(lambda: set(self.assigned().in_sync) == set(node_ids), f"{node_ids} are not in sync")

    async def led_by(self, node_id: int) -> None:
        await self.wait_for(lambda: self.assigned().leader == node_id, f"node {node_id} does not lead")
        await self.wait_for(
            lambda: self._leads_here(self.nodes[node_id]), f"node {node_id} does not know that it leads"
        )

    def _leads_here(self, node: BrokerNode) -> bool:
        broker = node.broker
        return broker is not None and broker.replicas.has(*_PLACE) and broker.replicas.get(*_PLACE).is_leader

    async def controlled_by(self, node_id: int) -> None:
        """Have a node lead the quorum."""

        async def hand_over(broker: Broker) -> None:
            await broker.controller.submit(TransferControl(node_id=node_id))

        def leads() -> bool:
            broker = self.nodes[node_id].broker
            return broker is not None and broker.quorum.is_leader

        while not leads():
            for node in self.nodes.values():
                if node.is_ready and not leads():
                    try:
                        await node.ask(hand_over)
                    except (PenstockError, Unreachable):
                        await asyncio.sleep(0.1)

    def end_of(self, node_id: int) -> int:
        """Where a node's log ends."""
        broker = self.nodes[node_id].broker
        return -1 if broker is None else broker.replicas.get(*_PLACE).log.end_offset

    def maximal(self) -> tuple[int, ...]:
        """Who is in sync or may be soon, as far as node 1 knows, which leads."""
        broker = self.nodes[1].broker
        followers = None if broker is None else broker.replicas.get(*_PLACE).followers
        return () if followers is None else followers.maximal

    def epoch_of(self, node_id: int) -> int | None:
        """The life in which the controller has let a node in; None while it is fenced."""
        broker = self.nodes[4].broker
        node = None if broker is None else broker.metadata.nodes.get(node_id)
        return None if node is None or node.is_fenced else node.epoch

    def cut_off(self, node_id: int, *others: int) -> None:
        self.network.split([node_id], others)

    async def write(self, count: int = 1) -> None:
        """Have messages acknowledged."""
        for _ in range(count):
            await self.bounded(self.producer.write_everywhere(), _PATIENCE_S, "a write is not acknowledged")

    def try_to_write(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.producer.write_everywhere())

    async def look_for(self, seconds: float) -> None:
        until_s = self.loop.time() + seconds
        while self.loop.time() < until_s:
            await self.look()


def tell(script: Callable[[Stage], Awaitable[None]]) -> None:
    """Play a story; `BrokenPromise` if it goes wrong."""
    result = live_through(1, lambda loop: Stage(loop, script))
    if result.violations:
        told = "\n".join(result.lines[-30:])
        raise BrokenPromise(f"{result.violation}\n{told}")


# -- the stories -------------------------------------------------------------------------------------------------------


def _swallows_grants(way: tuple[int, int], method: str, content: msgspec.Struct | None) -> bool:
    """Heartbeats are answered, but who is in sync is not told, neither as an answer nor as metadata."""
    is_grant = isinstance(content, Submitted) and isinstance(content.answer, Outcomes)
    return way == (3, 1) and (is_grant or method == RAFT_MESSAGE.name)


async def _lost_grant(stage: Stage) -> None:
    """A follower is taken in, but its leader never hears so: it may not commit without it."""
    await stage.controlled_by(3)
    stage.cut_off(2, 1)  # from the leader, not from the controller
    writing = stage.try_to_write()
    await stage.in_sync(1, 3)
    await stage.bounded(writing, _PATIENCE_S, "a write is not acknowledged")
    await stage.write(3)

    def on_assigned(assigned: PartitionAssigned) -> None:
        if set(assigned.in_sync) == {1, 2, 3}:
            stage.oracles.on_assigned = None
            stage.cut_off(1, 2)
            stage.network.swallows = _swallows_grants

    stage.oracles.on_assigned = on_assigned
    stage.network.heal()
    await stage.in_sync(1, 2, 3)
    writing = stage.try_to_write()
    await stage.look_for(20.0)  # longer than the leader waits for an answer
    stage.network.heal()
    await stage.bounded(writing, _PATIENCE_S, "a write is not acknowledged after all is well")


async def _late_watermark(stage: Stage) -> None:
    """A follower has more than the next leader, and has not heard yet how far that is committed."""
    await stage.controlled_by(2)
    await asyncio.sleep(1.0)  # a controller hears every node first, itself too: it would rather elect one that it has
    await stage.write(4)
    await stage.other_producer.write_everywhere()
    stage.nodes[2].disk.spindle.sync_max_s = 0.4
    writing = stage.try_to_write()
    committed = stage.end_of(2)
    while stage.end_of(2) == committed:  # noqa: ASYNC110 - time is virtual
        await asyncio.sleep(0.0001)
    stage.network.cut(1, 2)  # it has the one message, and gets no other
    more = asyncio.ensure_future(stage.other_producer.write_everywhere())
    await writing
    stage.nodes[1].cut_power()  # before anybody hears how far that was committed
    stage.network.heal()
    stage.nodes[2].disk.spindle.sync_max_s = 0.002
    await stage.wait_for(lambda: stage.assigned().leader == 2, "node 2 does not take over")
    await stage.bounded(more, _PATIENCE_S, "a write is not acknowledged after all is well")
    stage.nodes[1].start()
    await stage.in_sync(1, 2, 3)


async def _late_proposal(stage: Stage) -> None:
    """A follower loses its disk while the word of its leader, that it is in sync, is on its way."""
    await stage.controlled_by(4)
    stage.cut_off(3, 1)
    writing = stage.try_to_write()
    await stage.in_sync(1, 2)
    await stage.bounded(writing, _PATIENCE_S, "a write is not acknowledged")
    await stage.write(3)
    stage.network.weather.patience_max_s = 600.0  # what waits on this way is not given up
    stage.network.cut(1, 4)
    stage.network.mend(3, 1)
    await stage.wait_for(lambda: 3 in stage.maximal(), "the leader does not want to take node 3 in")
    await stage.look_for(0.1)
    stage.network.weather.patience_max_s = 1.0
    epoch = stage.epoch_of(3)
    stage.nodes[3].wipe()
    stage.cut_off(3, 1)
    stage.nodes[3].start()
    await stage.wait_for(lambda: stage.epoch_of(3) not in (epoch, None), "node 3 is not let in again")
    stage.network.mend(1, 4)
    await stage.look_for(0.5)
    stage.network.heal()
    await stage.in_sync(1, 2, 3)
    await stage.write(2)


async def _late_change(stage: Stage) -> None:
    """A leader's word of who is in sync arrives when others have decided otherwise, and much was written since."""
    await stage.controlled_by(4)
    stage.network.weather.patience_max_s = 600.0  # what waits is not given up
    await stage.write(2)
    stage.cut_off(2, 4, 5)  # but not from the leader: it is in sync, and soon fenced
    await stage.look_for(4.5)
    stage.cut_off(3, 1)
    stage.network.cut(1, 4)
    writing = stage.try_to_write()  # node 3 falls behind, and the leader's word of that does not arrive
    await stage.in_sync(1, 3)  # by the controller, which has missed node 2
    stage.cut_off(2, 1, 3)
    stage.network.mend(3, 1)
    await stage.bounded(writing, _PATIENCE_S, "a write is not acknowledged")
    await stage.write(3)
    stage.network.mend(2, 4)
    await stage.look_for(1.0)
    stage.network.mend(1, 4)
    await stage.look_for(0.5)
    stage.network.heal()
    await stage.in_sync(1, 2, 3)
    await stage.write(2)


async def _stale_leader(stage: Stage) -> None:
    """A leader that is cut off goes on alone: what it writes is not acknowledged, and gives way later."""
    await stage.controlled_by(2)
    await stage.write(3)
    stage.cut_off(1, 2, 3)
    lonely = stage.try_to_write()
    await stage.wait_for(lambda: stage.assigned().leader in (2, 3), "nobody takes over")
    await stage.look_for(0.5)
    stage.network.heal()
    await stage.bounded(lonely, _PATIENCE_S, "a write is not acknowledged after all is well")
    await stage.write(3)
    await stage.in_sync(1, 2, 3)


async def _last_replica_standing(stage: Stage) -> None:
    """One falls out, the others go on without it and then are gone. Nobody who lacks what was acknowledged may lead."""
    await stage.controlled_by(4)
    await stage.write(2)
    stage.nodes[3].kill()
    await stage.in_sync(1, 2)
    await stage.write(3)
    stage.nodes[1].cut_power()
    stage.nodes[2].kill()
    stage.nodes[3].start()
    await stage.look_for(8.0)
    stage.nodes[2].start()
    await stage.wait_for(lambda: stage.assigned().leader == 2, "the one that has everything does not lead")
    stage.nodes[1].start()
    await stage.in_sync(1, 2, 3)
    await stage.write(2)


async def _eligible_replica(stage: Stage) -> None:
    """Two fall out, and come back while the leader is gone: only the one that has everything may lead for it."""
    await stage.controlled_by(4)
    await stage.write(2)
    stage.nodes[3].kill()
    await stage.in_sync(1, 2)
    await stage.write(3)
    stage.nodes[2].kill()
    await stage.in_sync(1)
    stage.nodes[1].cut_power()
    stage.nodes[3].start()
    await stage.look_for(6.0)
    stage.nodes[2].start()
    await stage.wait_for(lambda: stage.assigned().leader == 2, "the one that has everything does not lead")
    stage.nodes[1].start()
    await stage.in_sync(1, 2, 3)
    await stage.write(2)


async def _divergence(stage: Stage) -> None:
    """A follower has records of a leader that died which the next one never saw, and must let go of just those."""
    await stage.controlled_by(2)
    await stage.write(4)
    stage.cut_off(1, 2)  # node 3 gets what node 2 does not, and nobody commits it
    writing = stage.try_to_write()
    await stage.look_for(0.2)
    stage.nodes[1].cut_power()
    await stage.wait_for(lambda: stage.assigned().leader == 2, "node 2 does not take over")
    stage.network.heal()
    await stage.bounded(writing, _PATIENCE_S, "a write is not acknowledged after all is well")
    await stage.write(3)
    stage.nodes[1].start()
    await stage.in_sync(1, 2, 3)


async def _wiped_disk(stage: Stage) -> None:
    """A node comes back with an empty disk: it is not one of those that have everything."""
    await stage.controlled_by(2)
    await stage.write(5)
    for node in stage.nodes.values():
        node.cut_power()
    stage.nodes[1].wipe()
    for node in stage.nodes.values():
        node.start()
    await stage.wait_for(lambda: stage.assigned().leader in (2, 3), "nobody else takes over")
    await stage.in_sync(1, 2, 3)
    await stage.write(2)


async def _rolling_restart(stage: Stage) -> None:
    """Every node in turn stops in good order and comes back, while messages are written."""
    for node in stage.nodes.values():
        writing = stage.try_to_write()
        await stage.bounded(node.stop(), _PATIENCE_S, f"node {node.id} does not stop")
        await stage.bounded(writing, _PATIENCE_S, "a write is not acknowledged")
        node.start()
        await stage.in_sync(1, 2, 3)


_OF_FIVE: Final = (_last_replica_standing, _eligible_replica, _late_proposal, _late_change)
_SCRIPTS: Final = {
    "a leader never hears that a follower was taken in": _lost_grant,
    "a leader that is cut off goes on alone": _stale_leader,
    "a follower has not heard what is committed": _late_watermark,
    "a follower loses its disk while it is being taken in": _late_proposal,
    "a leader's word of who is in sync comes late": _late_change,
    "the last replica that has everything is gone for a while": _last_replica_standing,
    "one that fell out with too few left may lead, one that fell out before may not": _eligible_replica,
    "a follower has what the next leader never saw": _divergence,
    "a disk is wiped while all are down": _wiped_disk,
    "a rolling restart": _rolling_restart,
}


def _story(script: Callable[[Stage], Awaitable[None]]) -> Callable[[], None]:
    return lambda: tell(script)


STORIES: Final[dict[str, Callable[[], None]]] = {name: _story(script) for name, script in _SCRIPTS.items()}
