"""Random members, random faults, and a twin that only remembers what everybody was told.

The twin knows no states and no timers. It knows what must never happen: a request answered twice or never, two opinions
on one generation, an assignment that the leader did not give, an offset lost, or taken from somebody whose generation
is over, an answer that a crash could make untrue, a log that tells another story than memory. At the end of each run
the disk is repaired and members behave, and the group has to become stable with all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.groups.journal import MemoryJournal
from tests.unit.groups.transcript import subscription

from penstock.config.settings import GroupSettings
from penstock.errors import CoordinationError, FencedInstance, NotCoordinator, UnknownMember
from penstock.features.groups.coordinator import GroupShard
from penstock.features.groups.group import Group
from penstock.features.groups.messages import (
    CommitOffsets,
    Delete,
    JoinedGroup,
    JoinRequest,
    Leave,
    Left,
    MemberIdentity,
    OffsetCommit,
    Promised,
    Settled,
    SyncedGroup,
    SyncGroup,
)
from penstock.features.groups.records import OffsetKey, StoredOffset, from_record
from penstock.features.groups.states import GroupState
from penstock.machines.messages import Rejected, Request

GROUP = "g"
DYNAMIC, STATIC = 3, 2
PLACES = [("orders", 0), ("orders", 1)]
TICK_MS = 250

clients = st.integers(0, DYNAMIC + STATIC - 1)
places = st.sampled_from(PLACES)


class Client:
    """A member's memory of what it was told."""

    def __init__(self, number: int) -> None:
        self.name = f"c{number}"
        self.instance = f"i{number}" if number >= DYNAMIC else None
        self.wants = "orders"
        self.forget()

    def forget(self) -> None:
        self.id = ""
        self.generation = -1
        self.leads: tuple[str, ...] = ()

    @property
    def identity(self) -> MemberIdentity:
        return MemberIdentity(member_id=self.id, instance_id=self.instance, generation=self.generation)


class Twin:
    """What everybody was told, and what may therefore never be untold."""

    def __init__(self) -> None:
        self.newest = 0  # the newest generation anybody was told of, as far as the log remembers it
        self.protocols: dict[int, str] = {}
        self.leaders: dict[int, str] = {}
        self.given: dict[int, dict[str, bytes]] = {}  # what leaders gave, by generation and member

    def on_joined(self, answer: JoinedGroup) -> None:
        generation = answer.generation
        assert generation >= self.newest, "a generation that was over came back"
        self.newest = generation
        assert self.protocols.setdefault(generation, answer.protocol) == answer.protocol
        if answer.members and not answer.skips_assignment:
            leader = self.leaders.setdefault(generation, answer.member_id)
            assert leader == answer.member_id, "two leaders in one generation"

    def forget_after(self, generation: int) -> None:
        """A crash made undone a generation that was not shared out, or the group was deleted and counts from 1."""
        self.newest = generation
        for known in (self.protocols, self.leaders, self.given):
            for later in [each for each in known if each > generation]:
                del known[later]


