"""A classic consumer group as a state machine: no clock, no socket, no log.

Requests and the time come in; an `Outcome` goes out with the changes to persist and the replies to send. What must
survive a crash changes in `apply` alone: the coordinator calls it with each change once it is written, and with the
whole log when it takes over. What need not, such as who is waiting for an answer and when a session ends, is kept
directly.

Times called ``now_ms`` only measure; they come from a clock that never jumps. Wall-clock times come with records.
"""

from __future__ import annotations

from math import inf
from typing import Any

from penstock.config.settings import GroupSettings
from penstock.errors import (
    GroupError,
    GroupNotEmpty,
    IllegalGeneration,
    InconsistentProtocol,
    PenstockError,
    RebalanceInProgress,
    UnknownMember,
)
from penstock.features.groups.client_metadata import CONSUMER_PROTOCOL
from penstock.features.groups.members import ClassicMember, Roster
from penstock.features.groups.messages import (
    CommitInTransaction,
    CommitOffsets,
    Delete,
    DeleteOffsets,
    JoinRequest,
    Leave,
    Left,
    MemberIdentity,
    Settled,
    SyncGroup,
    Where,
)
from penstock.features.groups.offsets import CommittedOffsets, OffsetKeeper
from penstock.features.groups.records import GroupChange, GroupKey, StoredGroup
from penstock.features.groups.rounds import JoinRules, Round
from penstock.features.groups.states import VERDICTS, GroupEvent, GroupState, GroupVerdict
from penstock.machines.messages import Outcome, Reply, Request


