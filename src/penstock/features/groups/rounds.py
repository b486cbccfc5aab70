"""The rounds in which a group shares out its work: members join, the leader assigns, everybody syncs.

A round lives in memory. What it leads to, a generation with its members and their assignments, is decided here as a
`StoredGroup` and takes effect in `apply` alone, when it is in the log; so a group that is read from its log is in the
state that its members were last told of. Until then a failed write leaves the round where it was, to be tried again.

Waiting: a member's ``join_reply`` is set only while PREPARING, its ``sync_reply`` only while COMPLETING.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.config.settings import GroupSettings
from penstock.errors import (
    FencedInstance,
    GroupFull,
    InconsistentProtocol,
    InvalidSessionTimeout,
    RebalanceInProgress,
    UnknownMember,
)
from penstock.features.groups.client_metadata import CONSUMER_PROTOCOL, wants_the_same
from penstock.features.groups.members import ClassicMember, Roster, facts_of
from penstock.features.groups.messages import JoinedGroup, JoinRequest, MemberIdentity, Promised, SyncedGroup, SyncGroup
from penstock.features.groups.records import GroupChange, GroupKey, StoredGroup
from penstock.features.groups.states import TRANSITIONS, VERDICTS, GroupEvent, GroupState, GroupVerdict, RoundStep
from penstock.machines.messages import Outcome, Reply

# A group that could not be stored as empty tries again after this long.
_RETRY_MS: Final = 1_000

_NEVER_STORED: Final = StoredGroup(generation=0, protocol_type="", protocol=None, leader_id=None, members=())


class Round:
    """Which generation a group is in, and how far it is on the way to the next."""

    def __init__(self, group_id: str, config: GroupSettings, roster: Roster) -> None:
        self._key = GroupKey(group_id)
        self._config = config
        self._roster = roster
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self.stored = _NEVER_STORED  # what the log says
        self.stored_ms = 0  # and since when
        self.ends_ms: int | None = None  # the time by which members have to join, or to sync
        self._gathers_until_ms: int | None = None  # a first round waits for latecomers, up to here
        self._began_ms: int | None = None  # when the first event came that a round not yet over answers to

    def _move(self, step: RoundStep) -> None:
        self.state = TRANSITIONS[step][self.state]

    # -- joining ------------------------------------------------------------------------------------------------------

    def begin(self, now_ms: int, outcome: Outcome[GroupChange]) -> None:
        """Everybody has to join again."""
        is_first = self.state is GroupState.EMPTY
        self._move(RoundStep.BEGIN)
        if self._began_ms is None:
            self._began_ms = now_ms
        for member in self._roster:
            if member.sync_reply is not None:
                member.dismiss(RebalanceInProgress(), outcome)
                member.touch(now_ms)
            member.owes_sync = False
        self.ends_ms = now_ms + self._roster.rebalance_timeout_ms
        if is_first and self._config.initial_delay_ms > 0:
            self._gathers_until_ms = self.ends_ms
            self.gather(now_ms)

    def gather(self, now_ms: int) -> None:
        """Somebody came: if this is a group's first round, more may come."""
        if self._gathers_until_ms is not None:
            self.ends_ms = min(now_ms + self._config.initial_delay_ms, self._gathers_until_ms)

    def advance(self, now_ms: int, outcome: Outcome[GroupChange]) -> None:
        """End the joining if everybody is in or the time is up."""
        if self.state is not GroupState.PREPARING:
            return
        assert self.ends_ms is not None
        is_complete = self._gathers_until_ms is None and len(self._roster) > 0 and self._roster.has_all_joined()
        if is_complete or now_ms >= self.ends_ms:
            self._close(now_ms, outcome)

    def hurry(self, now_ms: int) -> None:
        """No member is left to wait for."""
        if self.state is GroupState.PREPARING and not len(self._roster):
            self.ends_ms = now_ms

    def _close(self, now_ms: int, outcome: Outcome[GroupChange]) -> None:
        """Who did not come is out, unless it is static and may still return."""
        self._gathers_until_ms = None
        for member in self._roster:
            if member.join_reply is None and member.instance_id is None:
                self._roster.remove(member)
        if not len(self._roster):
            self.ends_ms = now_ms + _RETRY_MS
            outcome.changes.append(GroupChange(self._key, self._emptied()))
        elif self._roster.joining():
            self._open_generation(now_ms, outcome)
        else:  # only static members, and they are away: wait on, until they come or their sessions end
            self.ends_ms = now_ms + max(self._roster.rebalance_timeout_ms, 1)

    def _emptied(self) -> StoredGroup:
        return StoredGroup(
            generation=self.generation + 1, protocol_type=self.protocol_type, protocol=None, leader_id=None, members=()
        )

    def _open_generation(self, now_ms: int, outcome: Outcome[GroupChange]) -> None:
        self._move(RoundStep.JOINED)
        self.generation += 1
        self.protocol = self._roster.vote()
        joining = self._roster.joining()
        if self.leader_id not in {member.id for member in joining}:
            self.leader_id = joining[0].id
        self.ends_ms = now_ms + self._roster.rebalance_timeout_ms
        for member in self._roster:
            member.touch(now_ms)
            member.is_newcomer = False
            member.owes_sync = True
            if member.join_reply is not None:
                outcome.reply(member.join_reply, self.joined(member))
                member.join_reply = None

    def joined(self, member: ClassicMember) -> JoinedGroup:
        """What a member hears that is in."""
        protocol, leader_id = self.protocol, self.leader_id
        assert protocol is not None
        assert leader_id is not None
        return JoinedGroup(
            member_id=member.id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=protocol,
            leader_id=leader_id,
            members=self.listing(protocol) if member.id == leader_id else (),
        )

    def listing(
        self, protocol: str, replaced: Mapping[str, ClassicMember] | None = None
    ) -> tuple[tuple[str, str | None, bytes], ...]:
        """What the leader needs to know of everybody; ``replaced`` are members about to take others' places."""
        members = ((replaced or {}).get(member.id, member) for member in self._roster)
        return tuple((member.id, member.instance_id, member.metadata(protocol)) for member in members)

    # -- assigning ----------------------------------------------------------------------------------------------------

    def assign(self, request: SyncGroup, now_ms: int, outcome: Outcome[GroupChange]) -> None:
        """Store what the leader decided; everybody who waits hears it once that is done."""
        assignments = dict(request.assignments)
        outcome.changes.append(
            GroupChange(
                self._key,
                StoredGroup(
                    generation=self.generation,
                    protocol_type=self.protocol_type,
                    protocol=self.protocol,
                    leader_id=self.leader_id,
                    members=self._roster.stored(assignments),
                ),
            )
        )
        for member in self._roster:
            if member.sync_reply is not None:
                outcome.reply(member.sync_reply, self.synced(assignments.get(member.id, b"")))
                member.sync_reply = None
                member.touch(now_ms)

    def synced(self, assignment: bytes) -> SyncedGroup:
        return SyncedGroup(self.protocol_type, self.protocol or "", assignment)

    def overdue(self, now_ms: int) -> list[ClassicMember]:
        """Members that took too long to sync. If none did and still nothing is stored, that failed: begin again."""
        if self.state is GroupState.PREPARING or self.ends_ms is None or now_ms < self.ends_ms:
            return []
        late = [member for member in self._roster if member.owes_sync]
        if self.state is GroupState.STABLE:
            self.ends_ms = None
        return late

    def is_stuck(self, now_ms: int) -> bool:
        return self.state is GroupState.COMPLETING and self.ends_ms is not None and now_ms >= self.ends_ms

    def take_duration(self, now_ms: int) -> int | None:
        """How long it took until everybody had its assignment, told once; None while somebody has not."""
        if self._began_ms is None or self.state is not GroupState.STABLE:
            return None
        if any(member.owes_sync for member in self._roster):
            return None
        took_ms, self._began_ms = now_ms - self._began_ms, None
        return took_ms

    # -- restarted static members -------------------------------------------------------------------------------------

    def rename(self, old: ClassicMember, new: ClassicMember) -> GroupChange | None:
        """The stored generation with a restarted member's new id, so that a crash cannot bring back the old one."""
        stored = self.stored
        if all(facts.member_id != old.id for facts in stored.members):
            return None
        members = tuple(
            msgspec.structs.replace(new.facts, assignment=facts.assignment) if facts.member_id == old.id else facts
            for facts in stored.members
        )
        leader_id = new.id if stored.leader_id == old.id else stored.leader_id
        return GroupChange(self._key, msgspec.structs.replace(stored, members=members, leader_id=leader_id))

    # -- what was stored ----------------------------------------------------------------------------------------------

    def apply(self, stored: StoredGroup | None, at_ms: int, now_ms: int) -> None:
        """Take over what is in the log now. A round under way goes on, unless this is how it ends."""
        self.stored = stored or _NEVER_STORED
        self.stored_ms = at_ms
        if self.state is GroupState.PREPARING and self.stored.members:
            return
        if self.state is GroupState.COMPLETING and self.stored.generation != self.generation:
            return
        self.generation = self.stored.generation
        self.protocol_type = self.stored.protocol_type
        self.protocol = self.stored.protocol
        self.leader_id = self.stored.leader_id
        self._roster.become(self.stored.members, now_ms)
        self._move(RoundStep.ASSIGNED if self.stored.members else RoundStep.EMPTIED)
        if self.state is GroupState.EMPTY:
            self.ends_ms = self._began_ms = None