@settings(
    max_examples=int(os.environ.get("PENSTOCK_EXAMPLES", "40")),
    phases=[Phase.generate],  # shrinking takes minutes; the seed that is printed replays a failure
    print_blob=True,
    report_multiple_bugs=False,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
class GroupMachine(RuleBasedStateMachine):
    """Plays members, the clock and the disk against one shard."""

    @initialize(initial_delay_ms=st.sampled_from([0, 3_000]))
    def start(self, initial_delay_ms: int) -> None:
        self.config = GroupSettings(initial_delay_ms=initial_delay_ms)
        self.journal = MemoryJournal()
        self.now_ms = 0
        self.clients = [Client(number) for number in range(DYNAMIC + STATIC)]
        self.twin = Twin()
        self.unanswered: dict[int, str] = {}
        self.asked = 0
        self.fresh = 0
        self.offset = 0
        self.acked: list[tuple[tuple[str, int], int]] = []
        self.shard = self.new_shard()

    def new_shard(self) -> GroupShard:
        self.deferred: list[Callable[[], None]] = []
        shard = GroupShard(self.journal, self.config, lambda: self.now_ms, lambda: self.now_ms, self.deferred.append)
        shard.open(shard.read_log())
        return shard

    @property
    def group(self) -> Group | None:
        found = self.shard.machines.get(GROUP)
        return None if found is None else found.group

    def ask(self, request: Request[Any], on_answer: Any, on_error: Any = lambda _: None) -> None:
        self.asked += 1
        number = self.asked
        self.unanswered[number] = type(request).__name__
        shard = self.shard
        written: list[int] = []

        def reply(answer: Any) -> None:
            assert shard is self.shard, "an answer came out of a process that is dead"
            assert number in self.unanswered, f"{request} was answered twice"
            del self.unanswered[number]
            if isinstance(answer, Rejected):
                on_error(answer.error)
                return
            if written:
                assert self.journal.committed >= written[0], "told before it was safe"
            on_answer(answer)

        try:
            self.shard.ask(GROUP, request, reply)
        except CoordinationError as error:
            assert number in self.unanswered, "refused and answered"
            del self.unanswered[number]
            on_error(error)
        else:
            written.append(self.journal.end_offset)

    # -- members ------------------------------------------------------------------------------------------------------

    @rule(
        at=clients,
        wants=st.sampled_from(["orders", "bills"]),
        owns=st.binary(max_size=2),
        version=st.sampled_from([3, 8, 9]),
    )
    def join(self, at: int, wants: str, owns: bytes, version: int) -> None:
        client = self.clients[at]
        client.wants = wants
        self.send_join(client, owns, version)

    def send_join(self, client: Client, owns: bytes = b"", version: int = 9) -> None:
        self.fresh += 1
        client_before = client.id
        request = JoinRequest(
            member_id=client.id,
            instance_id=client.instance,
            client_id=client.name,
            client_host="/here",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=(("range", subscription(client.wants, owned=owns)), ("sticky", b"")),
            fresh_id=f"{client.name}-{self.fresh}",
            takes_id_first=version >= 4,
            can_skip_assignment=version >= 9,
        )

        def joined(answer: JoinedGroup | Promised) -> None:
            client.id = answer.member_id
            if isinstance(answer, Promised):
                return
            self.twin.on_joined(answer)
            client.generation = answer.generation
            client.leads = tuple(each[0] for each in answer.members) if not answer.skips_assignment else ()
            group = self.group
            given = self.twin.given.get(answer.generation)
            if given is not None and group is not None and not client_before and client.instance is not None:
                # A restarted static member in a generation that is shared out has what its predecessor had.
                (facts,) = (each for each in group.stored.members if each.instance_id == client.instance)
                given.setdefault(client.id, facts.assignment)

        self.ask(request, joined, self.on_error(client))

    def on_error(self, client: Client) -> Any:
        def react(error: CoordinationError) -> None:
            if isinstance(error, (UnknownMember, FencedInstance)):
                client.forget()

        return react

    @rule(at=clients)
    def restart_member(self, at: int) -> None:
        self.clients[at].forget()

    @rule(at=clients)
    def sync(self, at: int) -> None:
        self.send_sync(self.clients[at])

    def send_sync(self, client: Client) -> None:
        generation = client.generation
        member_id = client.id
        assignments = tuple((member, f"{generation}/{member}".encode()) for member in client.leads)
        group = self.group
        if (
            group is not None
            and group.state is GroupState.COMPLETING
            and assignments
            and group.generation == generation
        ):
            self.twin.given.setdefault(generation, dict(assignments))

        def synced(answer: SyncedGroup) -> None:
            assert answer.assignment == self.twin.given[generation].get(member_id, b"")

        request = SyncGroup(identity=client.identity, protocol_type="consumer", protocol=None, assignments=assignments)
        self.ask(request, synced, self.on_error(client))

    @rule(at=clients)
    def beat(self, at: int) -> None:
        client = self.clients[at]
        try:
            self.shard.heartbeat(GROUP, client.identity)
        except CoordinationError as error:
            self.on_error(client)(error)
        else:
            assert client.generation == self.twin.newest

    @rule(leaving=st.lists(clients, min_size=1, max_size=3, unique=True))
    def leave(self, leaving: list[int]) -> None:
        members = [self.clients[at] for at in leaving]

        def left(answer: Left) -> None:
            assert len(answer.errors) == len(members)

        self.ask(Leave(tuple(client.identity for client in members)), left)

    # -- offsets ------------------------------------------------------------------------------------------------------

    @rule(at=clients, place=places, back=st.sampled_from([0, 0, 0, 1]))
    def commit(self, at: int, place: tuple[str, int], back: int) -> None:
        client = self.clients[at]
        identity = MemberIdentity(
            member_id=client.id, instance_id=client.instance, generation=max(client.generation - back, -1)
        )
        self.send_commit(identity, place)

    @rule(place=places)
    def commit_as_nobody(self, place: tuple[str, int]) -> None:
        self.send_commit(MemberIdentity(member_id=""), place)

    def send_commit(self, identity: MemberIdentity, place: tuple[str, int]) -> None:
        self.offset += 1
        offset = self.offset
        newest = self.twin.newest
        is_empty = self.group is None or self.group.state is GroupState.EMPTY

        def settled(answer: Settled) -> None:
            assert not answer.refused
            assert identity.generation == newest or (identity.generation < 0 and is_empty), "a zombie committed"
            at = self.last_written(place, offset)
            assert at is not None
            assert at < self.journal.committed, "told before it was safe"
            self.acked.append((place, offset))

        self.ask(CommitOffsets(identity, (OffsetCommit(*place, offset, -1, "", "id"),)), settled)

    def last_written(self, place: tuple[str, int], offset: int | None) -> int | None:
        """Where the log says that this was committed, or that it is gone."""
        for at in range(self.journal.end_offset - 1, -1, -1):
            change = from_record(self.journal.records[at])
            key, value = change.key, change.value
            found = value.offset if isinstance(value, StoredOffset) else None
            if isinstance(key, OffsetKey) and (key.topic, key.partition) == place and found == offset:
                return at
        return None

    @rule(place=places)
    def fetch(self, place: tuple[str, int]) -> None:
        if not self.shard.is_ready:
            return
        kept = self.group.offsets.get(place) if self.group else None
        at = self.last_written(place, kept.offset if kept else None)
        assert at is not None or kept is None

        def show(error: object) -> None:
            assert error is not None or at is None or self.journal.committed > at, "shown before it was safe"

        self.shard.when_settled(show)

    @rule()
    def delete(self) -> None:
        before = self.journal.end_offset
        self.ask(Delete(), lambda _: None)
        if self.journal.end_offset > before and (self.group is None or not self.group.generation):
            self.twin.forget_after(0)

    @rule()
    def turn(self) -> None:
        """The event loop gets to what was put off."""
        deferred, self.deferred[:] = self.deferred[:], []
        for work in deferred:
            work()

    # -- time and faults ----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 3, 5, 9, 11, 31]))
    def wait(self, seconds: int) -> None:
        end_ms = self.now_ms + seconds * 1_000
        while self.now_ms < end_ms:
            self.now_ms += TICK_MS
            self.shard.tick()

    @rule(is_slow=st.booleans())
    def make_slow(self, is_slow: bool) -> None:
        self.journal.is_slow = is_slow

    @rule()
    def sync_disk(self) -> None:
        if self.journal.failure is None:
            self.journal.commit()

    @rule(is_full=st.booleans())
    def fill_disk(self, is_full: bool) -> None:
        self.journal.is_full = is_full

    @rule()
    @precondition(lambda self: self.journal.is_slow and self.journal.end_offset > self.journal.committed)
    def break_disk(self) -> None:
        self.journal.fail()
        assert not self.unanswered, "the shard closed and left somebody waiting"
        assert not self.shard.is_ready

    @rule()
    def crash(self) -> None:
        self.journal.crash()
        self.unanswered.clear()  # the connections are gone
        self.shard = self.new_shard()
        self.twin.forget_after(self.group.generation if self.group else 0)
        for place, offset in self.acked:
            assert self.last_written(place, offset) is not None, "a committed offset was lost"

    @rule()
    def hand_over(self) -> None:
        self.shard.close(NotCoordinator("Somebody else leads."))
        waits_for_disk = self.journal.end_offset > self.journal.committed
        assert waits_for_disk or not self.unanswered, "the shard closed and left somebody waiting"
        self.crash()

    # -- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def the_log_tells_the_same_story(self) -> None:
        if not getattr(self, "shard", None) or not self.shard.is_ready:
            return
        twin = GroupShard(self.journal, self.config, lambda: 0, lambda: 0, self.deferred.append).read_log()
        there = {key: group for key, group in self.shard.machines.items() if not _is_volatile(group.group)}
        assert set(there) == set(twin)
        for key, group in there.items():
            assert group.group.stored == twin[key].group.stored
            assert {where: group.offsets.get(where) for where in group.offsets} == {
                where: twin[key].offsets.get(where) for where in twin[key].offsets
            }

    @invariant()
    def members_wait_only_for_what_will_come(self) -> None:
        if not getattr(self, "shard", None) or self.group is None:
            return
        group = self.group
        waiting = 0
        for member in group.members:
            assert member.join_reply is None or group.state is GroupState.PREPARING
            assert member.sync_reply is None or group.state is GroupState.COMPLETING
            waiting += member.is_waiting
        assert waiting <= len(self.unanswered)
        if self.journal.committed == self.journal.end_offset and not self.deferred:
            assert waiting == len(self.unanswered), "a request was lost"
        assert (group.state is GroupState.EMPTY) <= (not group.members)
        if group.state is GroupState.STABLE:
            assert [member.facts for member in group.members] == list(group.stored.members)

    def teardown(self) -> None:
        """Clients recover by themselves: with a working disk and patient members the group settles."""
        if not getattr(self, "shard", None):
            return
        self.crash()
        for client in self.clients:
            client.wants = "orders"
        for _ in range(80):
            self.now_ms += 1_000
            self.shard.tick()
            for client in self.clients:
                self.behave(client)
        group = self.group
        assert group is not None
        assert group.state is GroupState.STABLE, group
        assert {client.id for client in self.clients} == {member.id for member in group.members}
        self.shard.close(NotCoordinator())
        assert not self.unanswered

    def behave(self, client: Client) -> None:
        """What a well-behaved consumer does next."""
        group = self.group
        member = next((each for each in group.members if each.id == client.id), None) if group else None
        if member is not None and member.is_waiting:
            return
        if client.generation < 0:
            self.send_join(client)
            return
        try:
            self.shard.heartbeat(GROUP, client.identity)
        except CoordinationError as error:
            self.on_error(client)(error)
            self.send_join(client)
        else:
            owes_sync = member is not None and member.owes_sync
            if owes_sync or (client.leads and group is not None and group.state is GroupState.COMPLETING):
                self.send_sync(client)


def _is_volatile(group: Group) -> bool:
    """Whether nothing of it was ever stored."""
    return not group.stored.generation and not group.offsets


TestGroupMachine = GroupMachine.TestCase
