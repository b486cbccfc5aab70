"""Stories of whole clusters: the order of events in which a missing rule loses something, told step by step.

A story raises `BrokenPromise` if an oracle was proved wrong in it, or if the cluster does not come right at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from penstock.consensus.commands import DrainNode, ElectLeaders, Move, Outcomes, Reassign
from penstock.consensus.quorum.wire import RAFT_MESSAGE, Submitted
from penstock.consensus.records import PartitionAssigned
from penstock.partitions.replication.messages import FETCH
from sim.cluster.lane_stories import LANE_STORIES
from sim.cluster.metadata_stories import METADATA_STORIES
from sim.cluster.queue_stories import QUEUE_STORIES
from sim.cluster.schedule_stories import SCHEDULE_STORIES
from sim.cluster.scrub_stories import SCRUB_STORIES
from sim.cluster.simulation import Shape
from sim.cluster.stage import (
    OF_FIVE,
    OF_THREE,
    OF_TWO,
    PATIENCE_S,
    PATIENT,
    PLACE,
    BrokenPromise,
    Stage,
    tell,
)

__all__ = ["STORIES", "BrokenPromise"]

Script = Callable[[Stage], Awaitable[None]]


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
    await stage.bounded(writing, PATIENCE_S, "a write is not acknowledged")
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
    await stage.bounded(writing, PATIENCE_S, "a write is not acknowledged after all is well")


async def _lost_answer(stage: Stage) -> None:
    """The same, where a silent leader is missed so late that it gives up waiting first, and goes on leading."""
    await _lost_grant(stage)


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
    await stage.bounded(more, PATIENCE_S, "a write is not acknowledged after all is well")
    stage.nodes[1].start()
    await stage.in_sync(1, 2, 3)


async def _late_proposal(stage: Stage) -> None:
    """A follower loses its disk while the word of its leader, that it is in sync, is on its way."""
    await stage.controlled_by(4)
    stage.cut_off(3, 1)
    writing = stage.try_to_write()
    await stage.in_sync(1, 2)
    await stage.bounded(writing, PATIENCE_S, "a write is not acknowledged")
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
    await stage.bounded(writing, PATIENCE_S, "a write is not acknowledged")
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
    await stage.bounded(lonely, PATIENCE_S, "a write is not acknowledged after all is well")
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
    await stage.bounded(writing, PATIENCE_S, "a write is not acknowledged after all is well")
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
        await stage.bounded(node.stop(), PATIENCE_S, f"node {node.id} does not stop")
        await stage.bounded(writing, PATIENCE_S, "a write is not acknowledged")
        node.start()
        await stage.in_sync(1, 2, 3)


async def _wiped_alone(stage: Stage) -> None:
    """Both replicas are gone, and the first to come back has an empty disk. It may not lead, whatever it was before."""
    await stage.controlled_by(4)
    await stage.write(4)
    for node_id in (1, 2):
        stage.nodes[node_id].cut_power()
    await stage.wait_for(lambda: not stage.is_let_in(1) and not stage.is_let_in(2), "nobody misses the two")
    stage.nodes[2].wipe()
    stage.nodes[2].start()
    await stage.wait_for(lambda: stage.is_let_in(2), "node 2 is not let in again")
    await stage.look_for(2.0)
    stage.nodes[1].start()
    await stage.wait_for(lambda: stage.assigned().leader == 1, "the one that has everything does not lead")
    await stage.in_sync(1, 2)
    await stage.write(2)


async def _slow_move(stage: Stage) -> None:
    """Replicas are to move where they cannot be copied to yet: those that have everything stay until others do."""
    await stage.controlled_by(2)
    await stage.write(4)
    for node_id in (4, 5):
        stage.cut_off(node_id, 1)  # from the leader: they know of the move, and cannot copy
    await stage.order(Reassign(moves=(Move(topic=PLACE[0], partition=PLACE[1], replicas=(1, 4, 5)),)))
    await stage.look_for(1.5)
    await stage.write(2)
    stage.network.heal()
    await stage.in_sync(1, 4, 5)
    await stage.write(2)


async def _late_parting(stage: Stage) -> None:
    """A leader's word of where histories part is long on its way, and arrives when the follower follows it again."""
    await stage.controlled_by(4)
    await stage.write(4)
    stage.cut_off(1, 2)  # node 3 gets what node 2 does not, and nobody commits it
    lonely = stage.try_to_write()
    await stage.wait_for(lambda: stage.end_of(3) > stage.end_of(2), "node 3 does not get it")
    stage.nodes[1].kill()
    stage.network.weather.patience_max_s = 600.0  # what waits from now on is not given up

    def on_frame(sender: int, receiver: int, frame: bytes) -> None:
        stage.history.carry(sender, receiver, frame)
        if (sender, receiver) == (3, 2) and FETCH.name.encode() in frame:
            stage.network.on_frame = stage.history.carry
            stage.network.cut(2, 3)  # it has asked, and is not answered

    stage.network.on_frame = on_frame
    await stage.wait_for(lambda: stage.assigned().leader == 2, "node 2 does not take over")
    stage.network.mend(1, 2)
    stage.nodes[1].start()
    await stage.in_sync(1, 2)
    await stage.bounded(lonely, PATIENCE_S, "a write is not acknowledged")
    await stage.write(3)
    await stage.order(ElectLeaders(partitions=None))
    await stage.led_by(1)
    await stage.in_sync(1, 2, 3)
    await stage.write(3)
    await stage.order(DrainNode(node_id=1, is_draining=True, with_replicas=False))
    await stage.led_by(2)
    await stage.wait_for(lambda: stage.follows(3) == 2, "node 3 does not follow node 2")
    stage.network.heal()
    await stage.look_for(0.5)
    await stage.order(DrainNode(node_id=1, is_draining=False, with_replicas=False))
    await stage.in_sync(1, 2, 3)
    await stage.write(2)


_SHAPES: Final[dict[Script, Shape]] = {
    **dict.fromkeys((_last_replica_standing, _eligible_replica, _late_proposal, _late_change), OF_FIVE),
    **dict.fromkeys((_slow_move, _late_parting), OF_FIVE),
    _wiped_alone: OF_TWO,
    _lost_answer: PATIENT,
}
_SCRIPTS: Final = {
    "a leader never hears that a follower was taken in": _lost_grant,
    "a leader gives up waiting to hear whether a follower was taken in": _lost_answer,
    "a leader that is cut off goes on alone": _stale_leader,
    "a follower has not heard what is committed": _late_watermark,
    "a follower loses its disk while it is being taken in": _late_proposal,
    "a leader's word of who is in sync comes late": _late_change,
    "the last replica that has everything is gone for a while": _last_replica_standing,
    "one that fell out with too few left may lead, one that fell out before may not": _eligible_replica,
    "a follower has what the next leader never saw": _divergence,
    "a disk is wiped while all are down": _wiped_disk,
    "the first to come back has lost its disk": _wiped_alone,
    "replicas move to where they cannot be copied": _slow_move,
    "a leader's word of where histories part comes late": _late_parting,
    "a rolling restart": _rolling_restart,
}


def _story(script: Script) -> Callable[[], None]:
    return lambda: tell(script, _SHAPES.get(script, OF_THREE))


STORIES: Final[dict[str, Callable[[], None]]] = {
    **{name: _story(script) for name, script in _SCRIPTS.items()},
    **QUEUE_STORIES,
    **LANE_STORIES,
    **SCRUB_STORIES,
    **METADATA_STORIES,
    **SCHEDULE_STORIES,
}