class Group(OffsetKeeper):
    """The members and offsets of one group."""

    kind = "classic"

    def __init__(self, group_id: str, config: GroupSettings, offsets: CommittedOffsets | None = None) -> None:
        self.id = group_id
        self._config = config
        self._roster = Roster(group_id)
        self._round = Round(group_id, config, self._roster)
        self._admission = JoinRules(group_id, config, self._roster, self._round)
        self.offsets = CommittedOffsets(group_id, config) if offsets is None else offsets
        self.wake_ms: float = inf  # nothing happens by itself before this time

    def __repr__(self) -> str:
        return f"<Group {self.id!r} {self.state.value}, generation {self.generation}, {len(self._roster)} members>"

    @property
    def state(self) -> GroupState:
        return self._round.state

    @property
    def generation(self) -> int:
        return self._round.generation

    @property
    def protocol_type(self) -> str:
        return self._round.protocol_type

    @property
    def protocol(self) -> str | None:
        return self._round.protocol

    @property
    def leader_id(self) -> str | None:
        return self._round.leader_id

    @property
    def member_count(self) -> int:
        return len(self._roster)

    @property
    def members(self) -> tuple[ClassicMember, ...]:
        return tuple(self._roster)

    @property
    def stored(self) -> StoredGroup:
        """The generation that is in the log."""
        return self._round.stored

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be lost with it."""
        return (
            self.state is GroupState.EMPTY
            and not self.stored.generation
            and not self.offsets
            and not self.offsets.has_undecided
            and not self._roster.promised
        )

    def handle(self, request: Request[Any], now_ms: int, reply: Reply) -> Outcome[GroupChange]:
        """Decide on a request. The reply is in this outcome or a later one; a `GroupError` instead changes nothing."""
        outcome: Outcome[GroupChange] = Outcome()
        match request:
            case CommitOffsets():
                self._commit(request, now_ms, reply, outcome)
                return outcome
            case CommitInTransaction():
                self._commit_in_transaction(request, now_ms, reply, outcome)
                return outcome
            case JoinRequest():
                self._admission.join(request, now_ms, reply, outcome)
            case SyncGroup():
                self._sync(request, now_ms, reply, outcome)
            case Leave():
                outcome.reply(reply, Left(tuple(self._leave(member, now_ms, outcome) for member in request.members)))
            case DeleteOffsets():
                self._delete_offsets(request.places, reply, outcome)
            case Delete():
                self._delete(reply, outcome)
            case _:
                raise AssertionError(f"no rule for {request!r}")
        self._round.advance(now_ms, outcome)
        self.wake_ms = now_ms
        return outcome

    def take_round_duration(self, now_ms: int) -> int | None:
        """How many milliseconds a round took that is over by now and was not told of before."""
        return self._round.take_duration(now_ms)

    # -- members ------------------------------------------------------------------------------------------------------

    def heartbeat(self, identity: MemberIdentity, now_ms: int) -> None:
        """Note that a member is alive; it hears by an error if it has to join again."""
        self._touch(GroupEvent.HEARTBEAT, identity, now_ms)

    def _touch(self, event: GroupEvent, identity: MemberIdentity, now_ms: int) -> ClassicMember:
        """The member that a request comes from, if the request is in order at this time."""
        member = self._roster.find(identity)
        if identity.generation != self.generation:
            raise IllegalGeneration(f"Group {self.id!r} is in generation {self.generation}, not {identity.generation}.")
        member.touch(now_ms)
        if VERDICTS[event][self.state] is GroupVerdict.REBALANCING:
            raise RebalanceInProgress
        return member

    def _sync(self, request: SyncGroup, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        """Give a member its assignment, as soon as the leader has brought it."""
        member = self._touch(GroupEvent.SYNC, request.identity, now_ms)
        kind, protocol = request.protocol_type, request.protocol
        if kind not in (None, self.protocol_type) or protocol not in (None, self.protocol):
            raise InconsistentProtocol(f"Group {self.id!r} has settled on {self.protocol!r}, not {protocol!r}.")
        if VERDICTS[GroupEvent.SYNC][self.state] is GroupVerdict.ANSWER:
            member.owes_sync = False
            outcome.reply(reply, self._round.synced(member.facts.assignment))
            return
        member.wait_for_sync(reply, outcome)
        if member.id == self.leader_id:
            self._round.assign(request, now_ms, outcome)

    def begin_round(self, now_ms: int) -> None:
        """Have everybody join again, in a group that is stable."""
        self._round.begin(now_ms, Outcome())  # no member waits for anything that this could end
        self.wake_ms = now_ms

    def _leave(self, identity: MemberIdentity, now_ms: int, outcome: Outcome[GroupChange]) -> GroupError | None:
        if self._roster.promised.pop(identity.member_id, None) is not None:
            return None
        try:
            member = None if identity.member_id else self._roster.of_instance(identity.instance_id)
            self._lose(member or self._roster.find(identity), "The member left its group.", now_ms, outcome)
        except GroupError as error:
            return error
        return None

    def _lose(self, member: ClassicMember, why: str, now_ms: int, outcome: Outcome[GroupChange]) -> None:
        member.dismiss(UnknownMember(why), outcome)
        self._roster.remove(member)
        if VERDICTS[GroupEvent.LOSS][self.state] is GroupVerdict.BEGIN:
            self._round.begin(now_ms, outcome)
        self._round.hurry(now_ms)

    def tick(self, now_ms: int) -> Outcome[GroupChange]:
        """Let time pass: sessions end, promised ids lapse, rounds close."""
        outcome: Outcome[GroupChange] = Outcome()
        promised = self._roster.promised
        for member_id in [member_id for member_id, until_ms in promised.items() if until_ms <= now_ms]:
            del promised[member_id]
        late = self._round.overdue(now_ms)
        silent = [member for member in self._roster if member.can_expire and member.deadline_ms <= now_ms]
        for member in dict.fromkeys(late + silent):
            self._lose(member, "The member was not heard of in time.", now_ms, outcome)
        if self._round.is_stuck(now_ms):
            self._round.begin(now_ms, outcome)
        self._round.advance(now_ms, outcome)
        self.wake_ms = self._next_deadline_ms()
        return outcome

    def _next_deadline_ms(self) -> float:
        deadlines = [member.deadline_ms for member in self._roster if member.can_expire]
        deadlines += self._roster.promised.values()
        if self._round.ends_ms is not None:
            deadlines.append(self._round.ends_ms)
        return min(deadlines, default=inf)

    def dismiss_all(self, error: PenstockError) -> Outcome[GroupChange]:
        """End every wait, as when another node takes over."""
        outcome: Outcome[GroupChange] = Outcome()
        for member in self._roster:
            member.dismiss(error, outcome)
        return outcome

    # -- offsets ------------------------------------------------------------------------------------------------------

    def _commit(self, request: CommitOffsets, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        """Remember offsets, of a member or, while the group is empty, of anybody who manages partitions by itself."""
        identity = request.identity
        is_anonymous = not identity.member_id and identity.instance_id is None
        if identity.generation < 0 and (is_anonymous or self.state is GroupState.EMPTY):
            if VERDICTS[GroupEvent.LONE_COMMIT][self.state] is GroupVerdict.REFUSE:
                raise UnknownMember(
                    f"Group {self.id!r} has members, and only they may commit. Stop them first to reset offsets."
                )
        else:
            self._touch(GroupEvent.COMMIT, identity, now_ms)
        outcome.reply(reply, Settled(self.offsets.commit(request.offsets, outcome)))

    def _commit_in_transaction(
        self, request: CommitInTransaction, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]
    ) -> None:
        """Hold offsets for a producer, who may tell which member it reads for (KIP-447) or, as older ones do, not."""
        identity = request.identity
        if identity.generation >= 0 or identity.member_id or identity.instance_id is not None:
            self._touch(GroupEvent.COMMIT, identity, now_ms)
        outcome.producer = request.producer
        outcome.reply(reply, Settled(self.offsets.commit(request.offsets, outcome)))

    def _delete_offsets(self, places: tuple[Where, ...], reply: Reply, outcome: Outcome[GroupChange]) -> None:
        if not self.is_empty and self.protocol_type != CONSUMER_PROTOCOL:
            raise GroupNotEmpty(f"Group {self.id!r} has members. Stop them first.")
        super()._delete_offsets(places, reply, outcome)

    def _delete(self, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        if VERDICTS[GroupEvent.DELETE][self.state] is GroupVerdict.REFUSE:
            raise GroupNotEmpty(f"Group {self.id!r} has {len(self._roster)} members. Stop them first.")
        self.offsets.forget(dict.fromkeys((*self.offsets, *self.offsets.places_undecided())), outcome)
        outcome.changes += self.tombstones()
        outcome.reply(reply, None)

    def subscribed_topics(self) -> frozenset[str] | None:
        return self._roster.subscribed_topics()

    def _settled_topics(self) -> frozenset[str] | None:
        is_settled = self.state is GroupState.STABLE and self.protocol_type == CONSUMER_PROTOCOL
        return self.subscribed_topics() if is_settled else None

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def _emptied_ms(self) -> int:
        return self._round.stored_ms if self.stored.generation else 0

    def tombstones(self) -> list[GroupChange]:
        return [GroupChange(GroupKey(self.id), None)]

    # -- what survives ------------------------------------------------------------------------------------------------

    def apply(self, change: GroupChange, at_ms: int, now_ms: int = 0) -> None:
        """Take over what was written to the log at ``at_ms``; offsets are taken over by the slot."""
        assert change.value is None or isinstance(change.value, StoredGroup)
        self._round.apply(change.value, at_ms, now_ms)

    def resume(self, now_ms: int) -> None:
        """Begin to coordinate a group just read from its log: every session starts anew."""
        for member in self._roster:
            member.touch(now_ms)
        self.wake_ms = now_ms
