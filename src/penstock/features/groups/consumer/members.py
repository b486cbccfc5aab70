"""The members of a group of the new protocol: which heartbeats may speak for one, what it wants, by when it must act.

What a heartbeat leads to goes into a draft of the group's records. How long each member may stay silent, and by when
it has to have done what it was told, is not stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from penstock.config.settings import GroupSettings
from penstock.errors import FencedInstance, FencedMemberEpoch, GroupFull, UnknownMember, UnreleasedInstance
from penstock.features.groups.consumer.ledger import Ledger, LedgerDraft
from penstock.features.groups.consumer.messages import JOINING, ConsumerHeartbeat
from penstock.features.groups.consumer.reconciliation import LEFT_FOR_NOW, Current
from penstock.features.groups.consumer.records import StoredConsumer


class HeartbeatRules:
    """Decides on who is in."""

    def __init__(self, group_id: str, config: GroupSettings, ledger: Ledger) -> None:
        self._group_id = group_id
        self._config = config
        self._ledger = ledger

    def admit(self, request: ConsumerHeartbeat, draft: LedgerDraft) -> str:
        """The member that a heartbeat comes from, with what it wants now; a new one if it joins."""
        if request.epoch != JOINING:
            member_id = self.find(request)
            _check_epoch(self._ledger.current_of(member_id), request)
            self._note_wishes(member_id, request, draft)
            return member_id
        member_id = request.member_id or request.fresh_id or ""
        predecessor = self._ledger.instances.get(request.instance_id or "")
        if predecessor is not None and predecessor != member_id:
            self.take_over(predecessor, member_id, draft)
        elif member_id not in self._ledger.members:
            self.check_room()
        self._note_wishes(member_id, request, draft)
        return member_id

    def check_room(self) -> None:
        if len(self._ledger.members) >= self._config.members_max:
            raise GroupFull(f"Group {self._group_id!r} has {self._config.members_max} members already.")

    def take_over(self, old_id: str, new_id: str, draft: LedgerDraft) -> None:
        """A static member came back under another id. One of the new protocol has to have said so."""
        facts, current = self._ledger.members[old_id], self._ledger.current_of(old_id)
        if current.epoch != LEFT_FOR_NOW and facts.classic is None:
            raise UnreleasedInstance(
                f"Instance {facts.instance_id!r} is member {old_id!r}, which has not left. Stop it, or wait for its "
                "session to end."
            )
        draft.move(old_id, new_id, facts, replace(current, epoch=JOINING, previous_epoch=JOINING))

    def find(self, request: ConsumerHeartbeat) -> str:
        if request.instance_id is not None:
            member_id = self._ledger.instances.get(request.instance_id)
            if member_id is None:
                raise UnknownMember(
                    f"Group {self._group_id!r} does not know instance {request.instance_id!r}; join again."
                )
            if member_id != request.member_id:
                raise FencedInstance(f"Instance {request.instance_id!r} was started again elsewhere.")
        if request.member_id not in self._ledger.members:
            raise UnknownMember(f"Group {self._group_id!r} does not know member {request.member_id!r}; join again.")
        return request.member_id

    def _note_wishes(self, member_id: str, request: ConsumerHeartbeat, draft: LedgerDraft) -> None:
        """What the member says about itself; what it leaves out is as it was, unless it joins."""
        before = draft.member(member_id)
        is_joining = request.epoch == JOINING
        known = before or StoredConsumer(client_id="", client_host="", rebalance_timeout_ms=0)
        facts = StoredConsumer(
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=_either(request.rebalance_timeout_ms, known.rebalance_timeout_ms),
            topics=_topics(request.topics, () if is_joining else known.topics),
            regex=("" if is_joining else known.regex) if request.regex is None else request.regex,
            instance_id=known.instance_id if request.instance_id is None else request.instance_id,
            rack_id=known.rack_id if request.rack_id is None else request.rack_id,
            assignor=known.assignor if request.assignor is None else request.assignor,
        )
        self.put_member(member_id, facts, draft)

    def put_member(self, member_id: str, facts: StoredConsumer, draft: LedgerDraft) -> None:
        """A member as it is now; whether the target depends on what changed decides on a new epoch."""
        before = draft.member(member_id)
        if before is None or _wishes(before) != _wishes(facts):
            draft.bump()
        draft.put_member(member_id, facts)


def _check_epoch(current: Current, request: ConsumerHeartbeat) -> None:
    """A member speaks for its epoch, or for the one before if the answer with the new one may have got lost."""
    if request.epoch == current.epoch:
        return
    has_only_its_own = request.owned is not None and request.owned <= current.assigned.keys()
    if request.epoch > current.epoch or request.epoch != current.previous_epoch or not has_only_its_own:
        raise FencedMemberEpoch(
            f"Member {request.member_id!r} is in epoch {current.epoch}, not {request.epoch}. It has to give up its "
            "partitions and join again."
        )


def _wishes(facts: StoredConsumer) -> tuple[object, ...]:
    """What a target depends on."""
    return facts.topics, facts.regex, facts.assignor, facts.rack_id, facts.instance_id


def _either(given: int, known: int) -> int:
    return known if given < 0 else given


def _topics(given: tuple[str, ...] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    return known if given is None else tuple(sorted(set(given)))


@dataclass(slots=True)
class Presence:
    """A member's two clocks: it has to be heard of by one time, and to have acted by the other."""

    heard_by_ms: float
    act_by_ms: float = inf


class Attendance:
    """The clocks of all members."""

    def __init__(self) -> None:
        self._presences: dict[str, Presence] = {}
        self.wake_ms: float = inf  # no member is late before this time; it may be early, but never late itself

    def touch(self, member_id: str, until_ms: float) -> None:
        """The member was heard of."""
        presence = self._presences.get(member_id)
        if presence is None:
            self._presences[member_id] = Presence(until_ms)
        else:
            presence.heard_by_ms = until_ms
        self.wake_ms = min(self.wake_ms, until_ms)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._presences

    def expect(self, member_id: str, by_ms: float) -> None:
        """The member was told to do something."""
        self._presences[member_id].act_by_ms = by_ms
        self.wake_ms = min(self.wake_ms, by_ms)

    def expect_soon(self, member_id: str, by_ms: float) -> None:
        """The member was told to do something, unless it was told before: then that time stands."""
        self.expect(member_id, min(by_ms, self._presences[member_id].act_by_ms))

    def excuse(self, member_id: str) -> None:
        """The member has done it."""
        self._presences[member_id].act_by_ms = inf

    def forget(self, member_id: str) -> None:
        self._presences.pop(member_id, None)

    def late(self, now_ms: int) -> list[str]:
        """Who was not heard of or has not acted in time; works out anew when to look again."""
        found = []
        self.wake_ms = inf
        for member_id, presence in self._presences.items():
            due_ms = min(presence.heard_by_ms, presence.act_by_ms)
            if due_ms <= now_ms:
                found.append(member_id)
            self.wake_ms = min(self.wake_ms, due_ms)
        return found
