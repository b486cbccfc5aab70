"""The scrub of whole nodes, on virtual time: damage that nobody reads is found, and copied anew from others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.replication.stage import Node, Stage, tell, values_of

from penstock.config.settings import ScrubSettings
from penstock.consensus.records import NO_LEADER

OFTEN = ScrubSettings(interval_ms=1_000)
SLOW = ScrubSettings(bytes_per_second=512)  # and once a day
NEVER = ScrubSettings(interval_ms=0)


async def filled(stage: Stage, scrub: ScrubSettings, *, factor: int = 3, count: int = 60, **configs: str) -> None:
    """Nodes with several sealed segments each."""
    stage.scrub = scrub
    await stage.start()
    await stage.create(factor=factor, segment_bytes="1024", **configs)
    for number in range(count):
        stage.write(b"%d " % number * 10)
        await asyncio.sleep(0.004)
    await stage.until(lambda: len(stage.acked.get(0, [])) == count)
    for node in stage.nodes.values():
        for partition in node.replicas:
            await stage.until(lambda at=partition: at.log.end_offset == count)  # type: ignore[misc]
            partition.log.sync()
            assert len(partition.log.settled_segments) > 3


def sealed_files(node: Node) -> list[Path]:
    return sorted(path for path in node.files.paths() if path.suffix == ".log" and "t" in path.parts)[:-1]


def flip(node: Node, at: int = 1) -> None:
    path = sealed_files(node)[at]
    node.files.flip_bit(path, node.files.size(path) // 2)


def cut(node: Node, at: int = 1) -> None:
    path = sealed_files(node)[at]
    node.files.open(path).truncate(node.files.size(path) // 2)


async def is_copied_anew(stage: Stage, node: Node, patience_s: float = 10.0) -> None:
    await stage.until(lambda: node.stats.scrub.damaged > 0, patience_s)
    await stage.until(lambda: node.stats.replication.truncations > 0, patience_s)
    await stage.in_sync(3)
    await stage.until(lambda: len(values_of(node.partition())) == len(stage.acked[0]), patience_s)
    assert node.partition().log.first_damage() is None
    stage.check_acked()
    stage.check_agreement()


@pytest.mark.parametrize("harm", [flip, cut])
def test_a_follower_is_copied_anew_though_nobody_reads_what_is_damaged(harm: object) -> None:
    async def story(stage: Stage) -> None:
        await filled(stage, OFTEN)
        follower = stage.followers()[0]
        harm(follower)  # type: ignore[operator]
        await is_copied_anew(stage, follower)

    tell(story)


@pytest.mark.parametrize("harm", [flip, cut])
def test_a_leader_gives_way_and_is_copied_anew(harm: object) -> None:
    async def story(stage: Stage) -> None:
        await filled(stage, OFTEN)
        leader = stage.leader()
        harm(leader)  # type: ignore[operator]
        await stage.until(lambda: stage.assigned().leader not in (leader.id, NO_LEADER), 10.0)
        await is_copied_anew(stage, leader)

    tell(story)


def test_the_only_copy_is_reported_and_stays_as_it_is() -> None:
    async def story(stage: Stage) -> None:
        await filled(stage, OFTEN, factor=1)
        node = stage.leader()
        flip(node)
        path = sealed_files(node)[1]
        on_disk = node.files.open(path).read(0, node.files.size(path))
        await stage.until(lambda: node.stats.scrub.damaged == 1, 5.0)
        await asyncio.sleep(10)
        assert node.stats.scrub.damaged == 1, "the same damage is found once"
        assert node.partition().log.corrupt_bytes
        assert node.files.open(path).read(0, node.files.size(path)) == on_disk
        assert stage.leader() is node
        stage.write(b"and work goes on")
        await stage.until(lambda: stage.acked[0][-1] == b"and work goes on")

    tell(story)


def test_a_log_that_is_cut_back_while_it_is_checked_is_checked_again() -> None:
    """The check of a log once ended for good when a follower had to cut its log, and old damage stayed unseen."""

    async def story(stage: Stage) -> None:
        await filled(stage, SLOW)
        damaged = stage.followers()[0]
        damaged.end()
        stage.fence(damaged.id)
        flip(damaged, at=3)
        damaged.open()
        await stage.settle()
        await stage.until(lambda: damaged.stats.scrub.segments == 2, 60.0)  # of those before the damaged one
        damaged.partition().log.truncate(damaged.partition().log.end_offset - 1)
        await stage.until(lambda: damaged.scrub.progress.completed_round > 0, 60.0)
        assert damaged.stats.scrub.damaged == 0, "that round did not get to it"
        await stage.admit(damaged.id)
        await is_copied_anew(stage, damaged, 60.0)

    tell(story)


def test_what_this_process_wrote_is_not_read_before_an_interval_is_over() -> None:
    async def story(stage: Stage) -> None:
        await filled(stage, ScrubSettings(interval_ms=30_000))
        follower = stage.followers()[0]
        await asyncio.sleep(20)
        assert follower.stats.scrub.bytes == 0
        assert follower.scrub.progress.completed_round > 1
        flip(follower)
        await is_copied_anew(stage, follower, 25.0)

    tell(story)


def test_a_scrub_that_is_off_reads_nothing_until_it_is_asked_to() -> None:
    async def story(stage: Stage) -> None:
        await filled(stage, NEVER)
        follower = stage.followers()[0]
        flip(follower)
        await asyncio.sleep(20)
        assert follower.stats.scrub.bytes == 0
        assert follower.life is not None
        asked = follower.life.run(follower.scrub.ask)
        await stage.until(lambda: follower.scrub.progress.completed_round >= asked, 5.0)
        await is_copied_anew(stage, follower)

    tell(story)


def test_reading_keeps_to_the_rate_and_leaves_the_active_segment_alone() -> None:
    async def story(stage: Stage) -> None:
        await filled(stage, ScrubSettings(interval_ms=0, bytes_per_second=1_024))
        node = stage.leader()
        log = node.partition().log
        sealed_bytes = sum(segment.size for segment in log.settled_segments)
        began = stage.loop.time()
        assert node.life is not None
        asked = node.life.run(node.scrub.ask)
        await stage.until(lambda: node.scrub.progress.completed_round >= asked, 60.0)
        largest = max(segment.size for segment in log.settled_segments)
        took_s = stage.loop.time() - began
        assert node.stats.scrub.bytes == sealed_bytes
        assert node.stats.scrub.segments == len(log.settled_segments)
        # A second's worth may be read at once, and the last part is waited for by nobody.
        assert took_s >= (sealed_bytes - 1_024 - largest) / 1_024
        assert took_s <= sealed_bytes / 1_024 + 1
        assert log.segments[-1].scrubbed_at is None

    tell(story)


def test_a_scrub_ends_in_the_middle_of_a_slow_round_when_the_node_stops() -> None:
    async def story(stage: Stage) -> None:
        await filled(stage, ScrubSettings(interval_ms=1_000, bytes_per_second=100))
        node = stage.leader()
        await stage.until(lambda: node.scrub.progress.is_running)
        await asyncio.sleep(2)
        began = stage.loop.time()
        assert node.life is not None
        node.life.run(node.scrub.stop)
        await stage.until(node.scrubbing.done, 1.0)
        assert stage.loop.time() - began < 0.5
        assert node.scrub.progress.is_running, "a round that was not finished does not count"

    tell(story)


def test_a_replica_that_may_still_be_elected_does_not_cut_what_it_has() -> None:
    """With too few left in sync, whoever falls out stays eligible: it was to be cut, and then led without the rest."""

    async def story(stage: Stage) -> None:
        await filled(stage, OFTEN, min_insync_replicas="2")
        leader, (damaged, other) = stage.leader(), stage.followers()
        other.end()
        stage.fence(other.id)
        assert set(stage.assigned().in_sync) == {leader.id, damaged.id}
        damaged.spindle.sync_max_s = 5.0  # or it has everything again before anything can happen
        flip(damaged)
        await stage.until(lambda: damaged.stats.replication.truncations > 0)
        leader.end()
        stage.fence(leader.id)
        await stage.settle()
        assert stage.assigned().leader == NO_LEADER, "nobody else has everything"
        damaged.spindle.sync_max_s = 0.002
        await stage.start(other.id)
        await stage.start(leader.id)
        await stage.in_sync(3)
        stage.check_acked()
        stage.check_agreement()

    tell(story)
