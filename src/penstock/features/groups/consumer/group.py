"""A consumer group of the new protocol (KIP-848) as a state machine: no clock, no socket, no log.

Members want topics; whenever that changes, or the topics do, the group gets a new epoch and a new target is worked out:
who is to read what. Each member is then led to its part of it by its own heartbeats, one step at a time, so that none
has to wait for the slowest, and what stays with a member is never touched. All of it is in the log: after a crash every
member goes on where it was. What is not in the log is only when members were last heard of; see `Attendance`.

As in the classic group, requests and the time come in, an `Outcome` goes out, and `apply` alone changes what is stored.

Members of the classic protocol may be in such a group too: their joins, syncs and heartbeats lead to the same steps. A
classic member takes a step towards its target by joining again. So it is told that a rebalance is under way whenever
a step can be taken, gets its next epoch as the generation of its join, and its partitions when it syncs. It never leads
and never waits for others.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.config.settings import GroupSettings
from penstock.errors import (
    FencedInstance,
    GroupError,
    GroupNotEmpty,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidSessionTimeout,
    PenstockError,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMember,
)
from penstock.features.groups.client_metadata import (
    CONSUMER_PROTOCOL,
    ClientSubscription,
    read_subscription,
    write_assignment,
)
from penstock.features.groups.config import MemberTimesOf
from penstock.features.groups.consumer.assignors import ASSIGNORS, Place, choose_assignor
from penstock.features.groups.consumer.conversion import downgrade
from penstock.features.groups.consumer.ledger import Ledger, LedgerDraft
from penstock.features.groups.consumer.members import Attendance, HeartbeatRules
from penstock.features.groups.consumer.messages import (
    LEAVING,
    LEAVING_FOR_NOW,
    Beat,
    ConsumerHeartbeat,
    check_heartbeat,
)
from penstock.features.groups.consumer.reconciliation import LEFT_FOR_NOW, Current, MemberState, reconcile
from penstock.features.groups.consumer.records import (
    ConsumerMemberKey,
    CurrentKey,
    StoredClassicSide,
    StoredConsumer,
    common_protocols,
)
from penstock.features.groups.consumer.topics import ReadableTopics, look_up, to_ids, to_names, wanted_names
from penstock.features.groups.messages import (
    CommitInTransaction,
    CommitOffsets,
    Delete,
    DeleteOffsets,
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
from penstock.features.groups.offsets import CommittedOffsets, OffsetKeeper
from penstock.features.groups.records import GroupChange, GroupKey, OffsetKey, StoredGroup, StoredMember, StoredOffset
from penstock.machines.messages import Outcome, Rejected, Reply, Request

# Working out a target takes time, and in a large group everybody may come at once. So it is done at most this often, in
# milliseconds for so many members and partitions together, up to a second; in a small group it is done at once.
_AIM_UNITS_A_MS: Final = 50
_AIM_INTERVAL_MAX_MS: Final = 1_000


class ConsumerGroupState(Enum):
    """What Kafka's tools show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the target is behind the group
    RECONCILING = "Reconciling"  # members are on their way to the target
    STABLE = "Stable"


class ConsumerMember(NamedTuple):
    """A member as people look at it, in the same words as a classic one."""

    id: str
    instance_id: str | None
    facts: StoredMember


