"""Copies that are cut, damaged, or on disks that take no writes: nothing acknowledged is lost, and work goes on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.unit.replication.stage import Node, Stage, tell, values_of

from penstock.consensus.records import NO_LEADER
from penstock.errors import DamagedRecords
from penstock.records import decode_records, iter_batches


async def three(stage: Stage, **configs: str) -> None:
    await stage.start()
    await stage.create(**configs)


async def write(stage: Stage, count: int) -> None:
    known = len(stage.acked.get(0, []))
    for number in range(count):
        stage.write(b"%d " % (known + number) * 10)
        await asyncio.sleep(0.004)
    await stage.until(lambda: len(stage.acked.get(0, [])) == known + count)


def flip_at(node: Node, part: float) -> None:
    """Flip a bit of the first file of the log that a dead node left, so far into it."""
    path = min(path for path in node.files.paths() if path.suffix == ".log" and "t" in path.parts)
    node.files.flip_bit(path, int(node.files.size(path) * part))


def flip_last(node: Node) -> None:
    path = max(path for path in node.files.paths() if path.suffix == ".log" and "t" in path.parts)
    node.files.flip_bit(path, node.files.size(path) - 5)


@pytest.mark.parametrize("seed", range(5))
def test_a_follower_damaged_at_its_end_is_not_elected_when_the_leader_dies_next(seed: int) -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        await write(stage, 20)
        leader, damaged = stage.leader(), stage.followers()[0]
        for node in stage.nodes.values():
            node.end()
        stage.fence(*stage.nodes)
        flip_last(damaged)
        await stage.start(damaged.id)
        assert stage.assigned().leader == NO_LEADER, "it may lack what the others have"
        other = next(node for node in stage.nodes.values() if node not in (leader, damaged))
        await stage.start(other.id)
        assert stage.assigned().leader == other.id
        await stage.start(leader.id)
        await stage.in_sync(3)
        stage.check_acked()
        stage.check_agreement()
        await write(stage, 3)

    tell(story, seed=seed)


@pytest.mark.parametrize("is_leader", [True, False])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_replica_that_lost_a_segment_without_a_trace_does_not_lead_and_is_copied_anew(
    which: int, is_leader: bool
) -> None:
    async def story(stage: Stage) -> None:
        await three(stage, segment_bytes="1024")
        await write(stage, 40)
        damaged = stage.leader() if is_leader else stage.followers()[0]
        for node in stage.nodes.values():
            node.end()
        stage.fence(*stage.nodes)
        found = sorted(path for path in damaged.files.paths() if path.suffix == ".log" and "t" in path.parts)
        assert len(found) > 3
        for path in (found[which], found[which].with_suffix(".index")):
            damaged.files.remove(path)
        await stage.start(damaged.id)
        assert stage.assigned().leader == NO_LEADER, "it lacks what the others have"
        await stage.start(*(node_id for node_id in stage.nodes if node_id != damaged.id))
        assert stage.assigned().leader not in {NO_LEADER, damaged.id}
        await stage.in_sync(3)
        stage.check_acked()
        stage.check_agreement()
        await write(stage, 3)

    tell(story)


@pytest.mark.parametrize("seed", range(10))
def test_all_lose_their_power_and_one_is_damaged_and_what_was_acknowledged_is_there(seed: int) -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        await write(stage, 20)
        for number in range(6):
            stage.write(b"%d perhaps" % number)
            await asyncio.sleep(0.001)
        for node in stage.nodes.values():
            node.end(keeps_unsynced=False)
        stage.fence(*stage.nodes)
        flip_at(stage.random.choice(list(stage.nodes.values())), 0.6)
        await stage.start(*stage.random.sample(sorted(stage.nodes), 3))
        await stage.in_sync(3)
        await stage.until(lambda: stage.leader().partition().is_watermark_known)
        stage.check_acked()
        stage.check_agreement()
        await write(stage, 3)

    tell(story, seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_all_come_back_torn_at_once_and_two_of_three_are_enough(seed: int) -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        await write(stage, 10)
        for node in stage.nodes.values():
            node.end()
            path = max(path for path in node.files.paths() if path.suffix == ".log" and "t" in path.parts)
            node.files.open(path).write(memoryview(b"\1" * 40))  # the beginning of a batch that nobody was told of
        stage.fence(*stage.nodes)
        first, second, last = stage.random.sample(sorted(stage.nodes), 3)
        await stage.start(first)
        assert stage.assigned().leader == NO_LEADER
        await stage.start(second)
        assert stage.assigned().leader in (first, second)
        await stage.in_sync(2)
        await write(stage, 3)
        await stage.start(last)
        await stage.in_sync(3)
        stage.check_acked()
        stage.check_agreement()

    tell(story, seed=seed)


def test_doubt_is_not_forgotten_by_a_node_that_stops_before_it_could_tell() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        await write(stage, 10)
        damaged = stage.followers()[0]
        damaged.end()
        stage.fence(damaged.id)
        flip_last(damaged)
        damaged.open()
        await stage.settle()
        assert damaged.replicas.doubtful
        damaged.end()
        damaged.open()
        await stage.settle()
        (doubt,) = damaged.replicas.doubtful
        assert doubt.end < 10
        await stage.admit(damaged.id)
        await stage.in_sync(3)
        damaged.end()
        damaged.open()
        await stage.settle()
        assert not damaged.replicas.doubtful, "it was told, and has caught up since"

    tell(story)


def test_a_leader_that_is_found_damaged_gives_way_and_is_copied_anew() -> None:
    async def story(stage: Stage) -> None:
        await three(stage, segment_bytes="1024")
        await write(stage, 40)
        leader = stage.leader()
        leader.end()
        flip_at(leader, 0.5)
        await stage.start(leader.id)
        await stage.until(lambda: stage.assigned().leader != NO_LEADER)
        await stage.until(lambda: leader.stats.replication.truncations > 0)
        await stage.in_sync(3)
        assert leader.partition().log.corrupt_bytes == 0
        assert values_of(leader.partition()) == values_of(stage.leader().partition())
        assert len(values_of(leader.partition())) == 40
        await write(stage, 3)

    tell(story)


def test_damage_to_a_leader_s_files_while_it_runs_has_somebody_else_lead() -> None:
    async def story(stage: Stage) -> None:
        await three(stage, segment_bytes="1024")
        await write(stage, 40)
        leader = stage.leader()
        flip_at(leader, 0.5)
        leader.partition().log.read(0, 1 << 20, 40)  # somebody meets it
        await stage.until(lambda: stage.assigned().leader != leader.id, 2.0)
        await stage.until(lambda: not leader.partition().log.corrupt_bytes)
        await stage.in_sync(3)
        assert len(values_of(leader.partition())) == 40
        stage.check_agreement()

    tell(story)


def test_old_damage_is_found_before_the_others_are_gone() -> None:
    """One bit of a closed segment flips while its node is down. Later the others get empty disks, one by one."""

    async def story(stage: Stage) -> None:
        await three(stage, segment_bytes="1024")
        await write(stage, 60)
        damaged, *others = stage.followers()[0], stage.followers()[1], stage.leader()
        damaged.end()
        stage.fence(damaged.id)
        flip_at(damaged, 0.3)
        await stage.start(damaged.id)
        await asyncio.sleep(3)
        await stage.in_sync(3)
        for node in others:
            node.end()
            node.wipe()
            stage.fence(node.id)
            await stage.start(node.id)
            await stage.in_sync(3)
        stage.check_acked()
        assert all(len(values_of(node.partition())) == 60 for node in stage.nodes.values())

    tell(story)


def test_a_follower_that_has_less_than_it_said_is_dropped_at_once() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        await write(stage, 10)
        cut = stage.followers()[0]
        partition = cut.partition()
        assert cut.life is not None
        cut.life.run(lambda: cut.replication.leave(partition))
        partition.log.truncate(4)
        partition.on_truncated()
        cut.spindle.sync_max_s = 5.0  # or it has everything again before anybody could notice
        cut.life.run(lambda: cut.replication.follow(partition, stage.leader().id))
        await stage.until(lambda: cut.id not in stage.assigned().in_sync, 0.2)
        await stage.in_sync(3)
        assert len(values_of(partition)) == 10

    tell(story, replica_lag_ms=10_000)


def test_a_follower_whose_disk_is_full_holds_nobody_up() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        await write(stage, 2)
        full = stage.followers()[0]
        full.files.capacity_bytes = full.files.used_bytes
        began = stage.loop.time()
        await write(stage, 5)
        assert stage.loop.time() - began < 0.5
        assert full.id not in stage.assigned().in_sync
        assert full.replicas.disk.is_unable
        await asyncio.sleep(3)
        assert full.id not in stage.assigned().in_sync, "it does not come back before it can write"
        full.files.capacity_bytes = None
        await stage.until(lambda: full.id in stage.assigned().in_sync, 2.5)
        assert not full.replicas.disk.is_unable

    tell(story, replica_lag_ms=10_000)


@pytest.mark.parametrize("room", range(1, 34, 4))
def test_a_follower_that_begins_anew_on_a_full_disk_does_so_when_there_is_space(room: int) -> None:
    """However far it gets before the disk refuses something."""

    async def story(stage: Stage) -> None:
        await three(stage, segment_bytes="1024")
        await write(stage, 40)
        full = stage.followers()[0]
        full.end()
        full.wipe()
        stage.fence(full.id)
        await stage.settle()
        leader = stage.leader().partition()
        leader.log.delete_files(leader.log.trim(25))
        full.open()
        await stage.settle()
        full.files.capacity_bytes = full.files.used_bytes + room
        await stage.admit(full.id)
        await asyncio.sleep(3)
        assert full.id not in stage.assigned().in_sync
        full.files.capacity_bytes = None
        await stage.in_sync(3)
        assert full.partition().log.start_offset == 25
        assert values_of(full.partition()) == values_of(leader)
        await write(stage, 3)

    tell(story)


def test_a_follower_whose_sync_fails_holds_nobody_up() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        await write(stage, 2)
        broken = stage.followers()[0]
        broken.files.is_failing_syncs = True
        began = stage.loop.time()
        await write(stage, 5)
        assert stage.loop.time() - began < 0.5
        assert broken.id not in stage.assigned().in_sync
        assert broken.replicas.disk.is_unable

    tell(story, replica_lag_ms=10_000)


def test_a_dead_follower_that_lagged_does_not_come_back_by_what_it_said_before() -> None:
    async def story(stage: Stage) -> None:
        await three(stage, min_insync_replicas="3")
        await write(stage, 2)
        dead = stage.followers()[0]
        dead.end()
        stage.write(b"waits")
        await stage.until(lambda: dead.id not in stage.assigned().in_sync)
        for _ in range(50):
            await asyncio.sleep(0.1)
            assert dead.id not in stage.assigned().in_sync

    tell(story)


def flip_epoch(node: Node, bit: int, *, batch: int = -1) -> None:
    """Flip a bit of the leader epoch of a batch that a dead node left, the last one unless another is named."""
    path = max(path for path in node.files.paths() if path.suffix == ".log" and "t" in path.parts)
    data = node.files.open(path).read(0, node.files.size(path))
    positions = [position for position, _ in iter_batches(memoryview(data))]
    node.files.flip_bit(path, positions[batch] + 15 - bit // 8, bit % 8)


@pytest.mark.parametrize("bit", [0, 1, 3, 20, 31])
@pytest.mark.parametrize("batch", [-1, -2, 0])
def test_a_follower_whose_leader_epochs_are_damaged_copies_them_again(bit: int, batch: int) -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        await write(stage, 10)
        damaged = stage.followers()[0]
        damaged.end()
        stage.fence(damaged.id)
        flip_epoch(damaged, bit, batch=batch)
        await stage.start(damaged.id)
        await stage.in_sync(3)
        stage.check_acked()
        stage.check_agreement()
        await write(stage, 3)
        stage.check_agreement()

    tell(story)


@pytest.mark.parametrize("bit", [0, 1, 3, 20, 31])
@pytest.mark.parametrize("batch", [-1, -2, 0])
def test_a_leader_whose_leader_epochs_are_damaged_gives_way(bit: int, batch: int) -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        await write(stage, 10)
        leader = stage.leader()
        for node in stage.nodes.values():
            node.end()
        stage.fence(*stage.nodes)
        flip_epoch(leader, bit, batch=batch)
        first, second = (node_id for node_id in sorted(stage.nodes) if node_id != leader.id)
        await stage.start(leader.id)
        await stage.start(first)
        await stage.start(second)
        await stage.in_sync(3)
        await stage.until(lambda: stage.leader().partition().is_watermark_known)
        stage.check_acked()
        await write(stage, 3)
        stage.check_agreement()

    tell(story)


@pytest.mark.parametrize("bit", [0, 3, 20, 31])
@pytest.mark.parametrize("batch", [-1, -2, 0])
def test_the_only_copy_keeps_its_records_when_leader_epochs_are_damaged(bit: int, batch: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.start()
        await stage.create(factor=1)
        await write(stage, 10)
        node = stage.leader()
        node.end()
        stage.fence(node.id)
        flip_epoch(node, bit, batch=batch)
        await stage.start(node.id)
        await write(stage, 3)
        stage.check_acked()
        await asyncio.sleep(2)
        node.end()
        stage.fence(node.id)
        await stage.start(node.id)
        assert node.partition().log.first_damage() is None
        assert node.partition().log.epochs.latest < 100
        await write(stage, 3)
        stage.check_acked()

    tell(story)


def read_to_the_end(node: Node) -> list[bytes]:
    """What a consumer of a node gets that asks again wherever it is refused for now."""
    partition, found, offset = node.partition(), [], 0
    while (piece := partition.read(offset, 1 << 20)) is not None:
        data = memoryview(piece.read())
        for position, header in iter_batches(data):
            found += [record.value or b"" for record in decode_records(data[position : position + header.size])]
            offset = header.next_offset
    return found


def test_a_damaged_leader_serves_nothing_behind_the_damage_before_it_gives_way() -> None:
    async def story(stage: Stage) -> None:
        await three(stage, segment_bytes="1024")
        await write(stage, 40)
        leader = stage.leader()
        flip_at(leader, 0.5)
        with pytest.raises(DamagedRecords):
            read_to_the_end(leader)
        await stage.until(lambda: stage.assigned().leader not in {leader.id, NO_LEADER}, 5.0)
        assert len(read_to_the_end(stage.leader())) == 40
        await stage.in_sync(3)
        assert len(read_to_the_end(leader)) == 40
        assert not stage.assigned().lost

    tell(story)


def test_a_leader_damaged_while_it_was_down_serves_no_gap_when_it_leads_again() -> None:
    """The others come back later: it may lead for a moment, and must not answer wrongly in it."""

    async def story(stage: Stage) -> None:
        await three(stage, segment_bytes="1024")
        await write(stage, 40)
        leader = stage.leader()
        for node in stage.nodes.values():
            node.end()
        stage.fence(*stage.nodes)
        flip_at(leader, 0.5)
        await stage.start(leader.id)
        for node in stage.nodes.values():
            if node is not leader:
                await stage.start(node.id)
        for node in stage.nodes.values():
            if node.partition().is_leader:
                with contextlib.suppress(DamagedRecords):
                    found = read_to_the_end(node)
                    assert found == [b"%d " % number * 10 for number in range(len(found))]
        await stage.until(lambda: stage.assigned().leader not in {leader.id, NO_LEADER})
        await stage.in_sync(3)
        assert all(len(read_to_the_end(node)) == 40 for node in stage.nodes.values())

    tell(story)


def test_what_was_damaged_on_every_replica_is_reported_as_lost_and_gone_past() -> None:
    async def story(stage: Stage) -> None:
        await three(stage, segment_bytes="1024")
        await write(stage, 40)
        for node in stage.nodes.values():
            flip_at(node, 0.5)
        for node in stage.nodes.values():
            with pytest.raises(DamagedRecords):
                read_to_the_end(node)
        await stage.until(lambda: bool(stage.assigned().lost), 60.0)
        await stage.in_sync(3)
        (lost,) = stage.assigned().lost
        left = 40 - (lost.next_offset - lost.first_offset)
        assert 30 < left < 40
        await stage.until(lambda: all(len(node.partition().log.lost) == 1 for node in stage.nodes.values()))
        assert all(len(read_to_the_end(node)) == left for node in stage.nodes.values())
        await write(stage, 3)
        assert len(read_to_the_end(stage.leader())) == left + 3

    tell(story)


def test_losses_are_forgotten_with_the_records_around_them() -> None:
    async def story(stage: Stage) -> None:
        await stage.start()
        await stage.create(factor=1, segment_bytes="1024")
        await write(stage, 40)
        node = stage.leader()
        flip_at(node, 0.5)
        with pytest.raises(DamagedRecords):
            read_to_the_end(node)
        await stage.until(lambda: bool(stage.assigned().lost), 10.0)
        await stage.until(lambda: bool(node.partition().log.lost), 10.0)
        assert 30 < len(read_to_the_end(node)) < 40
        node.partition().log.trim(stage.assigned().lost[0].next_offset)
        await stage.until(lambda: not stage.assigned().lost, 10.0)

    tell(story)
