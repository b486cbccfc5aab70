"""A member whose metadata is damaged never speaks again; its node is taken in by the others as another member."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.unit.quorum.cluster import Cluster, Node, cluster_id, run, until
from tests.unit.quorum.samples import DIRECTORY, ME, TRIO, command, entries, open_store, work

from penstock.clock import SystemClock
from penstock.consensus.quorum.store import QuorumStore
from penstock.consensus.quorum.store_files import member_path
from penstock.consensus.raft.messages import HardState, Member, Members
from penstock.errors import DamagedMetadata, DataDirectoryError
from penstock.storage.files import read_file
from penstock.testing.files import Crash, MemoryFiles

ASIDE = DIRECTORY.with_name("metadata-damaged-1")


def flip_middle(files: MemoryFiles) -> None:
    [path] = [path for path in files.paths() if path.suffix == ".log"]
    files.flip_bit(path, files.size(path) // 2)


def damage_vote(files: MemoryFiles) -> None:
    files.flip_bit(DIRECTORY / "hard-state", 12)


def lose_vote(files: MemoryFiles) -> None:
    files.remove(DIRECTORY / "hard-state")


def lose_promise(files: MemoryFiles) -> None:
    files.remove(DIRECTORY / "promised")


def damage_snapshots(files: MemoryFiles) -> None:
    for path in files.paths():
        if path.suffix == ".snapshot":
            files.flip_bit(path, files.size(path) // 2)


def lose_log(files: MemoryFiles) -> None:
    for path in files.paths():
        if path.suffix in {".log", ".index"}:
            files.remove(path)


def lose_directory(files: MemoryFiles) -> None:
    for path in files.paths():
        if path.parent == DIRECTORY:
            files.remove(path)


Harm = Callable[[MemoryFiles], None]
HARMS = [flip_middle, damage_vote, lose_vote, lose_promise, damage_snapshots, lose_log, lose_directory]
_NUMBERS = count(1)


def reopen(files: MemoryFiles) -> QuorumStore:
    return QuorumStore.open(files, DIRECTORY, ME, SystemClock(), replace_id=lambda: f"another-{next(_NUMBERS)}")


def damaged(harm: Harm = flip_middle, *, seed: int = 0) -> MemoryFiles:
    files = MemoryFiles(seed=seed)
    store = open_store(files)
    store.form(TRIO)
    store.write([work(*entries(1, 30), hard_state=HardState(1, 2))])
    store.close()
    harm(files)
    files.sync_directory(DIRECTORY)
    return files


def content(files: MemoryFiles, directory: Path) -> dict[str, bytes | None]:
    return {path.name: read_file(files, path) for path in files.paths() if path.parent == directory}


@pytest.mark.parametrize("harm", HARMS)
def test_a_store_alone_refuses_what_is_damaged_and_says_what_to_do(harm: Harm) -> None:
    files = damaged(harm)
    for _ in range(2):
        with pytest.raises(DamagedMetadata, match=r"cannot be trusted.*--peers or --join.*restore /data from a backup"):
            open_store(files)


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_damaged_stays_where_it_is_until_others_take_the_node_in(harm: Harm) -> None:
    files = damaged(harm)
    before = content(files, DIRECTORY)
    store = reopen(files)
    assert store.damage is not None
    assert not store.is_formed
    assert store.member.node_id == ME.node_id
    assert store.member != ME
    assert store.last_index == 0
    store.close()
    found = content(files, DIRECTORY)
    assert {name: found[name] for name in before} == before, "to look at it again changes nothing that was there"
    members = Members({2: "disk-2", 3: "disk-3"}, {1: store.member.directory_id})
    store.form(members, reach=77)
    aside = content(files, ASIDE)
    assert {name: aside[name] for name in before} == before, "kept, never removed"
    again = reopen(files)
    assert again.damage is None
    assert again.is_formed
    assert (again.member, again.reach) == (store.member, 77)
    assert again.snapshot.members == members
    assert again.entries == []
    again.write([work(command(1), term=1)])
    again.close()
    assert open_store(files).entries == [command(1)]


def test_metadata_that_is_damaged_again_is_kept_beside_the_first() -> None:
    files = damaged()
    for number in (1, 2):
        store = reopen(files)
        store.form(Members({2: "disk-2"}, {1: store.member.directory_id}))
        store.write([work(*entries(1, 30), term=1)])
        store.close()
        assert content(files, DIRECTORY.with_name(f"metadata-damaged-{number}"))
        [path] = [path for path in files.paths() if path.suffix == ".log" and path.parent == DIRECTORY]
        files.flip_bit(path, files.size(path) // 2)
    assert reopen(files).damage is not None


def test_a_power_cut_at_any_step_never_brings_the_old_member_back() -> None:
    """An empty directory under the old name would begin as a voter that has said nothing yet."""
    formed = 0
    for step in range(1, 60):
        files = damaged(seed=step)
        store = reopen(files)
        files.crash_at = files.steps + step
        try:
            store.form(Members({2: "disk-2"}, {1: store.member.directory_id}))
        except Crash:
            files.crash()
        files.crash_at = None
        again = reopen(files)
        assert again.member != ME
        assert again.damage is not None or again.member == store.member
        formed += again.is_formed
        if again.damage is not None:
            again.form(Members({2: "disk-2"}, {1: again.member.directory_id}))
            assert reopen(files).member == again.member
        assert sum(path.parent == ASIDE and path.suffix == ".log" for path in files.paths()) == 1
    assert 0 < formed < 59


def test_a_directory_from_before_members_were_noted_is_noted() -> None:
    files = MemoryFiles()
    store = open_store(files)
    store.form(TRIO)
    store.write([work(command(1), term=1)])
    store.close()
    files.remove(member_path(DIRECTORY))
    assert open_store(files).is_formed
    assert files.exists(member_path(DIRECTORY))
    files.flip_bit(member_path(DIRECTORY), 12)
    with pytest.raises(DataDirectoryError, match="metadata-member is damaged"):
        reopen(files)


# -- with others ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [1, 3])
@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_member_is_replaced_by_another_on_the_same_node(harm: Harm, victim: int) -> None:
    async def story() -> None:
        cluster = Cluster(3)
        await cluster.start()
        await cluster.decide(cluster_id("abc"))
        for _ in range(20):
            await cluster.propose()
        await cluster.agree()
        node = cluster.nodes[victim]
        await cluster.stop(victim)
        harm(node.files)
        await node.start()
        await cluster.agree()
        members = (await cluster.leader()).quorum.members
        assert victim not in members.voters, "it votes when a controller has seen that it has caught up"
        assert members.learners == {victim: node.quorum.me.directory_id}
        assert node.quorum.me != node.member
        assert node.quorum.store.reach > 20
        await cluster.stop()

    run(story())


def test_a_member_that_has_forgotten_does_not_help_to_elect_one_that_lacks_what_is_committed() -> None:
    """Committed by 1 and 2. 2 forgets it, 1 goes, and 3, which never heard of it, wants to lead."""

    async def story() -> None:
        cluster = Cluster(3)
        await cluster.start()
        leader = await cluster.leader()
        if leader.id != 1:
            await leader.quorum.transfer(1)
        await cluster.agree()
        cluster.exchange.cut(1, 3, is_noticed=False)
        await cluster.decide(cluster_id("abc"))
        await cluster.stop(2)
        flip_middle(cluster.nodes[2].files)
        start = asyncio.ensure_future(cluster.nodes[2].start())
        await asyncio.sleep(0.15)
        assert not start.done(), "without 3 its place is not decided on"
        await cluster.nodes[1].kill()
        cluster.exchange.heal()
        await asyncio.sleep(3.0)
        assert not any(node.quorum.is_leader for node in cluster.here())
        await cluster.nodes[1].start()
        await start
        await cluster.agree()
        assert all(node.quorum.metadata.cluster_id == "abc" for node in cluster.here())
        await cluster.stop()

    run(story())


def test_without_a_leader_it_waits_for_a_minute_and_then_refuses_to_start() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        await cluster.start()
        await cluster.propose()
        await cluster.stop()
        flip_middle(cluster.nodes[2].files)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(DamagedMetadata):
            await cluster.nodes[2].start()
        assert 55 < asyncio.get_running_loop().time() - begun < 70
        assert not cluster.nodes[2].files.exists(ASIDE), "nothing is touched"
        cluster.exchange.leave(cluster.exchange.nodes[2])
        start = asyncio.ensure_future(cluster.nodes[2].start())
        await asyncio.gather(cluster.nodes[1].start(), cluster.nodes[3].start(), start)
        await cluster.agree()
        await cluster.stop()

    run(story(), limit_s=200)


def test_damaged_members_do_not_let_a_wiped_founder_begin_a_second_quorum() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        await cluster.start()
        await cluster.decide(cluster_id("abc"))
        await cluster.stop()
        cluster.nodes[1].wipe()
        for node_id in (2, 3):
            flip_middle(cluster.nodes[node_id].files)
        starts = [asyncio.ensure_future(node.start()) for node in cluster.nodes.values()]
        await asyncio.sleep(5.0)
        assert not any(start.done() for start in starts)
        for start in starts:
            start.cancel()
        await asyncio.wait(starts)

    run(story())


def test_a_damaged_founder_founds_nothing() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        await cluster.start()
        await cluster.decide(cluster_id("abc"))
        await cluster.stop()
        flip_middle(cluster.nodes[1].files)
        for node_id in (2, 3):
            cluster.nodes[node_id].wipe()
        starts = [asyncio.ensure_future(node.start()) for node in cluster.nodes.values()]
        await asyncio.sleep(5.0)
        assert not any(start.done() for start in starts)
        for start in starts:
            start.cancel()
        await asyncio.wait(starts)

    run(story())


def test_one_that_joined_later_is_taken_in_again() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        await cluster.start()
        late: Node = cluster.add_joiner(4, by=2)
        await late.start()
        await cluster.agree()
        await cluster.stop(4)
        flip_middle(late.files)
        await late.start()
        await cluster.agree()
        await until(lambda: cluster.nodes[1].quorum.members.knows(Member(4, late.quorum.me.directory_id)))
        assert late.quorum.me != late.member
        await cluster.stop()

    run(story())