class ConsumerGroup(OffsetKeeper):
    """The members, targets and offsets of one group."""

    kind = "consumer"
    protocol_type = CONSUMER_PROTOCOL

    def __init__(
        self,
        group_id: str,
        config: GroupSettings,
        topics: ReadableTopics,
        offsets: CommittedOffsets,
        times_of: MemberTimesOf,
    ) -> None:
        self.id = group_id
        self.offsets = offsets
        self.ledger = Ledger(group_id)
        self._config = config
        self._times_of = times_of
        self._topics = topics
        self._attendance = Attendance()
        self._admission = HeartbeatRules(group_id, config, self.ledger)
        self._classic = ClassicSide(
            self, self._admission, topics, (config.session_timeout_min_ms, config.session_timeout_max_ms)
        )
        self._next_aim_ms = 0
        self._seen_version = -1  # of topics, when they were last found to be as the target has them

    def __repr__(self) -> str:
        group = self.ledger.group
        return (
            f"<ConsumerGroup {self.id!r} {self.state.value}, epoch {group.epoch}, {len(self.ledger.members)} members>"
        )

    @property
    def epoch(self) -> int:
        return self.ledger.group.epoch

    @property
    def state(self) -> ConsumerGroupState:
        group = self.ledger.group
        if not self.ledger.members:
            return ConsumerGroupState.EMPTY
        if group.epoch > group.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self.ledger.current_of(each).is_settled_at(group.assignment_epoch) for each in self.ledger.members):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def generation(self) -> int:
        """The epoch, by its name in classic groups."""
        return self.epoch

    @property
    def protocol(self) -> str:
        return self.ledger.group.assignor

    @property
    def member_count(self) -> int:
        return len(self.ledger.members)

    @property
    def members(self) -> tuple[ConsumerMember, ...]:
        return tuple(self._view(member_id, facts) for member_id, facts in self.ledger.members.items())

    def _view(self, member_id: str, facts: StoredConsumer) -> ConsumerMember:
        current = self.ledger.current_of(member_id)
        stored = StoredMember(
            member_id=member_id,
            instance_id=facts.instance_id,
            client_id=facts.client_id,
            client_host=facts.client_host,
            session_timeout_ms=self._session_ms(member_id),
            rebalance_timeout_ms=facts.rebalance_timeout_ms,
            protocols=() if facts.classic is None else facts.classic.protocols,
            assignment=write_assignment(to_names(current.assigned, self._topics)),
        )
        return ConsumerMember(member_id, facts.instance_id, stored)

    @property
    def wake_ms(self) -> float:
        """Nothing happens by itself before this time."""
        is_behind = self.ledger.members and self.ledger.group.epoch > self.ledger.group.assignment_epoch
        return min(self._attendance.wake_ms, self._next_aim_ms) if is_behind else self._attendance.wake_ms

    @property
    def is_empty(self) -> bool:
        return not self.ledger.members

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be lost with it."""
        return self.is_empty and not self.epoch and not self.offsets and not self.offsets.has_undecided

    def handle(self, request: Request[Any], now_ms: int, reply: Reply) -> Outcome[GroupChange]:
        """Decide on a request and answer it; an error instead changes nothing."""
        outcome = Outcome[GroupChange]()
        match request:
            case ConsumerHeartbeat():
                self._heartbeat(request, now_ms, reply, outcome)
            case CommitOffsets():
                self._commit(request.identity, request.offsets, reply, outcome)
            case CommitInTransaction():
                self._commit(request.identity, request.offsets, reply, outcome, is_transactional=True)
                outcome.producer = request.producer
            case JoinRequest():
                self._classic.join(request, now_ms, reply, outcome)
            case SyncGroup():
                self._classic.sync(request, now_ms, reply, outcome)
            case Leave():
                self._classic.leave(request, now_ms, reply, outcome)
            case DeleteOffsets():
                self._delete_offsets(request.places, reply, outcome)
            case Delete():
                self._delete(reply, outcome)
            case _:
                raise AssertionError(f"no rule for {request!r}")
        return outcome

    def heartbeat(self, identity: MemberIdentity, now_ms: int) -> None:
        """Note that a member of the classic protocol is alive; it hears by an error if it has to join again."""
        self._classic.heartbeat(identity, now_ms)

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def _heartbeat(self, request: ConsumerHeartbeat, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        check_heartbeat(request)
        if request.epoch in (LEAVING, LEAVING_FOR_NOW):
            self._leave(request, now_ms, reply, outcome)
            return
        draft = LedgerDraft(self.ledger)
        member_id = self._admission.admit(request, draft)
        before = draft.current_of(member_id)
        after = self.step(member_id, request.owned, draft, now_ms)
        outcome.changes += draft.changes()
        self.touch(member_id, now_ms)
        is_news = request.is_full or after.assigned.keys() != before.assigned.keys()
        told = frozenset(after.assigned) if is_news else None
        outcome.reply(reply, Beat(member_id, after.epoch, self._times_of(self.id).heartbeat_interval_ms, told))

    def step(self, member_id: str, owned: Iterable[Place] | None, draft: LedgerDraft, now_ms: int) -> Current:
        """Bring the target up to date and lead a member one step towards it."""
        self.aim(draft, now_ms)
        target = draft.target_of(member_id)
        if draft.epoch > draft.assignment_epoch:  # the target may be for what the member wanted before
            facts = draft.members()[member_id]
            wanted = look_up({member_id: facts}, self._topics).partitions
            target = frozenset(place for place in target if place[0] in wanted)
        after = reconcile(
            draft.current_of(member_id),
            target,
            draft.assignment_epoch,
            None if owned is None else frozenset(owned),
            partial(draft.is_free_for, member_id),
        )
        draft.put_current(member_id, after)
        return after

    def touch(self, member_id: str, now_ms: int) -> None:
        """The member was heard of; one that is only about to be stored is touched when it is."""
        if member_id in self._attendance:
            self._attendance.touch(member_id, now_ms + self._session_ms(member_id))

    def excuse(self, member_id: str) -> None:
        """A classic member has joined again, as it was told to."""
        if member_id in self._attendance:
            self._attendance.excuse(member_id)

    def expect_join(self, member_id: str, now_ms: int) -> None:
        """A classic member was told to join again."""
        self._attendance.expect_soon(member_id, now_ms + self.ledger.members[member_id].rebalance_timeout_ms)

    def _session_ms(self, member_id: str) -> int:
        classic = self.ledger.members[member_id].classic
        return self._times_of(self.id).session_timeout_ms if classic is None else classic.session_timeout_ms

    # -- the target ---------------------------------------------------------------------------------------------------

    def aim(self, draft: LedgerDraft, now_ms: int) -> None:
        """Work out a new target if members or topics changed since the last one."""
        if draft.epoch == draft.assignment_epoch and self._topics.version == self._seen_version:
            return
        members = draft.members()
        subscriptions = look_up(members, self._topics)
        if subscriptions.fingerprint != draft.fingerprint:
            draft.fingerprint = subscriptions.fingerprint
            draft.bump()
        if draft.epoch == draft.assignment_epoch:
            self._seen_version = self._topics.version
            return
        if draft.assignment_epoch and now_ms < self._next_aim_ms:
            return
        assignor = choose_assignor(facts.assignor for facts in members.values())
        previous = {member_id: draft.target_of(member_id) for member_id in members}
        target = ASSIGNORS[assignor](subscriptions.members, previous, subscriptions.partitions)
        for member_id, places in target.items():
            draft.put_target(member_id, places)
        draft.assignor = assignor
        draft.assignment_epoch = draft.epoch
        units = len(members) + sum(subscriptions.partitions.values())
        self._next_aim_ms = now_ms + min(units // _AIM_UNITS_A_MS, _AIM_INTERVAL_MAX_MS)

    # -- leaving ------------------------------------------------------------------------------------------------------

    def _leave(self, request: ConsumerHeartbeat, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        member_id = self._admission.find(request)
        if request.epoch == LEAVING_FOR_NOW:
            draft = LedgerDraft(self.ledger)
            draft.put_current(member_id, self.ledger.current_of(member_id).at(LEFT_FOR_NOW))
            outcome.changes += draft.changes()
        else:
            self.lose([member_id], now_ms, outcome)
        outcome.reply(reply, Beat(member_id, request.epoch, 0, None))

    def lose(self, member_ids: Iterable[str], now_ms: int, outcome: Outcome[GroupChange]) -> None:
        """Members are gone; what they had is free for others."""
        draft = LedgerDraft(self.ledger)
        for member_id in member_ids:
            draft.drop(member_id)
            draft.bump()
        left = draft.members()
        if left and all(facts.classic is not None for facts in left.values()):
            self.step_down(draft, outcome)
            return
        if left:
            self.aim(draft, now_ms)
        outcome.changes += draft.changes()

    def step_down(self, draft: LedgerDraft, outcome: Outcome[GroupChange]) -> None:
        """Only classic members are left, so the group is a classic one again."""
        outcome.changes += downgrade(self.ledger, draft, self._topics)

    def tick(self, now_ms: int) -> Outcome[GroupChange]:
        """Let time pass: who was silent for too long, or did not let go of its partitions in time, is out."""
        outcome = Outcome[GroupChange]()
        late = self._attendance.late(now_ms)
        if late:
            self.lose(late, now_ms, outcome)
        elif self.ledger.members:
            draft = LedgerDraft(self.ledger)
            self.aim(draft, now_ms)
            outcome.changes += draft.changes()
        return outcome

    def dismiss_all(self, _error: PenstockError) -> Outcome[GroupChange]:
        """End every wait, as when another node takes over. Here everybody is answered at once."""
        return Outcome()

    # -- offsets ------------------------------------------------------------------------------------------------------

    def _commit(
        self,
        identity: MemberIdentity,
        commits: tuple[OffsetCommit, ...],
        reply: Reply,
        outcome: Outcome[GroupChange],
        *,
        is_transactional: bool = False,
    ) -> None:
        """Remember offsets of a member or, while the group is empty, of anybody who manages partitions by itself."""
        is_anonymous = identity.generation < 0 and not identity.member_id and identity.instance_id is None
        if not (is_anonymous and is_transactional) and not (identity.generation < 0 and self.is_empty):
            places = [(commit.topic_id, commit.partition) for commit in commits]
            self._check_committer(identity, places, is_transactional=is_transactional)
        outcome.reply(reply, Settled(self.offsets.commit(commits, outcome)))

    def _check_committer(self, identity: MemberIdentity, places: Iterable[Place], *, is_transactional: bool) -> None:
        """A member may commit in its epoch and, for what it has had since, in an earlier one (KIP-1251)."""
        current = self._current(identity.member_id)
        if identity.generation == current.epoch:
            return
        had = {**current.assigned, **current.revoking}
        if 0 <= identity.generation < current.epoch and all(
            had.get(place, current.epoch + 1) <= identity.generation for place in places
        ):
            return
        # Classic members, and producers that name no member, do not know of epochs.
        is_classic = is_transactional or self.ledger.members[identity.member_id].classic is not None
        kind: type[PenstockError] = IllegalGeneration if is_classic else StaleMemberEpoch
        raise kind(f"Member {identity.member_id!r} is in epoch {current.epoch}, not {identity.generation}.")

    def check_reader(self, member_id: str | None, epoch: int) -> None:
        """Whether somebody may read offsets: anybody who is no member, and members that are up to date."""
        if not member_id and epoch < 0:
            return
        current = self._current(member_id or "")
        if epoch != current.epoch:
            raise StaleMemberEpoch(f"Member {member_id!r} is in epoch {current.epoch}, not {epoch}.")

    def _current(self, member_id: str) -> Current:
        if member_id not in self.ledger.members:
            raise UnknownMember(f"Group {self.id!r} does not know member {member_id!r}; join again.")
        return self.ledger.current_of(member_id)

    def subscribed_topics(self) -> frozenset[str]:
        """Every topic that some member wants."""
        wishes = {(facts.topics, facts.regex): facts for facts in self.ledger.members.values()}
        return frozenset[str]().union(*(wanted_names(facts, self._topics) for facts in wishes.values()))

    def _delete(self, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        if not self.is_empty:
            raise GroupNotEmpty(f"Group {self.id!r} has {len(self.ledger.members)} members. Stop them first.")
        self._forget(self.offsets, outcome)
        outcome.reply(reply, None)

    @property
    def _emptied_ms(self) -> int:
        return self.ledger.group_ms

    def tombstones(self) -> Iterable[GroupChange]:
        return self.ledger.tombstones()

    # -- what survives ------------------------------------------------------------------------------------------------

    def apply(self, change: GroupChange, at_ms: int, now_ms: int = 0) -> None:
        """Take over what was written to the log at ``at_ms``."""
        key, value = change.key, change.value
        assert not isinstance(key, (GroupKey, OffsetKey)), "offsets are taken over by the slot"
        assert not isinstance(value, (StoredGroup, StoredOffset))
        self.ledger.apply(key, value, at_ms)
        if isinstance(key, (ConsumerMemberKey, CurrentKey)):
            self._attend(key.member, now_ms, is_new_step=isinstance(key, CurrentKey))

    def _attend(self, member_id: str, now_ms: int, *, is_new_step: bool) -> None:
        """Set a member's clocks by what is stored of it now."""
        if member_id not in self.ledger.members:
            self._attendance.forget(member_id)
            return
        if member_id not in self._attendance:
            self._attendance.touch(member_id, now_ms + self._session_ms(member_id))
        if is_new_step and self.ledger.current_of(member_id).state is MemberState.UNREVOKED:
            self._attendance.expect(member_id, now_ms + self.ledger.members[member_id].rebalance_timeout_ms)
        elif is_new_step:
            self._attendance.excuse(member_id)

    def resume(self, now_ms: int) -> None:
        """Begin to coordinate a group just read from its log: every clock starts anew."""
        self._attendance = Attendance()
        for member_id in self.ledger.members:
            self._attend(member_id, now_ms, is_new_step=True)


