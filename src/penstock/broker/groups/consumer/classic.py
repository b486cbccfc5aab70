"""Members of the classic protocol in a group of the new one: their joins, syncs and heartbeats lead to the same steps.

A classic member takes a step towards its target by joining again. So it is told that a rebalance is under way whenever
a step can be taken, gets its next epoch as the generation of its join, and its partitions when it syncs. It never leads
and never waits for others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.broker.coordination.messages import Outcome, Rejected, Reply
from penstock.broker.groups.consumer.admission import Admission
from penstock.broker.groups.consumer.assignors import Place
from penstock.broker.groups.consumer.client_metadata import Subscription, read_subscription, write_assignment
from penstock.broker.groups.consumer.ledger import Draft
from penstock.broker.groups.consumer.reconciliation import Current, MemberState
from penstock.broker.groups.consumer.records import StoredClassicSide, StoredConsumer
from penstock.broker.groups.consumer.topics import Topics
from penstock.broker.groups.messages import Join, Joined, Leave, Left, MemberIdentity, Promised, Sync, Synced
from penstock.broker.groups.records import Change
from penstock.broker.groups.subscription import CONSUMER_PROTOCOL
from penstock.errors import (
    FencedInstance,
    GroupError,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidSessionTimeout,
    RebalanceInProgress,
    UnknownMember,
)

if TYPE_CHECKING:
    from penstock.broker.groups.consumer.group import ConsumerGroup


def to_names(places: Iterable[Place], topics: Topics) -> dict[str, list[int]]:
    """Partitions by topic name; those of topics that are gone are left out."""
    found: dict[str, list[int]] = {}
    for topic_id, index in places:
        name = topics.name_of(topic_id)
        if name is not None:
            found.setdefault(name, []).append(index)
    return found


def to_ids(wheres: Iterable[tuple[str, int]], topics: Topics) -> list[Place]:
    """Partitions by topic id; those of topics that are gone are left out."""
    return [(shape.topic_id, index) for name, index in wheres if (shape := topics.find(name)) is not None]


def common_protocols(members: Iterable[StoredConsumer]) -> set[str] | None:
    """The protocols that all classic members speak; None if there is none of these."""
    spoken = [{name for name, _ in facts.classic.protocols} for facts in members if facts.classic is not None]
    return set.intersection(*spoken) if spoken else None


class ClassicSide:
    """Serves the classic members of one group."""

    def __init__(
        self, group: ConsumerGroup, admission: Admission, topics: Topics, session_limits_ms: tuple[int, int]
    ) -> None:
        self._group = group
        self._admission = admission
        self._topics = topics
        self._session_limits_ms = session_limits_ms

    # -- joining ------------------------------------------------------------------------------------------------------

    def join(self, request: Join, now_ms: int, reply: Reply, outcome: Outcome[Change]) -> None:
        """Take in a member or have it take its next step."""
        subscription = self._check(request)
        if not request.member_id and request.takes_id_first and request.instance_id is None:
            outcome.reply(reply, Promised(request.fresh_id))
            return
        draft = Draft(self._group.ledger)
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

    def _check(self, request: Join) -> Subscription:
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

    def _admit(self, request: Join, draft: Draft) -> str:
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

    def _joined(self, member_id: str, request: Join, current: Current) -> Joined:
        return Joined(
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

    def sync(self, request: Sync, now_ms: int, reply: Reply, outcome: Outcome[Change]) -> None:
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
        outcome.reply(reply, Synced(CONSUMER_PROTOCOL, protocol, assignment))

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

    def leave(self, request: Leave, now_ms: int, reply: Reply, outcome: Outcome[Change]) -> None:
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
