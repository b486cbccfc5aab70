"""Stories of damage that nobody reads: it has to be found while others still have the records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.broker.config import ScrubConfig
from penstock.cluster.records import PartitionAssigned
from penstock.cluster.topic_config import TopicSettings
from penstock.storage.config import LogConfig
from penstock.testing.simulation.cluster.stage import OF_THREE, PLACE, Stage, tell

Script = Callable[[Stage], Awaitable[None]]

_SHAPE: Final = replace(
    OF_THREE,
    topic_defaults=TopicSettings(log=LogConfig(segment_bytes=600)),
    scrub=ScrubConfig(interval_ms=2_000),
)
_SEGMENTS_MIN: Final = 4


def _sealed(stage: Stage, node_id: int) -> list[Path]:
    """The files of the partition on a node's disk, without the one that is written."""
    found = [
        path for path in stage.nodes[node_id].disk.files.paths() if path.suffix == ".log" and PLACE[0] in path.parts
    ]
    return found[:-1]


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
            stage.network.cut(1, 2)  # so that it does not have everything again at once

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


def _story(script: Script) -> Callable[[], None]:
    return lambda: tell(script, replace(_SHAPE, nodes=5, session_ms=6_000) if script is _few else _SHAPE)


SCRUB_STORIES: Final[dict[str, Callable[[], None]]] = {
    "a bit of an old segment flips, and nobody reads it": _story(_rot),
    "an old segment is cut where a batch ends": _story(_cut),
    "a follower is damaged where too few are left": _story(_few),
}