class ClassicSide:
    """Serves the classic members of one group."""

    def __init__(
        self,
        group: ConsumerGroup,
        admission: HeartbeatRules,
        topics: ReadableTopics,
        session_limits_ms: tuple[int, int],
    ) -> None:
        self._group = group
        self._admission = admission
        self._topics = topics
        self._session_limits_ms = session_limits_ms

    # -- joining ------------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        """Take in a member or have it take its next step."""
        subscription = self._check(request)
        if not request.member_id and request.takes_id_first and request.instance_id is None:
            outcome.reply(reply, Promised(request.fresh_id))
            return
        draft = LedgerDraft(self._group.ledger)
        member_id = self._admit(request, draft)
        facts = StoredConsumer(
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=tuple(sorted(set(subscription.topics))),
            instance_id=request.instance_id,
            classic=StoredClassicSide(session_timeout_ms=request.session_timeout_ms, protocols=request.protocols),
        )
        self._admission.put_member(member_id, facts, draft)
        if all(each.classic is not None for each in draft.members().values()):
            self._group.step_down(draft, outcome)  # the last member of the new protocol came back as a classic one
            outcome.reply(reply, Rejected(RebalanceInProgress("The group is a classic one again; join again.")))
            return
        after = self._group.step(member_id, to_ids(subscription.owned, self._topics), draft, now_ms)
        outcome.changes += draft.changes()
        self._group.touch(member_id, now_ms)
        if after.state is not MemberState.UNREVOKED:
            self._group.excuse(member_id)
        outcome.reply(reply, self._joined(member_id, request, after))

    def _check(self, request: JoinRequest) -> ClientSubscription:
        low, high = self._session_limits_ms
        if not low <= request.session_timeout_ms <= high:
            raise InvalidSessionTimeout(
                f"A session timeout of {request.session_timeout_ms} ms is outside {low} to {high} ms."
            )
        if request.protocol_type != CONSUMER_PROTOCOL or not request.protocols:
            raise InconsistentProtocol(f"Group {self._group.id!r} speaks 'consumer', not {request.protocol_type!r}.")
        others = (facts for member_id, facts in self._group.ledger.members.items() if member_id != request.member_id)
        common = common_protocols(others)
        if common is not None and not common & {name for name, _ in request.protocols}:
            raise InconsistentProtocol(f"No protocol of this member is spoken by all of group {self._group.id!r}.")
        subscription = read_subscription(request.protocols[0][1])
        if subscription is None:
            raise InconsistentProtocol("The member's metadata is not a consumer's subscription.")
        return subscription

    def _admit(self, request: JoinRequest, draft: LedgerDraft) -> str:
        ledger = self._group.ledger
        member_id = request.member_id or request.fresh_id
        current_id = ledger.instances.get(request.instance_id or "")
        if request.instance_id is not None and request.member_id:
            self._find(MemberIdentity(member_id=request.member_id, instance_id=request.instance_id))
        elif current_id is not None:
            self._admission.take_over(current_id, member_id, draft)
        elif member_id not in ledger.members:
            self._admission.check_room()
        return member_id

    def _joined(self, member_id: str, request: JoinRequest, current: Current) -> JoinedGroup:
        return JoinedGroup(
            member_id=member_id,
            generation=current.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol=request.protocols[0][0],
            leader_id="",
        )

    # -- members that are in ------------------------------------------------------------------------------------------

    def _find(self, identity: MemberIdentity) -> str:
        """The classic member that a request comes from."""
        ledger = self._group.ledger
        member_id: str | None = identity.member_id
        if identity.instance_id is not None:
            member_id = ledger.instances.get(identity.instance_id)
            if member_id is not None and identity.member_id not in ("", member_id):
                raise FencedInstance(f"Instance {identity.instance_id!r} was started again elsewhere.")
        facts = ledger.members.get(member_id or "")
        if facts is None or member_id is None:
            raise UnknownMember(f"Group {self._group.id!r} does not know member {identity.member_id!r}; join again.")
        if facts.classic is None:
            raise UnknownMember(f"Member {member_id!r} speaks the new protocol.")
        return member_id

    def _touch(self, identity: MemberIdentity, now_ms: int) -> tuple[str, Current]:
        member_id = self._find(identity)
        current = self._group.ledger.current_of(member_id)
        if identity.generation != current.epoch:
            raise IllegalGeneration(
                f"Member {member_id!r} is in generation {current.epoch}, not {identity.generation}."
            )
        self._group.touch(member_id, now_ms)
        return member_id, current

    def sync(self, request: SyncGroup, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        """Give a member what it has now."""
        member_id, current = self._touch(request.identity, now_ms)
        classic = self._group.ledger.members[member_id].classic
        assert classic is not None
        protocol = classic.protocols[0][0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol not in (None, protocol):
            raise InconsistentProtocol(f"Member {member_id!r} joined by {protocol!r}, not {request.protocol!r}.")
        # Who is letting go has joined again already; it is sent round once more when that is done.
        if self._group.epoch > current.epoch and current.state is not MemberState.UNREVOKED:
            self._group.expect_join(member_id, now_ms)
            raise RebalanceInProgress
        assignment = write_assignment(to_names(current.assigned, self._topics))
        outcome.reply(reply, SyncedGroup(CONSUMER_PROTOCOL, protocol, assignment))

    def heartbeat(self, identity: MemberIdentity, now_ms: int) -> None:
        """Note that a member is alive, and send it round if there is a step to take."""
        member_id, current = self._touch(identity, now_ms)
        if self._group.epoch > current.epoch or self._can_step(member_id, current):
            self._group.expect_join(member_id, now_ms)
            raise RebalanceInProgress

    def _can_step(self, member_id: str, current: Current) -> bool:
        if current.state is not MemberState.UNRELEASED:
            return current.state is MemberState.UNREVOKED
        ledger = self._group.ledger
        missing = ledger.target_of(member_id) - current.assigned.keys()
        return any(ledger.owners.get(place) is None for place in missing)

    def leave(self, request: Leave, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        """Members go, static ones by their instance."""
        gone: dict[str, None] = {}
        errors: list[GroupError | None] = []
        for identity in request.members:
            try:
                gone[self._find(identity)] = None
                errors.append(None)
            except GroupError as error:
                errors.append(error)
        if gone:
            self._group.lose(gone, now_ms, outcome)
        outcome.reply(reply, Left(tuple(errors)))
