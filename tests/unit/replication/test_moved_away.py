"""A replica that moved away and comes back begins empty, and that is no loss of records."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest
from tests.unit.replication.stage import Node, Stage, tell

LOST = "records are lost here"


async def write(stage: Stage, count: int) -> None:
    for number in range(count):
        stage.write(b"%d" % number)
    await stage.until(lambda: len(stage.acked.get(0, [])) == count)


async def let_watermarks_be_saved(stage: Stage) -> None:
    """They are noted every few seconds."""
    await asyncio.sleep(30)


def move(stage: Stage, node: Node, *, is_here: bool) -> None:
    """Decide that a follower holds the partition no more, or again, as a reassignment does in the end."""
    assigned = stage.assigned()
    others = tuple(each for each in assigned.replicas if each != node.id)
    stage.commit(
        [
            msgspec.structs.replace(
                assigned,
                replicas=(*others, node.id) if is_here else others,
                in_sync=tuple(each for each in assigned.in_sync if each != node.id),
                partition_epoch=assigned.partition_epoch + 1,
            )
        ]
    )


async def prepared(stage: Stage) -> Node:
    """A follower that has noted how much of the partition is committed."""
    await stage.start()
    await stage.create()
    await write(stage, 5)
    await stage.in_sync(3)
    await let_watermarks_be_saved(stage)
    return stage.followers()[0]


def test_a_node_that_dies_after_its_replica_moved_away_takes_it_back_without_an_alarm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(stage: Stage) -> None:
        follower = await prepared(stage)
        move(stage, follower, is_here=False)
        await stage.settle()
        follower.end()  # before the next time that it notes what is committed
        stage.fence(follower.id)
        move(stage, follower, is_here=True)
        await stage.start(follower.id)
        assert follower.replicas.doubtful == ()
        await stage.in_sync(3)
        stage.check_agreement()

    with caplog.at_level(logging.ERROR):
        tell(story)
    assert LOST not in caplog.text


def test_a_node_whose_replica_moved_away_while_it_was_down_takes_it_back_without_an_alarm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(stage: Stage) -> None:
        follower = await prepared(stage)
        follower.end()
        stage.fence(follower.id)
        for path in [path for path in follower.files.paths() if "logs" in path.parts]:
            follower.files.remove(path)  # as a node of an older version leaves it, which kept the line alone
        move(stage, follower, is_here=False)
        await stage.start(follower.id)
        move(stage, follower, is_here=True)
        await stage.settle()
        await stage.in_sync(3)
        stage.check_agreement()

    with caplog.at_level(logging.ERROR):
        tell(story)
    assert LOST not in caplog.text


def test_a_node_whose_log_is_gone_without_having_moved_still_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def story(stage: Stage) -> None:
        follower = await prepared(stage)
        follower.end()
        stage.fence(follower.id)
        for path in [path for path in follower.files.paths() if "logs" in path.parts]:
            follower.files.remove(path)
        await stage.start(follower.id)
        await stage.in_sync(3)

    with caplog.at_level(logging.ERROR):
        tell(story)
    assert LOST in caplog.text
