"""Groups of the new protocol under random events, next to clients that only believe what they are told.

Clients are simple-minded: they take what an answer gives them, let go of what it no longer names, and join again when
they are refused. Whatever happens, no two of them may have the same partition, nobody may lose what it is to keep, the
log must tell the same story as memory, and once all is calm everything is shared out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.groups.consumer.topics import MemoryTopics
from tests.unit.groups.journal import MemoryJournal
from tests.unit.groups.transcript import subscription

from penstock.config.settings import GroupSettings
from penstock.errors import PenstockError
from penstock.features.groups.client_metadata import read_assignment, write_assignment
from penstock.features.groups.consumer.assignors import Place
from penstock.features.groups.consumer.group import ConsumerGroup, ConsumerGroupState, to_ids
from penstock.features.groups.consumer.messages import Beat, ConsumerHeartbeat
from penstock.features.groups.coordinator import GroupShard
from penstock.features.groups.group import Group
from penstock.features.groups.messages import (
    CommitOffsets,
    JoinedGroup,
    JoinRequest,
    Leave,
    MemberIdentity,
    OffsetCommit,
    Promised,
    Settled,
    SyncedGroup,
    SyncGroup,
)
from penstock.features.groups.states import GroupState
from penstock.machines.messages import Rejected

GROUP = "g"
NAMES = ("orders", "bills", "boats")
wishes = st.sampled_from([("orders",), ("bills",), ("orders", "bills"), ("/b.*/",), ("boats", "/o.*/")])
who = st.integers(0, 99)  # picks one of those there are


class World:
    """The coordinator, and what it lives on."""

    def __init__(self) -> None:
        self.topics = MemoryTopics(orders=3)
        self.journal = MemoryJournal()
        self.now_ms = 0
        self.fresh = 0
        self.offsets: dict[tuple[str, int], int] = {}
        self.start()

    def start(self) -> None:
        self.shard = self.reader()
        self.shard.open(self.shard.read_log())

    def reader(self) -> GroupShard:
        config = GroupSettings(initial_delay_ms=0, offsets_retention_ms=10**12)
        now: Callable[[], int] = lambda: self.now_ms  # noqa: E731
        return GroupShard(self.journal, config, now, now, lambda work: work(), self.topics)

    @property
    def group(self) -> Group | ConsumerGroup | None:
        found = self.shard.machines.get(GROUP)
        return None if found is None else found.group

    def ask(self, request: Any, reply: Callable[[Any], None]) -> None:
        try:
            self.shard.ask(GROUP, request, reply)
        except PenstockError as error:
            reply(Rejected(error))

    def new_id(self) -> str:
        self.fresh += 1
        return f"m{self.fresh}"


class NewClient:
    """A member of the new protocol."""

    def __init__(self, world: World, wants: tuple[str, ...], instance: str | None) -> None:
        self._world = world
        self.id = world.new_id()
        self.instance = instance
        self.wants = wants
        self.epoch = 0
        self.has: frozenset[Place] = frozenset()
        self.told: frozenset[Place] = frozenset()
        self.must_tell_all = True
        self.is_gone = False

    @property
    def is_member(self) -> bool:
        group = self._world.group
        return isinstance(group, ConsumerGroup) and self.id in group.ledger.members and not self.is_gone

    def act(self, *, holds: bool = False, hears: bool = True, wants: tuple[str, ...] | None = None) -> None:
        if self.is_gone:
            return
        is_news = False
        if not holds and self.has != self.told:
            self.has, is_news = self.told, True
        self.wants = self.wants if wants is None else wants
        tells_all = self.must_tell_all or self.epoch == 0
        tells_wishes = tells_all or wants is not None
        patterns = [each.strip("/") for each in self.wants if each.startswith("/")]
        request = ConsumerHeartbeat(
            member_id=self.id,
            epoch=self.epoch,
            client_id="new",
            client_host="/here",
            instance_id=self.instance,
            rebalance_timeout_ms=20_000 if tells_all else -1,
            topics=tuple(each for each in self.wants if not each.startswith("/")) if tells_wishes else None,
            regex=(patterns[0] if patterns else "") if tells_wishes else None,
            owned=self.has if tells_all or is_news or holds else None,
        )
        self.must_tell_all = not hears
        self._world.ask(request, self._heard if hears else lambda _: None)

    def _heard(self, answer: Beat | Rejected) -> None:
        if isinstance(answer, Rejected):
            if answer.error.code == "not_coordinator":
                self.must_tell_all = True
            elif answer.error.code in ("fenced_member_epoch", "unknown_member", "fenced_instance"):
                self.lose_all()
            else:
                assert answer.error.code == "unreleased_instance", answer.error
            return
        assert answer.member_id == self.id
        assert answer.epoch >= self.epoch, "epochs only grow"
        self.epoch = answer.epoch
        if answer.assignment is None:
            return
        group = self._world.group
        assert isinstance(group, ConsumerGroup)
        assert not (self.told - answer.assignment) & group.ledger.target_of(self.id), "what is to stay was taken away"
        self.told = answer.assignment

    def lose_all(self) -> None:
        self.epoch, self.has, self.told = 0, frozenset(), frozenset()

    def leave(self, epoch: int) -> None:
        request = ConsumerHeartbeat(
            member_id=self.id, epoch=epoch, client_id="new", client_host="/here", instance_id=self.instance
        )
        self._world.ask(request, lambda _: None)
        self.is_gone = True


class ClassicClient:
    """An eager member of the classic protocol; if it leads, it shares out in turns."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.id = ""
        self.generation = -1
        self.state = "out"
        self.has: frozenset[Place] = frozenset()
        self.is_gone = False
        self._led: tuple[str, ...] = ()
        self._turn = 0  # answers to what was asked before a crash are not for us

    @property
    def is_member(self) -> bool:
        return self.state == "in" and not self.is_gone

    @property
    def identity(self) -> MemberIdentity:
        return MemberIdentity(member_id=self.id, generation=self.generation)

    def act(self, **_: object) -> None:
        if self.is_gone or self.state in ("joining", "syncing"):
            return
        if self.state == "out":
            self._join()
        elif self.state == "joined":
            self._sync()
        else:
            try:
                self._world.shard.heartbeat(GROUP, self.identity)
            except PenstockError as error:
                self.fall_out(error)

    def fall_out(self, error: PenstockError | None = None) -> None:
        self._turn += 1
        self.state, self.has = "out", frozenset()
        if error is not None and error.code == "unknown_member":
            self.id = ""

    def _ask(self, request: Any, heard: Callable[[Any], None]) -> None:
        self._turn += 1
        turn = self._turn

        def reply(answer: Any) -> None:
            if turn != self._turn:
                return
            if isinstance(answer, Rejected):
                self.fall_out(answer.error)
            else:
                heard(answer)

        self._world.ask(request, reply)

    def _join(self) -> None:
        self.state = "joining"
        request = JoinRequest(
            member_id=self.id,
            instance_id=None,
            client_id="old",
            client_host="/here",
            session_timeout_ms=20_000,
            rebalance_timeout_ms=20_000,
            protocol_type="consumer",
            protocols=(("range", subscription("orders") + b"\0\0\0\0"),),
            fresh_id=self._world.new_id(),
            takes_id_first=True,
            can_skip_assignment=True,
        )
        self._ask(request, self._joined)

    def _joined(self, answer: JoinedGroup | Promised) -> None:
        self.id = answer.member_id
        if isinstance(answer, Promised):
            self.state = "out"
            return
        self.generation = answer.generation
        self._led = tuple(member_id for member_id, _, _ in answer.members)
        self.state = "joined"

    def _sync(self) -> None:
        self.state = "syncing"
        shape = self._world.topics.find("orders")
        indexes = range(shape.partitions if shape else 0)
        given = tuple(
            (each, write_assignment(("orders", at) for at in indexes if at % len(self._led) == turn))
            for turn, each in enumerate(self._led)
        )
        self._ask(
            SyncGroup(identity=self.identity, protocol_type="consumer", protocol="range", assignments=given),
            self._synced,
        )

    def _synced(self, answer: SyncedGroup) -> None:
        self.has = frozenset(to_ids(read_assignment(answer.assignment), self._world.topics))
        self.state = "in"

    def leave(self, _epoch: int) -> None:
        self._world.ask(Leave((self.identity,)), lambda _: None)
        self.is_gone = True
        self.fall_out()


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Events in any order."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.clients: list[NewClient | ClassicClient] = []
        self.watched: ConsumerGroup | None = None
        self.highest = 0

    def _pick(self, number: int) -> NewClient | ClassicClient | None:
        return self.clients[number % len(self.clients)] if self.clients else None

    # -- members ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < 7)
    @rule(wants=wishes, is_static=st.booleans())
    def comes(self, wants: tuple[str, ...], is_static: bool) -> None:
        instance = f"i{len(self.clients) % 2}" if is_static else None
        self.clients.append(NewClient(self.world, wants, instance))
        self.clients[-1].act()

    @precondition(lambda self: len(self.clients) < 7)
    @rule()
    def comes_by_the_classic_protocol(self) -> None:
        self.clients.append(ClassicClient(self.world))
        self.clients[-1].act()

    @rule(number=who, holds=st.booleans(), hears=st.booleans())
    def acts(self, number: int, holds: bool, hears: bool) -> None:
        client = self._pick(number)
        if client is not None:
            client.act(holds=holds, hears=hears)

    @rule(times=st.integers(1, 3))
    def all_act(self, times: int) -> None:
        for _ in range(times):
            for client in self.clients:
                client.act()

    @rule(number=who, wants=wishes)
    def wants_something_else(self, number: int, wants: tuple[str, ...]) -> None:
        client = self._pick(number)
        if isinstance(client, NewClient) and client.epoch > 0:
            client.act(wants=wants)

    @rule(number=who, is_for_now=st.booleans())
    def leaves(self, number: int, is_for_now: bool) -> None:
        client = self._pick(number)
        if client is not None:
            is_static = isinstance(client, NewClient) and client.instance is not None
            client.leave(-2 if is_for_now and is_static else -1)
            self.clients.remove(client)

    @rule(number=who)
    def crashes(self, number: int) -> None:
        client = self._pick(number)
        if client is not None:
            client.is_gone = True
            self.clients.remove(client)

    @rule(number=who, offset=st.integers(0, 1_000))
    def commits(self, number: int, offset: int) -> None:
        client = self._pick(number)
        if isinstance(client, NewClient) and client.has:
            topic_id, index = min(client.has)
            name = self.world.topics.name_of(topic_id)
            if name is None:
                return

            def heard(answer: Settled | Rejected) -> None:
                if isinstance(answer, Settled):
                    self.world.offsets[name, index] = offset

            identity = MemberIdentity(member_id=client.id, generation=client.epoch)
            self.world.ask(CommitOffsets(identity, (OffsetCommit(name, index, offset, -1, "", topic_id),)), heard)

    # -- the world ----------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), more=st.integers(1, 3))
    def topic_grows(self, name: str, more: int) -> None:
        shape = self.world.topics.find(name)
        self.world.topics.put(name, min((shape.partitions if shape else 0) + more, 8))

    @rule(name=st.sampled_from(NAMES))
    def topic_is_deleted(self, name: str) -> None:
        self.world.topics.delete(name)

    @rule(seconds=st.sampled_from([1, 5, 25, 50]))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.now_ms += 1_000
            self.world.shard.tick()

    @rule()
    def the_node_restarts(self) -> None:
        self.world.journal.crash()
        self.world.start()
        for client in self.clients:
            if isinstance(client, NewClient):
                client.must_tell_all = True
            elif client.state in ("joining", "syncing"):
                client.fall_out()

    @rule(is_full=st.booleans())
    def the_disk_is_full(self, is_full: bool) -> None:
        self.world.journal.is_full = is_full

    # -- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_had_twice(self) -> None:
        """By members, that is: who is out, and was not told yet, is not counted. Classic groups are another test's."""
        if not isinstance(getattr(self, "world", None) and self.world.group, ConsumerGroup):
            return
        seen: dict[Place, object] = {}
        for client in self.clients:
            if client.is_member and self._is_in(client):
                for place in client.has:
                    assert place not in seen, f"{place} is had twice"
                    seen[place] = client

    def _is_in(self, client: NewClient | ClassicClient) -> bool:
        """Whether the group counts it as the owner of what it has; a fenced member just does not know yet."""
        group = self.world.group
        assert isinstance(group, ConsumerGroup)
        return client.id in group.ledger.members

    @invariant()
    def epochs_only_grow(self) -> None:
        group = getattr(self, "world", None) and self.world.group
        if not isinstance(group, ConsumerGroup):
            return
        if group is self.watched:  # one that was a classic group meanwhile begins anew
            assert group.epoch >= self.highest
        self.watched, self.highest = group, group.epoch
        assert group.ledger.group.assignment_epoch <= group.epoch
        for member_id in group.ledger.members:
            assert group.ledger.current_of(member_id).epoch <= group.ledger.group.assignment_epoch

    @invariant()
    def the_log_tells_the_same_story(self) -> None:
        if not hasattr(self, "world"):
            return
        twin = self.world.reader().read_log().get(GROUP)
        group = self.world.group
        if isinstance(group, ConsumerGroup):
            assert twin is not None
            assert isinstance(twin.group, ConsumerGroup)
            for name in ("group", "members", "targets", "currents", "owners", "instances"):
                assert getattr(twin.group.ledger, name) == getattr(group.ledger, name), name
        elif group is not None and group.stored.members:
            assert twin is not None
            assert isinstance(twin.group, Group)
            assert twin.group.stored == group.stored
        kept = {} if twin is None else {where: twin.offsets.get(where) for where in twin.offsets}
        assert {where: offset.offset for where, offset in kept.items() if offset} == self.world.offsets

    def teardown(self) -> None:
        """Once the world is quiet and members go on, everything that somebody wants is had by somebody who wants it."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.journal.is_full = False
        for _ in range(60):
            world.now_ms += 1_000
            world.shard.tick()
            for client in self.clients:
                client.act()
        group = world.group
        if not self.clients:
            assert group is None or not group.members
            return
        waiting = [each for each in self.clients if isinstance(each, NewClient) and not each.is_member]
        assert all(each.instance is not None for each in waiting), "only an instance can be taken by another"
        working = [each for each in self.clients if each not in waiting]
        if isinstance(group, Group):
            assert group.state is GroupState.STABLE
            return
        assert group is not None
        assert group.state is ConsumerGroupState.STABLE
        had = [place for client in working for place in client.has]
        assert len(had) == len(set(had))
        wanted = {shape for name in group.subscribed_topics() if (shape := world.topics.find(name))}
        assert set(had) == {(shape.topic_id, at) for shape in wanted for at in range(shape.partitions)}


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
