"""Stories of damage that nobody reads: it has to be found while others still have the records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.broker.broker import Broker
from penstock.config.settings import ScrubSettings
from penstock.consensus.records import PartitionAssigned
from penstock.consensus.topic_config import TopicSettings
from penstock.errors import PenstockError
from penstock.partitions.replication.messages import Fetched
from penstock.records import iter_batches
from penstock.storage.config import LogConfig
from sim.cluster.simulation import Shape
from sim.cluster.stage import OF_THREE, PATIENCE_S, PLACE, BrokenPromise, Stage, tell
from sim.cluster.world import Unreachable

Script = Callable[[Stage], Awaitable[None]]

_SHAPE: Final = replace(
    OF_THREE,
    topic_defaults=TopicSettings(log=LogConfig(segment_bytes=600)),
    scrub=ScrubSettings(interval_ms=2_000),
)
_SHAPE_OF_FIVE: Final = replace(_SHAPE, nodes=5, session_ms=6_000)
_SEGMENTS_MIN: Final = 4


def _files(stage: Stage, node_id: int) -> list[Path]:
    """The files of the partition on a node's disk."""
    return [
        path for path in stage.nodes[node_id].disk.files.paths() if path.suffix == ".log" and PLACE[0] in path.parts
    ]


def _sealed(stage: Stage, node_id: int) -> list[Path]:
    """All but the one that is written."""
    return _files(stage, node_id)[:-1]


def _content(stage: Stage, node_id: int) -> bytes:
    files = stage.nodes[node_id].disk.files
    return b"".join(files.open(path).read(0, files.size(path)) for path in _sealed(stage, node_id))


async def _fill(stage: Stage) -> None:
    """Write until there are sealed segments everywhere, and leave it at that."""
    while any(len(_sealed(stage, node_id)) < _SEGMENTS_MIN for node_id in (1, 2, 3)):
        await stage.write()
    await asyncio.sleep(2.0)  # they are synced and indexed by then


async def _is_copied_anew(stage: Stage, damaged: int, sound: int) -> None:
    good = _content(stage, sound)
    await stage.wait_for(
        lambda: _content(stage, damaged).startswith(good), f"what is damaged on node {damaged} is not copied anew"
    )
    await stage.in_sync(1, 2, 3)


