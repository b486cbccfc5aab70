"""Many groups and large ones: what the core costs, without sockets. Run with ``-s`` to see the figures."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.unit.groups.journal import MemoryJournal
from tests.unit.groups.transcript import subscription

from penstock.config.settings import GroupSettings
from penstock.features.groups.coordinator import GroupShard
from penstock.features.groups.messages import JoinedGroup, JoinRequest, MemberIdentity, SyncGroup
from penstock.features.groups.states import GroupState


class Crowd:
    """Groups whose members do what consumers do."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.journal = MemoryJournal()
        self.shard = GroupShard(
            self.journal, GroupSettings(), lambda: self.now_ms, lambda: self.now_ms, lambda work: work()
        )
        self.shard.open({})
        self.identities: dict[str, dict[str, MemberIdentity]] = {}

    def join(self, group: str, member_id: str, *, is_new: bool) -> None:
        request = JoinRequest(
            member_id="" if is_new else member_id,
            instance_id=None,
            client_id="c",
            client_host="/here",
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=(("range", subscription("orders")),),
            fresh_id=member_id,
            takes_id_first=False,
            can_skip_assignment=True,
        )

        def joined(answer: Any) -> None:
            assert isinstance(answer, JoinedGroup)
            identity = MemberIdentity(member_id=answer.member_id, generation=answer.generation)
            self.identities.setdefault(group, {})[answer.member_id] = identity

        self.shard.ask(group, request, joined)

    def sync_all(self, group: str) -> None:
        members = self.identities[group]
        assignments = tuple((member_id, b"some partitions") for member_id in members)
        for identity in members.values():
            request = SyncGroup(identity=identity, protocol_type=None, protocol=None, assignments=assignments)
            self.shard.ask(group, request, lambda answer: None)

    def beat_all(self) -> int:
        for group, members in self.identities.items():
            for identity in members.values():
                self.shard.heartbeat(group, identity)
        return sum(map(len, self.identities.values()))

    def settle(self) -> None:
        self.now_ms += 3_000
        self.shard.tick()
        for group in self.identities:
            self.sync_all(group)


@pytest.mark.parametrize("minutes", [10, pytest.param(60, marks=pytest.mark.soak)])
def test_a_hundred_groups_of_ten_stay_stable_for_long_at_little_cost(minutes: int) -> None:
    crowd = Crowd()
    for group in range(100):
        for member in range(10):
            crowd.join(f"g{group}", f"m{member}", is_new=True)
    crowd.settle()
    started = time.process_time()
    ticks = beats = 0
    for _ in range(20 * minutes):  # a heartbeat every 3 s
        for _ in range(60):  # a tick every 50 ms
            crowd.now_ms += 50
            ticks += 1
            if ticks % 20 == 0:  # in between nothing is due, and that is what a tick has to find out
                crowd.shard.tick()
        beats += crowd.beat_all()
    spent = time.process_time() - started
    groups = [machine.group for machine in crowd.shard.machines.values()]
    assert all(group.state is GroupState.STABLE and group.generation == 1 for group in groups)
    print(f"{beats:,} heartbeats and {ticks // 20:,} ticks of 100 groups in {spent:.2f} s")
    assert spent < minutes / 3


def test_one_more_member_of_fifty_settles_at_once() -> None:
    crowd = Crowd()
    for member in range(50):
        crowd.join("g", f"m{member}", is_new=True)
    crowd.settle()
    started = time.process_time()
    crowd.join("g", "newcomer", is_new=True)
    for member in range(50):
        crowd.join("g", f"m{member}", is_new=False)
    crowd.sync_all("g")
    spent = time.process_time() - started
    group = crowd.shard.machines["g"].group
    assert (group.state, group.generation, len(group.members)) == (GroupState.STABLE, 2, 51)
    print(f"a round of 51 members: {spent * 1000:.1f} ms of work")
    assert spent < 1


def test_a_tick_over_many_idle_groups_is_short() -> None:
    crowd = Crowd()
    for group in range(5_000):
        crowd.join(f"g{group}", "m", is_new=True)
    crowd.settle()
    crowd.now_ms += 100
    crowd.shard.tick()
    started = time.process_time()
    for _ in range(20):
        crowd.now_ms += 50
        crowd.shard.tick()
    spent = time.process_time() - started
    print(f"a tick over 5,000 idle groups: {spent / 20 * 1e6:.0f} µs")
    assert spent < 2
