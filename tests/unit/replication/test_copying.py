"""Replication between nodes: what is written to a leader is copied, committed and survives whoever goes."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.replication.stage import TOPIC, Stage, tell, values_of

from penstock.config.settings import Fsync
from penstock.consensus.commands import ConfigureTopic, DeleteTopic, Move, Reassign
from penstock.consensus.records import NO_LEADER
from penstock.errors import DamagedRecords, NotEnoughReplicas, NotLeader
from penstock.partitions.replication.fetcher import Fetcher


async def three(stage: Stage, **configs: str) -> None:
    await stage.start()
    await stage.create(**configs)


def test_what_is_written_is_copied_to_all_and_then_acknowledged() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        for number in range(20):
            stage.write(b"%d" % number)
            await asyncio.sleep(0.003)
        await stage.until(lambda: len(stage.acked.get(0, [])) == 20)
        for node in stage.nodes.values():
            assert len(values_of(node.partition())) == 20
            assert node.partition().log.durable_offset == 20
        await stage.until(lambda: all(node.partition().high_watermark == 20 for node in stage.nodes.values()))

    tell(story)


def test_an_acknowledgement_takes_no_longer_than_the_way_and_the_syncs() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        await asyncio.sleep(2)
        began = stage.loop.time()
        stage.write(b"x")
        while not stage.acked:  # noqa: ASYNC110
            await asyncio.sleep(0.0005)
        assert stage.loop.time() - began < 0.02

    tell(story)


def test_nothing_is_committed_that_a_replica_in_sync_lacks() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        slow = stage.followers()[0]
        stage.exchange.cut(stage.leader().id, slow.id)
        stage.write(b"x")
        await asyncio.sleep(1)
        assert stage.leader().partition().high_watermark == 0
        assert not stage.acked
        await stage.in_sync(2)
        await asyncio.sleep(0.1)
        assert stage.acked == {0: [b"x"]}
        assert stage.leader().stats.replication.shrinks == 1

    tell(story)


def test_a_follower_that_received_and_did_not_sync_does_not_count() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        slow = stage.followers()[0]
        slow.spindle.sync_max_s = 1.0
        stage.write(b"x")
        await asyncio.sleep(0.05)
        assert values_of(slow.partition()) == [b"x"]
        has_synced = slow.partition().log.durable_offset == 1
        assert has_synced == bool(stage.acked)
        await stage.until(lambda: bool(stage.acked))
        assert slow.partition().log.durable_offset == 1

    for seed in range(5):
        tell(story, seed=seed)


def test_without_fsync_a_copy_counts_when_it_is_written() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        for node in stage.nodes.values():
            node.spindle.sync_max_s = 100.0
        stage.write(b"x")
        await stage.until(lambda: bool(stage.acked), patience_s=1)

    tell(story, fsync=Fsync.NONE)


def test_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        for number in range(50):
            stage.write(b"%d" % number)
            await asyncio.sleep(0.001)
        old = stage.leader()
        old.end(keeps_unsynced=False)
        stage.fence(old.id)
        await stage.settle()
        assert stage.leader() is not old
        stage.write(b"after")
        await stage.until(lambda: b"after" in stage.acked[0])
        stage.check_acked()
        await stage.start(old.id)
        await stage.in_sync(3)
        stage.check_agreement()
        assert values_of(old.partition()) == values_of(stage.leader().partition())

    for seed in range(10):
        tell(story, seed=seed)


def test_a_wiped_node_gets_everything_again_and_joins() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        for number in range(30):
            stage.write(b"%d" % number)
        await asyncio.sleep(0.1)
        lost = stage.followers()[0]
        lost.end()
        lost.wipe()
        stage.fence(lost.id)
        for number in range(30, 60):
            stage.write(b"%d" % number)
        await asyncio.sleep(0.1)
        await stage.start(lost.id)
        await stage.in_sync(3)
        assert values_of(lost.partition()) == [b"%d" % number for number in range(60)]
        stage.check_acked()

    tell(story)


def test_a_busy_leader_takes_a_follower_in_that_is_always_a_moment_behind() -> None:
    async def story(stage: Stage) -> None:
        await three(stage, min_insync_replicas="1")
        lost = stage.followers()
        for node in lost:
            node.end()
            stage.fence(node.id)
        await stage.settle()
        is_over = False

        async def produce() -> None:
            while not is_over:
                stage.write(b"x" * 100, is_all=False)
                await asyncio.sleep(0.0003)

        producing = asyncio.ensure_future(produce())
        await asyncio.sleep(0.5)
        await stage.start(*(node.id for node in lost))
        await stage.in_sync(3)
        is_over = True
        await producing

    tell(story)


def test_below_min_insync_replicas_nothing_is_acknowledged_and_the_watermark_stands_still() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        for node in stage.followers():
            node.end()
            stage.fence(node.id)
        await stage.settle()
        leader = stage.leader().partition()
        with pytest.raises(NotEnoughReplicas):
            stage.write(b"x")
        stage.write(b"y", is_all=False)
        await asyncio.sleep(1)
        assert (leader.log.end_offset, leader.high_watermark) == (1, 0)
        (one, _) = stage.followers()
        await stage.start(one.id)
        await stage.in_sync(2)
        await stage.until(lambda: leader.high_watermark == 1)

    tell(story)


def test_a_node_that_lost_the_quorum_promises_nothing() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        stage.leader().replicas.is_isolated = True
        with pytest.raises(NotLeader):  # not NotEnoughReplicas: clients must look for another leader
            stage.write(b"x")
        stage.leader().replicas.is_isolated = False
        stage.write(b"x")

    tell(story)


def test_what_waits_to_be_committed_is_answered_when_the_node_loses_the_quorum() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        leader = stage.leader()
        for node in stage.followers():
            node.end()
        stage.write(b"x")
        answers: list[object] = []
        leader.partition().when_committed(1, answers.append)
        await asyncio.sleep(0.1)
        assert not answers
        leader.replicas.is_isolated = True
        assert [type(answer) for answer in answers] == [NotLeader]
        leader.partition().when_committed(1, answers.append)
        assert [type(answer) for answer in answers] == [NotLeader, NotLeader], "what comes later does not wait either"

    tell(story)


def test_a_leader_that_was_replaced_while_cut_off_gives_up_what_was_never_committed() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        stage.write(b"kept")
        await asyncio.sleep(0.1)
        old = stage.leader()
        old.has_controller = False
        for node in stage.followers():
            stage.exchange.cut(old.id, node.id)
        stage.fence(old.id)
        await stage.settle()
        stage.write(b"lost", node=old)
        stage.write(b"lost too", node=old, is_all=False)
        stage.write(b"new")
        await asyncio.sleep(0.5)
        assert stage.acked == {0: [b"kept", b"new"]}
        stage.exchange.heal()
        old.has_controller = True
        stage.draft(lambda draft: draft.change_node(old.id, is_fenced=False))
        await stage.in_sync(3)
        assert [type(error) for error in stage.failed] == [NotLeader]
        assert values_of(old.partition()) == [b"kept", b"new"]
        assert old.stats.replication.truncations == 1
        stage.check_agreement()

    tell(story)


def test_all_three_lose_their_power_and_every_acknowledged_write_is_there() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        random = stage.random
        for number in range(40):
            stage.write(b"%d" % number)
            await asyncio.sleep(random.random() * 0.004)
        for node in stage.nodes.values():
            node.end(keeps_unsynced=False)
        stage.fence(*stage.nodes)
        await stage.start(*random.sample(sorted(stage.nodes), 3))
        await stage.until(lambda: stage.assigned().leader != NO_LEADER)
        await stage.in_sync(3)
        await stage.until(lambda: stage.leader().partition().is_watermark_known)
        stage.check_acked()
        stage.check_agreement()
        stage.write(b"and on")
        await stage.until(lambda: b"and on" in stage.acked[0])

    for seed in range(25):
        tell(story, seed=seed)


def test_a_new_leader_does_not_know_the_watermark_before_its_followers_have_what_it_had() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        for number in range(5):
            stage.write(b"%d" % number)
        await stage.until(lambda: len(stage.acked.get(0, [])) == 5)
        old = stage.leader()
        heir = stage.nodes[next(node for node in stage.assigned().in_sync if node != old.id)]
        other = next(node for node in stage.followers() if node is not heir)
        old.end()
        stage.exchange.cut(heir.id, other.id)
        heir.partition().high_watermark = 0  # as if the last answer had never come
        stage.fence(old.id)
        await stage.settle()
        assert stage.leader() is heir
        assert not heir.partition().is_watermark_known
        stage.exchange.heal()
        await stage.until(lambda: heir.partition().is_watermark_known)
        assert heir.partition().high_watermark == 5

    tell(story)


def test_a_leader_s_trimmed_log_start_reaches_followers_and_newcomers_begin_there() -> None:
    async def story(stage: Stage) -> None:
        await three(stage, segment_bytes="1024")
        for number in range(40):
            stage.write(b"%d" % number * 20)
            await asyncio.sleep(0.003)
        late = stage.followers()[0]
        late.end()
        late.wipe()
        stage.fence(late.id)
        await stage.settle()
        leader = stage.leader().partition()
        leader.log.delete_files(leader.log.trim(25))
        stage.write(b"more")
        (other,) = [node for node in stage.followers() if node is not late]
        await stage.until(lambda: other.partition().log.start_offset == 25)
        await stage.start(late.id)
        await stage.in_sync(3)
        assert (late.partition().log.start_offset, late.partition().log.end_offset) == (25, 41)
        assert values_of(late.partition()) == values_of(leader)

    tell(story)


def test_replicas_move_to_another_node_and_their_files_go() -> None:
    async def story(stage: Stage) -> None:
        await stage.start()
        await stage.create(partitions=2, factor=3)
        stage.write(b"x")
        stage.write(b"y", 1)
        await asyncio.sleep(0.1)
        stage.decide(Reassign(moves=(Move(topic=TOPIC, partition=0, replicas=(2, 3, 4)),)))
        await stage.until(lambda: stage.assigned().replicas == (2, 3, 4))
        await stage.settle()
        await asyncio.sleep(0.1)
        assert values_of(stage.nodes[4].partition()) == [b"x"]
        gone = stage.nodes[1]
        assert not gone.replicas.has(TOPIC, 0)
        assert gone.files.directories(gone.replicas._directories._data.logs / TOPIC) == [
            gone.replicas._directories._data.logs / TOPIC / "1"
        ] or not gone.replicas.has(TOPIC, 1)
        stage.write(b"z")
        await stage.until(lambda: b"z" in stage.acked[0])

    tell(story, nodes=4)


def test_a_deleted_topic_leaves_nothing_on_any_node() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        stage.write(b"x")
        await asyncio.sleep(0.1)
        stage.decide(DeleteTopic(name=TOPIC))
        await stage.settle()
        for node in stage.nodes.values():
            assert len(node.replicas) == 0
            data = node.replicas._directories._data
            assert node.files.directories(data.logs) in ([], [data.deleted])
            assert node.files.directories(data.deleted) == []

    tell(story)


def test_an_expansion_whose_answer_is_lost_holds_the_watermark_until_metadata_tells() -> None:
    async def story(stage: Stage) -> None:
        await three(stage, min_insync_replicas="1")
        late = stage.followers()[0]
        late.end()
        stage.fence(late.id)
        await stage.settle()
        leader = stage.leader()
        leader.loses_answers = True
        await stage.start(late.id)
        await stage.until(lambda: late.id in stage.assigned().in_sync)
        followers = leader.partition().followers
        assert followers is not None
        await stage.until(lambda: late.id in followers.in_sync)
        assert late.id in followers.maximal

    tell(story)


def test_a_change_of_the_needed_number_takes_effect_at_once() -> None:
    async def story(stage: Stage) -> None:
        await three(stage, min_insync_replicas="3")
        late = stage.followers()[0]
        late.end()
        stage.fence(late.id)
        await stage.settle()
        with pytest.raises(NotEnoughReplicas):
            stage.write(b"x")
        stage.write(b"y", is_all=False)
        await asyncio.sleep(0.2)
        leader = stage.leader().partition()
        assert leader.high_watermark == 0
        stage.decide(ConfigureTopic(name=TOPIC, changes={"min.insync.replicas": "2"}))
        await stage.settle()
        await stage.until(lambda: leader.high_watermark == 1)
        stage.write(b"x")

    tell(story)


def test_catching_up_is_throttled_and_what_is_in_sync_is_not() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        lost = stage.followers()[0]
        lost.end()
        lost.wipe()
        stage.fence(lost.id)
        await stage.settle()
        for _ in range(200):
            stage.write(b"%d" % stage.loop.time() + stage.random.randbytes(500))
            await asyncio.sleep(0.001)
        await stage.until(lambda: len(stage.acked[0]) == 200)
        began = stage.loop.time()
        await stage.start(lost.id)
        await stage.in_sync(3)
        assert 8 <= stage.loop.time() - began <= 12  # some 215 kB, of which the first 20 come at once
        stage.write(b"quick")
        await stage.until(lambda: b"quick" in stage.acked[0], patience_s=0.1)

    tell(story, replication_throttle_bytes=20_000, replica_lag_ms=2_000)


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_rates_that_are_set_while_nodes_run_slow_catching_up_down(side: str) -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        lost = stage.followers()[0]
        lost.end()
        lost.wipe()
        stage.fence(lost.id)
        await stage.settle()
        for _ in range(200):
            stage.write(b"%d" % stage.loop.time() + stage.random.randbytes(500))
            await asyncio.sleep(0.001)
        await stage.until(lambda: len(stage.acked[0]) == 200)
        began = stage.loop.time()
        if side == "leader":
            stage.leader().replication.limit_leading(20_000)
        await stage.start(lost.id)
        if side == "follower":
            lost.replication.limit_following(20_000)
        await stage.in_sync(3)
        took = stage.loop.time() - began
        assert 4 <= took <= 12  # 115 kB, and what was written meanwhile
        stage.leader().replication.limit_leading(None)
        lost.replication.limit_following(None)
        assert (lost.replication.rates, stage.leader().replication.rates) == ((0, 0), (0, 0))
        stage.write(b"quick")
        await stage.until(lambda: b"quick" in stage.acked[0], patience_s=0.1)

    tell(story, replica_lag_ms=2_000)


def test_a_follower_whose_disk_is_full_falls_out_and_comes_back() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        full = stage.followers()[0]
        full.files.capacity_bytes = full.files.used_bytes + 300
        for number in range(10):
            stage.write(b"%d" % number)
        await stage.in_sync(2)
        await stage.until(lambda: len(stage.acked.get(0, [])) == 10)
        full.files.capacity_bytes = None
        await stage.in_sync(3)
        assert values_of(full.partition()) == values_of(stage.leader().partition())

    tell(story)


def test_a_follower_whose_sync_fails_falls_out_and_the_others_go_on() -> None:
    async def story(stage: Stage) -> None:
        await three(stage)
        broken = stage.followers()[0]
        broken.files.is_failing_syncs = True
        stage.write(b"x")
        await stage.in_sync(2)
        await stage.until(lambda: stage.acked.get(0) == [b"x"])

    tell(story)


def test_a_damaged_leader_does_not_hand_its_gaps_to_others() -> None:
    async def story(stage: Stage) -> None:
        await three(stage, segment_bytes="1024")
        for number in range(40):
            stage.write(b"%d" % number * 20)
            await asyncio.sleep(0.003)
        lost = stage.followers()[0]
        lost.end()
        lost.wipe()
        stage.fence(lost.id)
        await stage.settle()
        leader = stage.leader()
        first = leader.partition().log.directory / "00000000000000000000.log"
        leader.files.flip_bit(first, 300)
        others = [node for node in stage.followers() if node.is_up]
        for other in others:
            other.end()
        stage.fence(*(other.id for other in others))
        await stage.start(lost.id)
        await asyncio.sleep(5)
        assert stage.assigned().in_sync == (leader.id,)
        copied = values_of(lost.partition())
        assert copied == [b"%d" % number * 20 for number in range(len(copied))]
        assert len(copied) < 40
        with pytest.raises(DamagedRecords):
            values_of(leader.partition())  # one of those that are down may have what is damaged here
        assert not stage.assigned().lost

    tell(story)


@pytest.mark.parametrize("factor", [1, 2])
def test_a_replica_that_fetches_before_its_leader_knows_of_it_joins_without_a_write(factor: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.start()
        await stage.create(factor=factor)
        leader = stage.leader()
        leader.has_controller = False
        stage.decide(Reassign(moves=(Move(topic=TOPIC, partition=0, replicas=(1, 2, 3)),)))
        await asyncio.sleep(2)
        assert len(stage.assigned().in_sync) == factor
        leader.has_controller = True
        assert leader.life is not None
        leader.life.run(leader.catch_up)
        await stage.in_sync(3)

    tell(story)


def test_an_idle_cluster_says_next_to_nothing() -> None:
    async def story(stage: Stage) -> None:
        await stage.start()
        await stage.create(partitions=50)
        await asyncio.sleep(5)
        before = stage.exchange.delivered
        await asyncio.sleep(10)
        # Six pairs of nodes, two fetches a second each, and their answers.
        assert stage.exchange.delivered - before <= 6 * 2 * 2 * 10 + 12

    tell(story)


def test_a_bug_while_copying_is_noted_and_copying_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        await stage.start()
        await stage.create()
        follower = stage.followers()[0]
        name = f"copying from node {stage.leader().id}"
        failures = follower.supervision.failures
        for method in ("_take", "_next_fetch"):  # within what the loop minds, and outside of it
            before = failures[name]
            with monkeypatch.context() as patch:
                patch.setattr(Fetcher, method, lambda *_: 1 // 0)
                stage.write(b"meanwhile")
                await stage.until(lambda before=before: failures[name] > before)  # type: ignore[misc]
        stage.write(b"after")
        await stage.until(lambda: len(stage.acked.get(0, [])) == 3)
        await stage.in_sync(3)
        stage.check_agreement()

    tell(story)