class JoinRules:
    """Decides on joins."""

    def __init__(self, group_id: str, config: GroupSettings, roster: Roster, current: Round) -> None:
        self._group_id = group_id
        self._config = config
        self._roster = roster
        self._round = current

    def join(self, request: JoinRequest, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        """Take in a member, have it rejoin, or send it away with an id to come back with."""
        predecessor = None if request.member_id else self._roster.of_instance(request.instance_id)
        self._check(request, predecessor)
        if predecessor is not None:
            self._let_return(predecessor, request, now_ms, reply, outcome)
        elif request.member_id in self._roster.promised:
            self._keep_promise(request, now_ms, reply, outcome)
        elif request.member_id:
            self._let_rejoin(request, now_ms, reply, outcome)
        elif request.takes_id_first and request.instance_id is None:
            self._roster.promised[request.fresh_id] = now_ms + request.session_timeout_ms
            outcome.reply(reply, Promised(request.fresh_id))
        else:
            self._welcome(request.fresh_id, request, now_ms, reply, outcome)

    # -- checks -------------------------------------------------------------------------------------------------------

    def _check(self, request: JoinRequest, predecessor: ClassicMember | None) -> None:
        low, high = self._config.session_timeout_min_ms, self._config.session_timeout_max_ms
        if not low <= request.session_timeout_ms <= high:
            raise InvalidSessionTimeout(
                f"A session timeout of {request.session_timeout_ms} ms is outside {low} to {high} ms."
            )
        if not request.protocol_type or not request.protocols:
            raise InconsistentProtocol("A member must name its protocol type and at least one protocol.")
        is_known = request.member_id in self._roster
        self._check_protocols(request, self._roster.get(request.member_id) if is_known else predecessor)
        is_expected = is_known or predecessor is not None or request.member_id in self._roster.promised
        if not is_expected and len(self._roster) + len(self._roster.promised) >= self._config.members_max:
            raise GroupFull(f"Group {self._group_id!r} has {self._config.members_max} members already.")

    def _check_protocols(self, request: JoinRequest, itself: ClassicMember | None) -> None:
        """A member has to get along with all the others."""
        if not len(self._roster):
            return
        if request.protocol_type != self._round.protocol_type:
            raise InconsistentProtocol(
                f"Group {self._group_id!r} speaks {self._round.protocol_type!r}, not {request.protocol_type!r}."
            )
        common = self._roster.common_protocols(except_for=itself)
        if common is not None and not common & {name for name, _ in request.protocols}:
            raise InconsistentProtocol(f"No protocol of this member is spoken by all of group {self._group_id!r}.")

    # -- members that are new -----------------------------------------------------------------------------------------

    def _keep_promise(self, request: JoinRequest, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        if request.instance_id is not None:
            raise UnknownMember(f"Id {request.member_id!r} was not promised to a static member; join without it.")
        del self._roster.promised[request.member_id]
        self._welcome(request.member_id, request, now_ms, reply, outcome)

    def _welcome(
        self, member_id: str, request: JoinRequest, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]
    ) -> None:
        member = ClassicMember(facts_of(member_id, request))
        member.is_newcomer = True
        member.join_reply = reply
        member.deadline_ms = now_ms + self._config.newcomer_timeout_ms
        if not len(self._roster):
            self._round.protocol_type = request.protocol_type
        self._roster.add(member)
        if VERDICTS[GroupEvent.NEWCOMER][self._round.state] is GroupVerdict.BEGIN:
            self._round.begin(now_ms, outcome)
        else:
            self._round.gather(now_ms)

    # -- members that come back ---------------------------------------------------------------------------------------

    def _let_rejoin(self, request: JoinRequest, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        member = self._roster.find(MemberIdentity(member_id=request.member_id, instance_id=request.instance_id))
        member.touch(now_ms)
        if member.facts.protocols != request.protocols:
            event = GroupEvent.CHANGE
        else:
            event = GroupEvent.LEADER_REJOIN if member.id == self._round.leader_id else GroupEvent.REJOIN
        verdict = VERDICTS[event][self._round.state]
        if verdict is GroupVerdict.ANSWER:  # it missed our answer, or has no reason that we know of
            outcome.reply(reply, self._round.joined(member))
            return
        member.facts = facts_of(member.id, request, member.facts.assignment)
        if verdict is GroupVerdict.BEGIN:
            self._round.begin(now_ms, outcome)
        member.wait_for_join(reply, outcome)

    def _let_return(
        self, old: ClassicMember, request: JoinRequest, now_ms: int, reply: Reply, outcome: Outcome[GroupChange]
    ) -> None:
        """A restarted static member takes its predecessor's place (KIP-345), without a round if it can."""
        new = ClassicMember(facts_of(request.fresh_id, request, old.facts.assignment))
        new.touch(now_ms)
        verdict = VERDICTS[self._event_of_return(old, new)][self._round.state]
        rename = self._round.rename(old, new)
        if rename is not None:
            outcome.changes.append(rename)
        if verdict is GroupVerdict.ANSWER:
            outcome.reply(reply, self._returned(old, new, request))
            return
        old.dismiss(FencedInstance(f"Instance {old.instance_id!r} was started again."), outcome)
        self._roster.replace(old, new)
        if self._round.leader_id == old.id:
            self._round.leader_id = new.id
        if verdict is GroupVerdict.BEGIN:
            self._round.begin(now_ms, outcome)
        new.join_reply = reply

    def _event_of_return(self, old: ClassicMember, new: ClassicMember) -> GroupEvent:
        before, after = old.facts.protocols, new.facts.protocols
        is_consumer = self._round.protocol_type == CONSUMER_PROTOCOL
        is_same = wants_the_same(before, after) if is_consumer else before == after
        return GroupEvent.RETURN if is_same else GroupEvent.CHANGE

    def _returned(self, old: ClassicMember, new: ClassicMember, request: JoinRequest) -> JoinedGroup:
        """What a member hears that came back while all is stable; a leader must not assign, no member would listen."""
        current = self._round
        protocol, leader_id = current.protocol, current.leader_id
        assert protocol is not None
        assert leader_id is not None
        is_leader = leader_id == old.id
        knows = is_leader and request.can_skip_assignment
        return JoinedGroup(
            member_id=new.id,
            generation=current.generation,
            protocol_type=current.protocol_type,
            protocol=protocol,
            # An older client that leads is told its predecessor's id, and so takes itself for a follower.
            leader_id=new.id if knows else leader_id,
            members=current.listing(protocol, {old.id: new}) if knows else (),
            skips_assignment=knows,
        )
