"""A classic consumer group as a state machine: no clock, no socket, no log.

Requests and the time come in; an `Outcome` goes out with the changes to persist and the replies to send. What must
survive a crash changes in `apply` alone. What need not, such as who is waiting for an answer and when a session ends,
is kept here directly.

    EMPTY ──join──▶ PREPARING ──all in, or time up──▶ COMPLETING ──leader's sync──▶ STABLE
      ▲                 ▲                                  │                           │
      │                 └──── join, leave, lost member ────┴───────────────────────────┘
      └── the last member is gone
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Final
from uuid import uuid4

from penstock.broker.groups.messages import (
    Commit,
    Join,
    Joined,
    JoinReply,
    MemberIdentity,
    Outcome,
    Rejected,
    Sync,
    Synced,
    SyncReply,
)
from penstock.broker.groups.records import Change, GroupKey, OffsetKey, StoredGroup, StoredMember, StoredOffset
from penstock.errors import (
    FencedInstance,
    GroupFull,
    GroupNotEmpty,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownMember,
)

CONSUMER_PROTOCOL: Final = "consumer"


class State(Enum):
    """Where a group is in its round."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Limits of every group."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    # A new group waits this long for more members before it shares out partitions.
    initial_delay_ms: int = 3_000
    members_max: int = 10_000
    offset_metadata_bytes_max: int = 4_096
    # Offsets of a group without members are forgotten after this long.
    offsets_retention_ms: int = 7 * 24 * 3_600_000


