"""Markers in the logs of real partitions: gone, out of reach, back again, and no longer wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import alone
from penstock.consensus.controller import TopicSpec
from penstock.features.transactions.markers import ClusterMarkers, EndMarker, LocalMarkers
from penstock.machines.messages import ProducerIdentity
from penstock.model import OFFSETS_TOPIC
from penstock.records import read_marker

MARKER = EndMarker(ProducerIdentity(7, 3), is_commit=True, coordinator_epoch=1)


class Groups:
    """Notes which transactions ended, and how far the log was when they did."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.ended: list[tuple[int, int, bool, int]] = []

    def end_transaction(self, shard_index: int, producer_id: int, *, is_commit: bool) -> None:
        end_offset = self._broker.partition(OFFSETS_TOPIC, shard_index).log.end_offset
        self.ended.append((shard_index, producer_id, is_commit, end_offset))


class Scene:
    """A broker, markers for it, and the work that they put off."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.groups = Groups(broker)
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.done = 0
        self._is_done = asyncio.Event()
        self.is_wanted = True
        local = LocalMarkers(broker.partition, self.groups, broker.clock, syncs=True)
        leaders = broker.leaders
        self.markers = ClusterMarkers(local, leaders, lambda *what: self.later.append(what), asyncio.ensure_future)

    def write(self, *places: tuple[str, int]) -> None:
        self.markers.write(MARKER, places, lambda: self.is_wanted, self.on_done)

    def on_done(self) -> None:
        self.done += 1
        self._is_done.set()

    def go_on(self) -> list[float]:
        """Do what was put off; for how long it was."""
        later, self.later = self.later, []
        for _, work in later:
            work()
        return [seconds for seconds, _ in later]

    async def until_done(self) -> None:
        async with asyncio.timeout(60):
            await self._is_done.wait()

    def markers_in(self, topic: str, index: int) -> list[tuple[int, bool]]:
        log = self.broker.partition(topic, index).log
        found = [memoryview(batch.read()) for batch in log.batches(log.start_offset)]
        return [(each.coordinator_epoch, each.is_commit) for each in map(read_marker, found)]


def play(directory: Path, story: Callable[[Scene], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        broker = Broker(BrokerConfig(node_id=1, data_dir=directory), alone(1))
        await broker.start()
        try:
            await broker.create_topic(TopicSpec(name="t", partitions=3))
            await story(Scene(broker))
        finally:
            await broker.close()

    asyncio.run(run())


def test_every_partition_gets_one_and_all_are_safe_before_that_is_told(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.write(("t", 0), ("t", 2))
        assert not scene.done, "told before it was safe"
        await scene.until_done()
        assert [scene.markers_in("t", at) for at in range(3)] == [[(1, True)], [], [(1, True)]]
        assert scene.broker.partition("t", 2).high_watermark == 1

    play(tmp_path, story)


def test_what_was_deleted_needs_none(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.write(("nowhere", 0), ("t", 9))
        assert scene.done == 1
        scene.write()
        assert scene.done == 2

    play(tmp_path, story)


def test_a_partition_out_of_reach_is_tried_until_it_is_back_and_keeps_no_other_waiting(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        partition = scene.broker.partition("t", 1)
        partition.resign()
        scene.write(("t", 0), ("t", 1))
        waits = [*scene.go_on(), *scene.go_on(), *scene.go_on()]
        assert waits == sorted(waits)
        assert waits[0] < waits[-1]
        assert scene.markers_in("t", 0) == [(1, True)]
        partition.lead(partition.leader_epoch + 1)
        scene.go_on()
        await scene.until_done()
        assert scene.markers_in("t", 1) == [(1, True)]

    play(tmp_path, story)


def test_a_marker_that_was_written_and_lost_its_leader_is_written_again(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        partition = scene.broker.partition("t", 0)
        scene.write(("t", 0))
        partition.resign()
        partition.lead(partition.leader_epoch + 1)
        assert not scene.done
        scene.go_on()
        await scene.until_done()
        assert scene.markers_in("t", 0) == [(1, True), (1, True)]

    play(tmp_path, story)


def test_nobody_writes_for_a_coordinator_that_is_none_any_more(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.broker.partition("t", 0).resign()
        scene.write(("t", 0))
        scene.is_wanted = False
        scene.go_on()
        assert not scene.later
        assert not scene.done

    play(tmp_path, story)


def test_a_newer_epoch_in_a_partition_means_that_it_knows(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        newer = EndMarker(ProducerIdentity(7, 4), is_commit=False, coordinator_epoch=1)
        scene.markers.local.append(newer, ("t", 0))
        scene.write(("t", 0))
        assert scene.done
        assert scene.markers_in("t", 0) == [(1, False)]

    play(tmp_path, story)


def test_groups_hear_of_it_in_the_turn_in_which_it_is_in_their_log(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.broker.ensure_offsets_topic()
        scene.write((OFFSETS_TOPIC, 5))
        assert scene.groups.ended == [(5, 7, True, 1)]
        await scene.until_done()

    play(tmp_path, story)
