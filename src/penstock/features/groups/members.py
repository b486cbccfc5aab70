"""Who is in a group: members, the instances they stand for, and the ids that were promised to members to come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from penstock.errors import FencedInstance, PenstockError, RebalanceInProgress, UnknownMember
from penstock.features.groups.client_metadata import topics_of
from penstock.features.groups.messages import JoinRequest, MemberIdentity
from penstock.features.groups.records import GroupChange, StoredMember
from penstock.machines.messages import Outcome, Rejected, Reply


class ClassicMember:
    """One consumer: what is stored of it, and what is not, such as whether it waits for an answer."""

    __slots__ = ("deadline_ms", "facts", "is_newcomer", "join_reply", "owes_sync", "sync_reply")

    def __init__(self, facts: StoredMember) -> None:
        self.facts = facts
        self.deadline_ms = 0
        self.join_reply: Reply | None = None
        self.sync_reply: Reply | None = None
        self.is_newcomer = False  # it waits for its very first answer
        self.owes_sync = False  # it was told of this generation and has not asked for its assignment

    def __repr__(self) -> str:
        doing = "joining" if self.join_reply else "syncing" if self.sync_reply else "there"
        return f"<ClassicMember {self.id!r} {doing}>"

    @property
    def id(self) -> str:
        return self.facts.member_id

    @property
    def instance_id(self) -> str | None:
        return self.facts.instance_id

    def metadata(self, protocol: str) -> bytes:
        return next((metadata for name, metadata in self.facts.protocols if name == protocol), b"")

    def touch(self, now_ms: int) -> None:
        """It was heard of: its session starts anew."""
        self.deadline_ms = now_ms + self.facts.session_timeout_ms

    @property
    def is_waiting(self) -> bool:
        return self.join_reply is not None or self.sync_reply is not None

    @property
    def can_expire(self) -> bool:
        """Who waits for our answer cannot send heartbeats meanwhile; only a newcomer may have gone unseen."""
        return self.is_newcomer or not self.is_waiting

    def wait_for_join(self, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        self.dismiss(RebalanceInProgress("The member asked again."), outcome)
        self.join_reply = reply

    def wait_for_sync(self, reply: Reply, outcome: Outcome[GroupChange]) -> None:
        self.dismiss(RebalanceInProgress("The member asked again."), outcome)
        self.sync_reply = reply
        self.owes_sync = False

    def dismiss(self, error: PenstockError, outcome: Outcome[GroupChange]) -> None:
        """End whatever it waits for with an error."""
        for reply in (self.join_reply, self.sync_reply):
            if reply is not None:
                outcome.reply(reply, Rejected(error))
        self.join_reply = self.sync_reply = None


def facts_of(member_id: str, join: JoinRequest, assignment: bytes = b"") -> StoredMember:
    return StoredMember(
        member_id=member_id,
        instance_id=join.instance_id,
        client_id=join.client_id,
        client_host=join.client_host,
        session_timeout_ms=join.session_timeout_ms,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        protocols=join.protocols,
        assignment=assignment,
    )


class Roster:
    """The members by id, in the order they came."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._members: dict[str, ClassicMember] = {}
        self._instances: dict[str, str] = {}
        self.promised: dict[str, int] = {}  # ids given out but not yet joined with, and until when

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(tuple(self._members.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> ClassicMember:
        return self._members[member_id]

    def of_instance(self, instance_id: str | None) -> ClassicMember | None:
        """The member that stands for a static instance."""
        member_id = None if instance_id is None else self._instances.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def find(self, identity: MemberIdentity) -> ClassicMember:
        """The member that a request comes from; an error if it is unknown, or if its instance runs elsewhere."""
        member = self._members.get(identity.member_id)
        if identity.instance_id is not None:
            current = self.of_instance(identity.instance_id)
            if current is not None and current is not member:
                raise FencedInstance(f"Instance {identity.instance_id!r} was started again elsewhere.")
            member = current
        if member is None:
            raise UnknownMember(f"Group {self._group_id!r} does not know member {identity.member_id!r}; join again.")
        return member

    def add(self, member: ClassicMember) -> None:
        self._members[member.id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.id

    def remove(self, member: ClassicMember) -> None:
        del self._members[member.id]
        if member.instance_id is not None and self._instances.get(member.instance_id) == member.id:
            del self._instances[member.instance_id]

    def replace(self, old: ClassicMember, new: ClassicMember) -> None:
        """Put a restarted static member where its predecessor was, so that the order of members stays."""
        self._members = {
            (new.id if each is old else each.id): (new if each is old else each) for each in self._members.values()
        }
        assert new.instance_id is not None
        self._instances[new.instance_id] = new.id

    def become(self, stored: Iterable[StoredMember], now_ms: int) -> None:
        """Hold exactly the members that were stored; who is known stays in the middle of what it is doing."""
        known = self._members
        self._members = {}
        self._instances = {}
        for facts in stored:
            member = known.get(facts.member_id)
            if member is None:
                member = ClassicMember(facts)
                member.touch(now_ms)
            member.facts = facts
            self.add(member)

    # -- what the members have in common ------------------------------------------------------------------------------

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to come back."""
        return max((member.facts.rebalance_timeout_ms for member in self), default=0)

    def has_all_joined(self) -> bool:
        return not self.promised and all(member.join_reply is not None for member in self._members.values())

    def joining(self) -> list[ClassicMember]:
        return [member for member in self if member.join_reply is not None]

    def common_protocols(self, except_for: ClassicMember | None = None) -> set[str] | None:
        """The protocols that all members speak; None if there are no members."""
        members = [member for member in self if member is not except_for]
        counts = Counter(name for member in members for name in {name for name, _ in member.facts.protocols})
        return {name for name, count in counts.items() if count == len(members)} if members else None

    def vote(self) -> str:
        """The protocol that most members like best among those that all of them speak."""
        common = self.common_protocols()
        assert common, "members without a common protocol are not let in"
        votes = Counter(next(name for name, _ in member.facts.protocols if name in common) for member in self)
        return votes.most_common(1)[0][0]

    def subscribed_topics(self) -> frozenset[str] | None:
        """Every topic that some member wants, if all of them are consumers whose metadata can be read."""
        topics: set[str] = set()
        for member in self:
            wanted = topics_of(member.facts.protocols[0][1])
            if wanted is None:
                return None
            topics |= wanted
        return frozenset(topics)

    def stored(self, assignments: dict[str, bytes]) -> tuple[StoredMember, ...]:
        """The members as they are to be stored, each with its assignment."""
        return tuple(
            msgspec.structs.replace(member.facts, assignment=assignments.get(member.id, b"")) for member in self
        )
