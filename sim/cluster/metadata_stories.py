"""Stories of damage to what a member of the quorum keeps: its node heals, and the member itself never speaks again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.consensus.commands import ReserveProducerIds
from penstock.consensus.raft.messages import Member
from sim.cluster.simulation import BrokerNode, Shape
from sim.cluster.stage import OF_FIVE, OF_THREE, PATIENCE_S, PLACE, BrokenPromise, Stage, tell

Script = Callable[[Stage], Awaitable[None]]

_PATIENT: Final = replace(OF_THREE, session_ms=6_000)


def _raft_log(node: BrokerNode) -> Path:
    [*_, path] = [path for path in node.disk.files.paths() if path.suffix == ".log" and path.parent.name == "metadata"]
    return path


def _damage(node: BrokerNode) -> None:
    """Flip a bit in the middle of what the member has acknowledged."""
    path = _raft_log(node)
    node.disk.files.flip_bit(path, node.disk.files.size(path) // 2)


def _member(node: BrokerNode) -> Member | None:
    return None if node.broker is None else node.broker.quorum.me


def _is_voter(stage: Stage, node_id: int) -> bool:
    """Whether the leader of the quorum counts a node, as the member that it is now, among the voters."""
    me = _member(stage.nodes[node_id])
    leaders = [broker.quorum for _, broker in stage.running() if broker.quorum.is_leader]
    return me is not None and any(leader.members.is_voter(me) for leader in leaders)


def _registered(stage: Stage, node_id: int) -> str:
    """The directory id under which the controller knows a node's replicas."""
    broker = stage.nodes[1].broker
    return "" if broker is None else broker.metadata.nodes[node_id].directory_id


async def _heals(stage: Stage) -> None:
    """A bit flips in the Raft log of a node that is down. It comes back by itself, and keeps its replica."""
    await stage.write(5)
    node = stage.nodes[2]
    before, end = _member(node), stage.end_of(2)
    registered = _registered(stage, 2)
    await node.stop()
    _damage(node)
    node.start()
    await stage.until(stage.not_ready, PATIENCE_S, "the node does not come back")
    if _member(node) == before:
        raise BrokenPromise("the damaged member speaks again")
    if stage.end_of(2) < end or _registered(stage, 2) != registered:
        raise BrokenPromise("the node's replica was given up with its metadata")
    await stage.wait_for(lambda: _is_voter(stage, 2), "the node does not become a voter again")
    await stage.in_sync(1, 2, 3)
    await stage.write(2)


async def _forgets(stage: Stage) -> None:
    """Nodes 1 and 2 commit what 3 does not hear of. 2 forgets it; 1 is gone when 3 comes back and wants to lead."""
    await stage.controlled_by(1)
    await stage.write(2)
    stage.cut_off(3, 1)
    await stage.order(ReserveProducerIds(node_id=1))
    stage.nodes[2].kill()
    _damage(stage.nodes[2])
    stage.nodes[2].start()
    await asyncio.sleep(0.4)  # node 1 has not missed it yet, and answers
    stage.nodes[1].kill()
    stage.network.heal()
    until_s = stage.loop.time() + 8.0
    while stage.loop.time() < until_s:
        if any(broker.quorum.is_leader for _, broker in stage.running()):
            raise BrokenPromise("a member that has forgotten what it said elects one that never heard of it")
        await asyncio.sleep(0.1)
    stage.nodes[1].start()
    await stage.until(stage.not_ready, PATIENCE_S, "the nodes do not find together again")
    await stage.wait_for(lambda: _is_voter(stage, 2), "the node does not become a voter again")
    await stage.write(2)


async def _lacks(stage: Stage) -> None:
    """All replicas go down. One comes back without its metadata and without the end of its log: it says so at once."""
    await stage.write(6)
    for node_id in (1, 2, 3):
        stage.nodes[node_id].kill()
    node = stage.nodes[2]
    _damage(node)
    files = node.disk.files
    [*_, path] = [path for path in files.paths() if path.suffix == ".log" and PLACE[0] in path.parts]
    files.open(path).truncate(files.size(path) - 1)
    node.lose()
    for node_id in (3, 2):
        stage.nodes[node_id].start()
    await stage.wait_for(lambda: stage.nodes[2].is_ready, "the node does not come back")
    found = stage.oracles.assigned_when_registered(2, PLACE)
    if 2 in (*found.in_sync, *found.eligible) and 2 not in {doubt.node_id for doubt in found.doubtful}:
        raise BrokenPromise(f"a node that has not looked at its replica vouches for it: {found}")
    stage.nodes[1].start()
    await stage.until(stage.not_ready, PATIENCE_S, "the nodes do not come back")
    await stage.in_sync(1, 2, 3)


_SHAPES: Final[dict[Script, Shape]] = {_lacks: OF_FIVE}


def _story(script: Script) -> Callable[[], None]:
    return lambda: tell(script, _SHAPES.get(script, _PATIENT))


METADATA_STORIES: Final[dict[str, Callable[[], None]]] = {
    "a bit flips in a node's Raft log": _story(_heals),
    "a voter forgets what it acknowledged": _story(_forgets),
    "a node loses its metadata and the end of its replica": _story(_lacks),
}