class Member:
    """One consumer. It is alive as long as it is heard of, or waits for an answer of ours."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "id",
        "instance_id",
        "join_reply",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_reply",
    )

    def __init__(self, member_id: str, join: Join | StoredMember) -> None:
        self.id = member_id
        self.assignment = b""
        self.join_reply: JoinReply | None = None
        self.sync_reply: SyncReply | None = None
        self.deadline_ms = 0
        self.update(join)

    def update(self, join: Join | StoredMember) -> None:
        self.instance_id = join.instance_id
        self.client_id = join.client_id
        self.client_host = join.client_host
        self.session_timeout_ms = join.session_timeout_ms
        self.rebalance_timeout_ms = join.rebalance_timeout_ms
        self.protocols = join.protocols

    def metadata(self, protocol: str) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def touch(self, now_ms: int) -> None:
        self.deadline_ms = now_ms + self.session_timeout_ms

    @property
    def is_waiting(self) -> bool:
        return self.join_reply is not None or self.sync_reply is not None


class Group:
    """The members and offsets of one group."""

    def __init__(self, group_id: str, config: GroupConfig) -> None:
        self.id = group_id
        self._config = config
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.offsets: dict[tuple[str, int], StoredOffset] = {}
        self._static: dict[str, str] = {}
        self._promised: dict[str, int] = {}  # ids given out but not yet joined with, and until when
        self._round_ends_ms: int | None = None  # of joining while PREPARING, of syncing while COMPLETING
        self._is_gathering = False  # PREPARING for the first time: wait for latecomers
        self._gathering_until_ms = 0
        self._is_storing = False  # the leader's assignment is being persisted

    def __repr__(self) -> str:
        return f"<Group {self.id!r} {self.state.value}, generation {self.generation}, {len(self.members)} members>"

    @property
    def is_forgettable(self) -> bool:
        return self.state is State.EMPTY and not self.offsets and not self._promised and self.generation == 0

    # -- joining ------------------------------------------------------------------------------------------------------

    def join(self, request: Join, now_ms: int, reply: JoinReply) -> Outcome:
        """Take in a member, or have it rejoin; the reply comes when the round of joining ends."""
        outcome = Outcome()
        self._check_join(request)
        if request.instance_id is not None and not request.member_id:
            self._join_static(request, now_ms, reply, outcome)
        elif not request.member_id:
            self._join_new(request, now_ms, reply, outcome)
        else:
            self._rejoin(request, now_ms, reply, outcome)
        return outcome

    def _check_join(self, request: Join) -> None:
        config = self._config
        low, high = config.session_timeout_min_ms, config.session_timeout_max_ms
        if not low <= request.session_timeout_ms <= high:
            raise InvalidSessionTimeout(
                f"A session timeout of {request.session_timeout_ms} ms is outside {low} to {high} ms."
            )
        if not request.protocol_type or not request.protocols:
            raise InconsistentProtocol("A member must name its protocol type and at least one protocol.")
        others = [member for member in self.members.values() if member.id != request.member_id]
        if self.state is not State.EMPTY and others:
            if request.protocol_type != self.protocol_type:
                raise InconsistentProtocol(
                    f"Group {self.id!r} speaks {self.protocol_type!r}, not {request.protocol_type!r}."
                )
            if not self._common_protocols(others) & {name for name, _ in request.protocols}:
                raise InconsistentProtocol(f"No protocol of this member is spoken by all of group {self.id!r}.")
        is_new = request.member_id not in self.members and request.instance_id not in self._static
        if is_new and len(self.members) >= config.members_max:
            raise GroupFull(f"Group {self.id!r} has {config.members_max} members already.")

    def _common_protocols(self, members: list[Member]) -> set[str]:
        counts = Counter(name for member in members for name, _ in member.protocols)
        return {name for name, count in counts.items() if count == len(members)}

    def _join_new(self, request: Join, now_ms: int, reply: JoinReply, outcome: Outcome) -> None:
        member_id = _new_member_id(request)
        if request.takes_id_first:
            self._promised[member_id] = now_ms + request.session_timeout_ms
            outcome.reply(reply, Rejected(MemberIdRequired(), member_id))
        else:
            self._add(member_id, request, now_ms, reply, outcome)

    def _join_static(self, request: Join, now_ms: int, reply: JoinReply, outcome: Outcome) -> None:
        assert request.instance_id is not None
        member_id = _new_member_id(request)
        old_id = self._static.get(request.instance_id)
        if old_id is None:
            self._add(member_id, request, now_ms, reply, outcome)
        else:
            self._replace_static(old_id, member_id, request, now_ms, reply, outcome)

    def _replace_static(
        self, old_id: str, member_id: str, request: Join, now_ms: int, reply: JoinReply, outcome: Outcome
    ) -> None:
        """A restarted static member takes its predecessor's place, without a round if nothing else changes."""
        old = self.members.pop(old_id)
        self._send_away(old, Rejected(FencedInstance(f"Instance {old.instance_id!r} was started again.")), outcome)
        member = Member(member_id, request)
        member.assignment = old.assignment
        self.members[member_id] = member
        assert member.instance_id is not None
        self._static[member.instance_id] = member_id
        was_leader = self.leader_id == old_id
        if was_leader:
            self.leader_id = member_id
        member.touch(now_ms)
        is_unchanged = old.protocols == member.protocols
        if self.state is State.STABLE and is_unchanged:
            outcome.changes.append(self._stored(now_ms))
            outcome.reply(reply, self._joined(member, skips_assignment=was_leader))
            return
        member.join_reply = reply
        if self.state is State.PREPARING:
            self._complete_join_if_all_in(now_ms, outcome)
        else:
            self._prepare(now_ms, outcome)

    def _rejoin(self, request: Join, now_ms: int, reply: JoinReply, outcome: Outcome) -> None:
        if request.member_id in self._promised:
            del self._promised[request.member_id]
            self._add(request.member_id, request, now_ms, reply, outcome)
            return
        member = self._find(MemberIdentity(member_id=request.member_id, instance_id=request.instance_id))
        has_changed = member.protocols != request.protocols
        member.update(request)
        member.touch(now_ms)
        if self.state is State.PREPARING:
            member.join_reply = reply
            self._complete_join_if_all_in(now_ms, outcome)
        elif not has_changed and (self.state is State.COMPLETING or member.id != self.leader_id):
            outcome.reply(reply, self._joined(member))  # it missed our answer, or a rejoin without a reason
        else:
            member.join_reply = reply
            self._prepare(now_ms, outcome)

    def _add(self, member_id: str, request: Join, now_ms: int, reply: JoinReply, outcome: Outcome) -> None:
        member = Member(member_id, request)
        member.join_reply = reply
        member.touch(now_ms)
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members[member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member_id
        if self.state is State.PREPARING:
            if self._is_gathering:
                self._extend_gathering(now_ms)
            self._complete_join_if_all_in(now_ms, outcome)
        else:
            self._prepare(now_ms, outcome)

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _prepare(self, now_ms: int, outcome: Outcome) -> None:
        """Begin a round: everybody has to join again."""
        for member in self.members.values():
            if member.sync_reply is not None:
                outcome.reply(member.sync_reply, Rejected(RebalanceInProgress()))
                member.sync_reply = None
                member.touch(now_ms)
        self._is_gathering = self.state is State.EMPTY and self._config.initial_delay_ms > 0
        self.state = State.PREPARING
        self._is_storing = False
        self._round_ends_ms = now_ms + self._rebalance_timeout_ms
        if self._is_gathering:
            self._extend_gathering(now_ms)
        self._complete_join_if_all_in(now_ms, outcome)

    @property
    def _rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _extend_gathering(self, now_ms: int) -> None:
        assert self._round_ends_ms is not None
        self._gathering_until_ms = min(now_ms + self._config.initial_delay_ms, self._round_ends_ms)

    def _complete_join_if_all_in(self, now_ms: int, outcome: Outcome) -> None:
        if self._is_gathering or self._promised:
            return
        if all(member.join_reply is not None for member in self.members.values()):
            self._complete_join(now_ms, outcome)

    def _complete_join(self, now_ms: int, outcome: Outcome) -> None:
        """End the joining: who did not come back is out, unless it is static and may still return."""
        for member in [member for member in self.members.values() if member.join_reply is None]:
            if member.instance_id is None:
                self._remove(member)
        self._is_gathering = False
        self.generation += 1
        if not any(member.join_reply is not None for member in self.members.values()):
            if self.members:  # only static members that are away: keep waiting for them
                self._round_ends_ms = now_ms + self._rebalance_timeout_ms
                return
            self._become_empty(now_ms, outcome)
            return
        self.state = State.COMPLETING
        self._round_ends_ms = now_ms + self._rebalance_timeout_ms
        self.protocol = self._vote()
        if self.leader_id not in self.members or self.members[self.leader_id].join_reply is None:
            self.leader_id = next(member.id for member in self.members.values() if member.join_reply is not None)
        for member in self.members.values():
            member.touch(now_ms)
            if member.join_reply is not None:
                outcome.reply(member.join_reply, self._joined(member))
                member.join_reply = None

    def _vote(self) -> str:
        """The protocol that most members like best among those that all of them speak."""
        common = self._common_protocols(list(self.members.values()))
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _joined(self, member: Member, *, skips_assignment: bool = False) -> Joined:
        assert self.protocol is not None
        assert self.leader_id is not None
        is_leader = member.id == self.leader_id
        return Joined(
            member_id=member.id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader_id=self.leader_id,
            members=tuple(
                (other.id, other.instance_id, other.metadata(self.protocol)) for other in self.members.values()
            )
            if is_leader
            else (),
            skips_assignment=skips_assignment,
        )

    def _become_empty(self, now_ms: int, outcome: Outcome) -> None:
        self.state = State.EMPTY
        self.protocol = None
        self.leader_id = None
        self._round_ends_ms = None
        self._is_gathering = False
        outcome.changes.append(self._stored(now_ms))

    # -- assignments --------------------------------------------------------------------------------------------------

    def sync(self, request: Sync, now_ms: int, reply: SyncReply) -> Outcome:
        """Give a member its assignment, as soon as the leader has brought it."""
        outcome = Outcome()
        member = self._find(
            MemberIdentity(member_id=request.member_id, instance_id=request.instance_id, generation=request.generation)
        )
        self._check_generation(request.generation)
        if request.protocol_type not in (None, self.protocol_type) or request.protocol not in (None, self.protocol):
            raise InconsistentProtocol(f"Group {self.id!r} has settled on {self.protocol!r}, not {request.protocol!r}.")
        member.touch(now_ms)
        if self.state is State.PREPARING:
            raise RebalanceInProgress
        if self.state is State.STABLE:
            outcome.reply(reply, self._synced(member))
            return outcome
        member.sync_reply = reply
        if member.id == self.leader_id and not self._is_storing:
            self._assign(request, now_ms, outcome)
        return outcome

    def _assign(self, request: Sync, now_ms: int, outcome: Outcome) -> None:
        """Persist what the leader decided; everybody who waits hears it once that is done."""
        assignments = dict(request.assignments)
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
        self.state = State.STABLE
        self._round_ends_ms = None
        outcome.changes.append(self._stored(now_ms))
        for member in self.members.values():
            if member.sync_reply is not None:
                outcome.reply(member.sync_reply, self._synced(member))
                member.sync_reply = None
                member.touch(now_ms)

    def _synced(self, member: Member) -> Synced:
        return Synced(protocol_type=self.protocol_type, protocol=self.protocol or "", assignment=member.assignment)

    # -- staying and leaving ------------------------------------------------------------------------------------------

    def heartbeat(self, identity: MemberIdentity, now_ms: int) -> None:
        """Note that a member is alive; it hears by an error if it has to join again."""
        member = self._find(identity)
        self._check_generation(identity.generation)
        member.touch(now_ms)
        if self.state is State.PREPARING:
            raise RebalanceInProgress

    def leave(self, identity: MemberIdentity, now_ms: int) -> Outcome:
        """A member goes. Static members may be removed by their instance id alone."""
        outcome = Outcome()
        if identity.member_id in self._promised:
            del self._promised[identity.member_id]
            if self.state is State.PREPARING:
                self._complete_join_if_all_in(now_ms, outcome)
            return outcome
        if identity.instance_id is not None and not identity.member_id:
            member_id = self._static.get(identity.instance_id)
            if member_id is None:
                raise UnknownMember(f"Group {self.id!r} has no instance {identity.instance_id!r}.")
            member = self.members[member_id]
        else:
            member = self._find(identity)
        self._lose(member, now_ms, outcome)
        return outcome

    def _lose(self, member: Member, now_ms: int, outcome: Outcome) -> None:
        self._send_away(member, Rejected(UnknownMember("The member left its group.")), outcome)
        self._remove(member)
        if self.state is State.PREPARING:
            if self.members:
                self._complete_join_if_all_in(now_ms, outcome)
            else:
                self._complete_join(now_ms, outcome)
        elif self.state in (State.STABLE, State.COMPLETING):
            self._prepare(now_ms, outcome)

    def _send_away(self, member: Member, why: Rejected, outcome: Outcome) -> None:
        for reply in (member.join_reply, member.sync_reply):
            if reply is not None:
                outcome.reply(reply, why)
        member.join_reply = member.sync_reply = None

    def _remove(self, member: Member) -> None:
        del self.members[member.id]
        if member.instance_id is not None and self._static.get(member.instance_id) == member.id:
            del self._static[member.instance_id]
        if self.leader_id == member.id:
            self.leader_id = next(iter(self.members), None)

    def tick(self, now_ms: int) -> Outcome:
        """Let time pass: sessions end, promised ids lapse, rounds close."""
        outcome = Outcome()
        for member_id in [member_id for member_id, until in self._promised.items() if until <= now_ms]:
            del self._promised[member_id]
            if self.state is State.PREPARING:
                self._complete_join_if_all_in(now_ms, outcome)
        for member in [m for m in self.members.values() if m.deadline_ms <= now_ms and not m.is_waiting]:
            if member.id in self.members:
                self._lose(member, now_ms, outcome)
        if self.state is State.PREPARING:
            if self._is_gathering and now_ms >= self._gathering_until_ms:
                self._is_gathering = False
                self._complete_join_if_all_in(now_ms, outcome)
            if self.state is State.PREPARING and self._is_round_over(now_ms):
                self._promised.clear()
                self._complete_join(now_ms, outcome)
        elif self.state is State.COMPLETING and self._is_round_over(now_ms):
            for member in [member for member in self.members.values() if member.sync_reply is None]:
                if member.id in self.members and self.state is State.COMPLETING:
                    self._lose(member, now_ms, outcome)
        return outcome

    def _is_round_over(self, now_ms: int) -> bool:
        return self._round_ends_ms is not None and now_ms >= self._round_ends_ms

    # -- offsets ------------------------------------------------------------------------------------------------------

    def commit(self, identity: MemberIdentity, commits: list[Commit], now_ms: int) -> Outcome:
        """Remember offsets, of a member or, while the group is empty, of anybody who manages offsets by itself."""
        self._check_may_commit(identity, now_ms)
        changes = []
        for commit in commits:
            if len(commit.metadata.encode()) > self._config.offset_metadata_bytes_max:
                raise OffsetMetadataTooLarge(
                    f"The metadata of an offset may have {self._config.offset_metadata_bytes_max} bytes."
                )
            stored = StoredOffset(
                offset=commit.offset,
                leader_epoch=commit.leader_epoch,
                metadata=commit.metadata,
                committed_ms=now_ms,
            )
            changes.append(Change(OffsetKey(self.id, commit.topic, commit.partition), stored))
        return Outcome(changes)

    def _check_may_commit(self, identity: MemberIdentity, now_ms: int) -> None:
        if identity.generation < 0 and not identity.member_id:
            if self.members and self.protocol_type == CONSUMER_PROTOCOL:
                raise UnknownMember(
                    f"Group {self.id!r} has members, and only they may commit. Stop them first to reset offsets."
                )
            return
        member = self._find(identity)
        self._check_generation(identity.generation)
        member.touch(now_ms)
        if self.state is State.COMPLETING:
            raise RebalanceInProgress

    def delete(self) -> Outcome:
        """Forget an empty group and all its offsets."""
        if self.members:
            raise GroupNotEmpty(f"Group {self.id!r} has {len(self.members)} members. Stop them first.")
        changes = [Change(OffsetKey(self.id, *where), None) for where in self.offsets]
        return Outcome([*changes, Change(GroupKey(self.id), None)])

    def delete_offsets(self, partitions: list[tuple[str, int]]) -> Outcome:
        return Outcome([Change(OffsetKey(self.id, *where), None) for where in partitions if where in self.offsets])

    def expire_offsets(self, now_ms: int) -> Outcome:
        """Forget the offsets of a group that nobody has used for long."""
        if self.members:
            return Outcome()
        before_ms = now_ms - self._config.offsets_retention_ms
        stale = [where for where, stored in self.offsets.items() if stored.committed_ms < before_ms]
        return self.delete_offsets(stale)

    # -- what survives ------------------------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Take over what was persisted. On a coordinator that just wrote it, most of it is known already."""
        key, value = change.key, change.value
        if isinstance(key, OffsetKey):
            where = (key.topic, key.partition)
            if isinstance(value, StoredOffset):
                self.offsets[where] = value
            else:
                self.offsets.pop(where, None)

    def restore(self, stored: StoredGroup, now_ms: int) -> None:
        """Become what was persisted last, as on a coordinator that has just read its log."""
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        self.protocol = stored.protocol
        self.leader_id = stored.leader_id
        self.members.clear()
        self._static.clear()
        for kept in stored.members:
            member = Member(kept.member_id, kept)
            member.assignment = kept.assignment
            member.touch(now_ms)
            self.members[member.id] = member
            if member.instance_id is not None:
                self._static[member.instance_id] = member.id
        self.state = State.STABLE if self.members else State.EMPTY

    def _stored(self, now_ms: int) -> Change:
        return Change(
            GroupKey(self.id),
            StoredGroup(
                generation=self.generation,
                protocol_type=self.protocol_type,
                protocol=self.protocol,
                leader_id=self.leader_id,
                members=tuple(
                    StoredMember(
                        member_id=member.id,
                        instance_id=member.instance_id,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        session_timeout_ms=member.session_timeout_ms,
                        rebalance_timeout_ms=member.rebalance_timeout_ms,
                        protocols=member.protocols,
                        assignment=member.assignment,
                    )
                    for member in self.members.values()
                ),
                stored_ms=now_ms,
            ),
        )

    # -- checks -------------------------------------------------------------------------------------------------------

    def _find(self, identity: MemberIdentity) -> Member:
        member = self.members.get(identity.member_id)
        if identity.instance_id is not None:
            current = self._static.get(identity.instance_id)
            if current is None:
                raise UnknownMember(f"Group {self.id!r} has no instance {identity.instance_id!r}; join again.")
            if current != identity.member_id:
                raise FencedInstance(f"Instance {identity.instance_id!r} was started again elsewhere.")
        if member is None:
            raise UnknownMember(f"Group {self.id!r} does not know member {identity.member_id!r}; join again.")
        return member

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGeneration(f"Group {self.id!r} is in generation {self.generation}, not {generation}.")


def _new_member_id(request: Join) -> str:
    return f"{request.instance_id or request.client_id or 'member'}-{uuid4()}"
