"""Large groups: what they cost the coordinator, in its own time."""

from __future__ import annotations

import time

import pytest
from tests.unit.groups.consumer.topics import MemoryTopics
from tests.unit.groups.journal import MemoryJournal

from penstock.config.settings import GroupSettings
from penstock.features.groups.consumer.assignors import Place
from penstock.features.groups.consumer.group import ConsumerGroup, ConsumerGroupState
from penstock.features.groups.consumer.messages import Beat, ConsumerHeartbeat
from penstock.features.groups.coordinator import GroupShard


class Crowd:
    """Members that do what they are told, once each in a round of heartbeats."""

    def __init__(self, size: int, topics: MemoryTopics) -> None:
        self.now_ms = 0
        self.topics = topics
        self.shard = GroupShard(
            MemoryJournal(), GroupSettings(), lambda: self.now_ms, lambda: self.now_ms, lambda work: work(), topics
        )
        self.shard.open({})
        self.epochs = {f"m{number:04}": 0 for number in range(size)}
        self.told: dict[str, frozenset[Place]] = {}
        self.moves = 0

    def beat(self, member_id: str) -> None:
        def heard(beat: Beat) -> None:
            self.epochs[member_id] = beat.epoch
            if beat.assignment is not None:
                self.told[member_id] = beat.assignment
                self.moves += 1

        is_new = not self.epochs[member_id]
        request = ConsumerHeartbeat(
            member_id=member_id,
            epoch=self.epochs[member_id],
            client_id="c",
            client_host="/h",
            rebalance_timeout_ms=60_000 if is_new else -1,
            topics=tuple(self.topics.names) if is_new else None,
            owned=self.told.get(member_id, frozenset()),
        )
        self.shard.ask("g", request, heard)

    def beat_all(self) -> None:
        """One heartbeat of everybody, spread over five seconds, as they are."""
        for member_id in self.epochs:
            self.beat(member_id)
            self.now_ms += 5_000 // len(self.epochs)
            self.shard.tick()

    @property
    def group(self) -> ConsumerGroup:
        group = self.shard.machines["g"].group
        assert isinstance(group, ConsumerGroup)
        return group


@pytest.mark.parametrize("size", [200, pytest.param(1_000, marks=pytest.mark.soak)])
def test_many_members_settle_on_ten_times_as_many_partitions(size: int) -> None:
    crowd = Crowd(size, MemoryTopics(**{f"t{number}": size // 10 for number in range(100)}))
    started = time.process_time()
    rounds = 0
    while rounds == 0 or crowd.group.state is not ConsumerGroupState.STABLE:
        crowd.beat_all()
        rounds += 1
        assert rounds < 10
    spent_s = time.process_time() - started
    assert {len(places) for places in crowd.told.values()} == {10}
    assert len(frozenset().union(*crowd.told.values())) == 10 * size
    print(f"settled after {rounds} rounds of heartbeats, {spent_s:.1f} s of work")
    assert spent_s < 20
    started = time.process_time()
    crowd.beat_all()
    spent_s = time.process_time() - started
    print(f"a quiet round of heartbeats: {spent_s * 1000:.0f} ms of work")
    assert spent_s < 1


def test_one_more_of_fifty_disturbs_only_those_it_gets_something_from() -> None:
    crowd = Crowd(50, MemoryTopics(orders=200))
    while crowd.moves == 0 or crowd.group.state is not ConsumerGroupState.STABLE:
        crowd.beat_all()
    before, crowd.moves = dict(crowd.told), 0
    crowd.epochs["newcomer"] = 0
    for _ in range(3):
        crowd.beat_all()
    assert crowd.group.state is ConsumerGroupState.STABLE
    changed = [member_id for member_id, places in before.items() if crowd.told[member_id] != places]
    assert len(changed) == len(crowd.told["newcomer"]) == 3
    assert all(crowd.told[member_id] < before[member_id] for member_id in changed)
