"""Who may join a group, and what a join leads to."""

from __future__ import annotations

from penstock.config.settings import GroupSettings
from penstock.errors import FencedInstance, GroupFull, InconsistentProtocol, InvalidSessionTimeout, UnknownMember
from penstock.features.groups.members import Member, Roster, facts_of
from penstock.features.groups.messages import Join, Joined, MemberIdentity, Promised
from penstock.features.groups.records import Change
from penstock.features.groups.rounds import Round
from penstock.features.groups.states import VERDICTS, Event, Verdict
from penstock.features.groups.subscription import CONSUMER_PROTOCOL, wants_the_same
from penstock.machines.messages import Outcome, Reply


class Admission:
    """Decides on joins."""

    def __init__(self, group_id: str, config: GroupSettings, roster: Roster, current: Round) -> None:
        self._group_id = group_id
        self._config = config
        self._roster = roster
        self._round = current

    def join(self, request: Join, now_ms: int, reply: Reply, outcome: Outcome[Change]) -> None:
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

    def _check(self, request: Join, predecessor: Member | None) -> None:
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

    def _check_protocols(self, request: Join, itself: Member | None) -> None:
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

    def _keep_promise(self, request: Join, now_ms: int, reply: Reply, outcome: Outcome[Change]) -> None:
        if request.instance_id is not None:
            raise UnknownMember(f"Id {request.member_id!r} was not promised to a static member; join without it.")
        del self._roster.promised[request.member_id]
        self._welcome(request.member_id, request, now_ms, reply, outcome)

    def _welcome(self, member_id: str, request: Join, now_ms: int, reply: Reply, outcome: Outcome[Change]) -> None:
        member = Member(facts_of(member_id, request))
        member.is_newcomer = True
        member.join_reply = reply
        member.deadline_ms = now_ms + self._config.newcomer_timeout_ms
        if not len(self._roster):
            self._round.protocol_type = request.protocol_type
        self._roster.add(member)
        if VERDICTS[Event.NEWCOMER][self._round.state] is Verdict.BEGIN:
            self._round.begin(now_ms, outcome)
        else:
            self._round.gather(now_ms)

    # -- members that come back ---------------------------------------------------------------------------------------

    def _let_rejoin(self, request: Join, now_ms: int, reply: Reply, outcome: Outcome[Change]) -> None:
        member = self._roster.find(MemberIdentity(member_id=request.member_id, instance_id=request.instance_id))
        member.touch(now_ms)
        if member.facts.protocols != request.protocols:
            event = Event.CHANGE
        else:
            event = Event.LEADER_REJOIN if member.id == self._round.leader_id else Event.REJOIN
        verdict = VERDICTS[event][self._round.state]
        if verdict is Verdict.ANSWER:  # it missed our answer, or has no reason that we know of
            outcome.reply(reply, self._round.joined(member))
            return
        member.facts = facts_of(member.id, request, member.facts.assignment)
        if verdict is Verdict.BEGIN:
            self._round.begin(now_ms, outcome)
        member.wait_for_join(reply, outcome)

    def _let_return(self, old: Member, request: Join, now_ms: int, reply: Reply, outcome: Outcome[Change]) -> None:
        """A restarted static member takes its predecessor's place (KIP-345), without a round if it can."""
        new = Member(facts_of(request.fresh_id, request, old.facts.assignment))
        new.touch(now_ms)
        verdict = VERDICTS[self._event_of_return(old, new)][self._round.state]
        rename = self._round.rename(old, new)
        if rename is not None:
            outcome.changes.append(rename)
        if verdict is Verdict.ANSWER:
            outcome.reply(reply, self._returned(old, new, request))
            return
        old.dismiss(FencedInstance(f"Instance {old.instance_id!r} was started again."), outcome)
        self._roster.replace(old, new)
        if self._round.leader_id == old.id:
            self._round.leader_id = new.id
        if verdict is Verdict.BEGIN:
            self._round.begin(now_ms, outcome)
        new.join_reply = reply

    def _event_of_return(self, old: Member, new: Member) -> Event:
        before, after = old.facts.protocols, new.facts.protocols
        is_consumer = self._round.protocol_type == CONSUMER_PROTOCOL
        is_same = wants_the_same(before, after) if is_consumer else before == after
        return Event.RETURN if is_same else Event.CHANGE

    def _returned(self, old: Member, new: Member, request: Join) -> Joined:
        """What it hears that came back while everything is stable; the leader must not assign, nobody would listen."""
        current = self._round
        protocol, leader_id = current.protocol, current.leader_id
        assert protocol is not None
        assert leader_id is not None
        is_leader = leader_id == old.id
        knows = is_leader and request.can_skip_assignment
        return Joined(
            member_id=new.id,
            generation=current.generation,
            protocol_type=current.protocol_type,
            protocol=protocol,
            # An older client that leads is told its predecessor's id, and so takes itself for a follower.
            leader_id=new.id if knows else leader_id,
            members=current.listing(protocol, {old.id: new}) if knows else (),
            skips_assignment=knows,
        )
