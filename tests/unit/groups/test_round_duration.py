"""How long rounds take: counted once each, from the first reason until the last member has its partitions."""

from __future__ import annotations

from typing import Any

from tests.unit.groups.journal import MemoryJournal
from tests.unit.groups.transcript import subscription

from penstock.config.settings import GroupSettings
from penstock.features.groups.coordinator import GroupShard
from penstock.features.groups.messages import CommitOffsets, JoinRequest, Leave, MemberIdentity, OffsetCommit, SyncGroup


class Stopwatch:
    """A shard, members who do what they are told, and the rounds that were reported."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.took_ms: list[int] = []
        self.journal = MemoryJournal()
        self.shard = GroupShard(
            self.journal,
            GroupSettings(initial_delay_ms=1_000),
            lambda: self.now_ms,
            lambda: self.now_ms,
            lambda work: work(),
            on_round=self.took_ms.append,
        )
        self.shard.open({})
        self.generations: dict[str, int] = {}

    def ask(self, request: Any, reply: Any = lambda answer: None) -> None:
        self.shard.ask("g", request, reply)

    def join(self, member_id: str) -> None:
        is_new = member_id not in self.generations
        self.generations.setdefault(member_id, -1)
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
            self.generations[member_id] = answer.generation

        self.ask(request, joined)

    def sync(self, member_id: str) -> None:
        identity = MemberIdentity(member_id=member_id, generation=self.generations[member_id])
        assignments = tuple((each, b"") for each in self.generations)
        self.ask(SyncGroup(identity=identity, protocol_type=None, protocol=None, assignments=assignments))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.shard.tick()


def settled() -> Stopwatch:
    watch = Stopwatch()
    watch.join("a")
    watch.wait(1_000)
    watch.sync("a")
    return watch


def test_a_first_round_counts_its_initial_delay() -> None:
    assert settled().took_ms == [1_000]


def test_a_round_ends_with_the_last_member_that_syncs() -> None:
    watch = settled()
    watch.join("b")
    watch.wait(300)
    watch.join("a")
    watch.wait(20)
    watch.sync("a")
    assert watch.took_ms == [1_000], "b has not heard of its partitions"
    watch.wait(5)
    watch.sync("b")
    assert watch.took_ms == [1_000, 325]


def test_a_round_that_is_begun_again_is_one_long_round() -> None:
    watch = settled()
    watch.join("b")
    watch.join("a")
    watch.wait(100)
    watch.ask(Leave((MemberIdentity(member_id="b"),)))
    watch.wait(100)
    watch.join("a")
    watch.sync("a")
    assert watch.took_ms == [1_000, 200]


def test_nothing_but_a_round_counts() -> None:
    watch = settled()
    identity = MemberIdentity(member_id="a", generation=1)
    watch.ask(CommitOffsets(identity, (OffsetCommit("orders", 0, 1, -1, "", "id"),)))
    watch.sync("a")
    watch.ask(Leave((MemberIdentity(member_id="a"),)))
    watch.wait(10_000)
    assert watch.took_ms == [1_000], "a group that ended up empty has shared out nothing"


def test_a_round_that_cannot_be_stored_is_not_over() -> None:
    watch = Stopwatch()
    watch.join("a")
    watch.wait(1_000)
    watch.journal.is_full = True
    watch.sync("a")
    assert watch.took_ms == []
    watch.journal.is_full = False
    watch.wait(500)
    watch.sync("a")
    assert watch.took_ms == [1_500]