async def _rot(stage: Stage) -> None:
    """A bit flips in an old segment of a follower, later in one of the leader. Nobody reads either."""
    await _fill(stage)
    for node_id, sound in ((2, 3), (1, 3)):
        path = _sealed(stage, node_id)[1]
        files = stage.nodes[node_id].disk.files
        files.flip_bit(path, files.size(path) // 2)
        await _is_copied_anew(stage, node_id, sound)
    await stage.write(2)


async def _met(stage: Stage) -> None:
    """A bit flips in an old segment of the leader, and a consumer reads it before anything else does."""
    await _fill(stage)
    end = stage.end_of(1)
    path, files = _sealed(stage, 1)[1], stage.nodes[1].disk.files
    files.flip_bit(path, files.size(path) // 2)
    await stage.bounded(_read_all(stage, end), PATIENCE_S, "a consumer does not get to the end")
    await _is_copied_anew(stage, 1, 3)


async def _read_all(stage: Stage, end: int) -> None:
    """Read as a consumer does, from whichever node leads, and miss nothing."""
    position = 0

    async def fetch(broker: Broker) -> bytes | None:
        partition = broker.partition(*PLACE)
        partition.check_leader()
        found = partition.read(position, 1 << 20)
        return None if found is None else found.read()

    while position < end:
        try:
            data = await stage.nodes[stage.assigned().leader].ask(fetch)
        except (PenstockError, Unreachable):
            data = None
        if data is None:
            await asyncio.sleep(0.1)
            continue
        for _, header in iter_batches(data):
            if header.base_offset > position:
                raise BrokenPromise(f"a consumer got offset {header.base_offset} where {position} was due")
            position = header.next_offset


async def _cut(stage: Stage) -> None:
    """An old segment of a follower is cut where a batch ends, so that what is left of it looks whole."""
    await _fill(stage)
    path = _sealed(stage, 2)[1]
    file = stage.nodes[2].disk.files.open(path)
    file.truncate(12 + int.from_bytes(file.read(8, 4), "big"))
    await _is_copied_anew(stage, 2, 3)
    stage.nodes[2].kill()
    file = stage.nodes[2].disk.files.open(_sealed(stage, 2)[-1])
    file.truncate(12 + int.from_bytes(file.read(8, 4), "big"))
    stage.nodes[2].start()
    await _is_copied_anew(stage, 2, 3)
    await stage.write(2)


def _has_batches(way: tuple[int, int], _method: str, said: object) -> bool:
    return way == (1, 2) and isinstance(said, Fetched) and any(news.size for news in said.news)


async def _few(stage: Stage) -> None:
    """A follower is found damaged where too few are left to do without it, and its leader dies as soon as it is cut."""
    await stage.controlled_by(4)
    await _fill(stage)
    stage.nodes[3].kill()
    await stage.in_sync(1, 2)
    path = _sealed(stage, 2)[1]
    files = stage.nodes[2].disk.files
    end = stage.end_of(2)

    def on_assigned(assigned: PartitionAssigned) -> None:
        if set(assigned.in_sync) == {1}:
            stage.oracles.on_assigned = None
            stage.network.swallows = _has_batches  # so that it does not have everything again at once

    stage.oracles.on_assigned = on_assigned
    files.flip_bit(path, files.size(path) // 2)
    await stage.wait_for(lambda: stage.end_of(2) < end, "what is damaged on node 2 is not cut")
    stage.nodes[1].kill()
    await stage.wait_for(lambda: not stage.is_let_in(1), "nobody misses node 1")
    await stage.look_for(2.0)
    stage.network.heal()
    for node_id in (1, 3):
        stage.nodes[node_id].start()
    await stage.in_sync(1, 2, 3)
    await stage.write(2)


async def _late(stage: Stage) -> None:
    """A follower is found damaged while its leader's word, that it has everything, is on its way."""
    await stage.controlled_by(4)
    await _fill(stage)
    stage.cut_off(3, 1)
    writing = stage.try_to_write()
    await stage.in_sync(1, 2)
    await stage.bounded(writing, PATIENCE_S, "a write is not acknowledged")
    stage.network.weather.patience_max_s = 600.0  # what waits is not given up
    stage.network.cut(1, 4)
    stage.network.mend(3, 1)
    await stage.wait_for(lambda: 3 in stage.maximal(), "the leader does not want to take node 3 in")
    stage.network.cut(1, 3)  # so that it cannot have everything again at once
    path, files = _sealed(stage, 3)[1], stage.nodes[3].disk.files
    files.flip_bit(path, files.size(path) // 2)
    await stage.look_for(2.5)  # it is found
    stage.network.mend(1, 4)
    await stage.look_for(0.5)
    stage.network.heal()
    await _is_copied_anew(stage, 3, 2)
    await stage.write(2)


async def _misplaced(stage: Stage) -> None:
    """The power fails everywhere, and a bit flips in the offset of a leader's last batch: it looks like a gap."""
    await stage.write(6)
    await asyncio.sleep(1.0)
    for node in stage.nodes.values():
        node.cut_power()
    files, path = stage.nodes[1].disk.files, _files(stage, 1)[-1]
    *_, (position, header) = iter_batches(files.open(path).read(0, files.size(path)))
    files.flip_bit(path, position + 5)
    for node in stage.nodes.values():
        node.start()
    await stage.until(stage.not_ready, PATIENCE_S, "the nodes do not come back")
    await stage.in_sync(1, 2, 3)
    await stage.wait_for(lambda: stage.end_of(1) == header.next_offset, "its last batch is not copied anew")
    await stage.write(2)


_SHAPES: Final[dict[Script, Shape]] = {_few: _SHAPE_OF_FIVE, _late: _SHAPE_OF_FIVE, _misplaced: OF_THREE}


def _story(script: Script) -> Callable[[], None]:
    return lambda: tell(script, _SHAPES.get(script, _SHAPE))


SCRUB_STORIES: Final[dict[str, Callable[[], None]]] = {
    "a bit of an old segment flips, and nobody reads it": _story(_rot),
    "a bit of an old segment flips, and a consumer reads it": _story(_met),
    "an old segment is cut where a batch ends": _story(_cut),
    "a follower is damaged where too few are left": _story(_few),
    "a follower is damaged while it is being taken in": _story(_late),
    "the offset of a leader's last batch is damaged": _story(_misplaced),
}
