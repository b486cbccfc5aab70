"""A member of a Raft quorum as a state machine: no clock, no socket, no disk.

It is told what happened (`receive`, `tick`, `propose`, `on_durable` …) and gathers what is to be done in `Effects`,
which the driver takes with `take`. The driver's part of the bargain: it writes ``hard_state``, the ``installed``
snapshot and the ``entries`` (after cutting its log where they begin); only when they are on disk it sends ``promises``
and reports `on_durable`. ``messages`` promise nothing of this member's disk and may leave at once. ``committed``
entries are applied in order. Votes and acknowledgements are promises; a leader counts itself only by `on_durable`.

Against disruption: a trial vote before each election (pre-vote), a leader that does not hear a majority steps down
(check-quorum), and a member that hears a leader votes for no other. Members change one at a time, and only once the
leader has committed an entry of its own term.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random

from penstock.consensus.raft.leading import LeaderState, RaftTiming, Read
from penstock.consensus.raft.log import RaftLog
from penstock.consensus.raft.messages import (
    AppendEntries,
    AppendResponse,
    Entry,
    EntryKind,
    HardState,
    InstallSnapshot,
    Member,
    Members,
    RaftMessage,
    RequestVote,
    Snapshot,
    SnapshotResponse,
    TimeoutNow,
    VoteResponse,
)
from penstock.errors import InvalidRequest, NotController


class Role(Enum):
    FOLLOWER = "follower"
    TRIAL = "trial"  # asking whether an election would be won
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(slots=True)
class Effects:
    """What the driver has to do, in the order of the fields."""

    messages: list[RaftMessage] = field(default_factory=list)
    hard_state: HardState | None = None
    installed: Snapshot | None = None
    entries: list[Entry] = field(default_factory=list)
    promises: list[RaftMessage] = field(default_factory=list)
    committed: list[Entry] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    failed_reads: list[Read] = field(default_factory=list)

    def forget_from(self, index: int) -> None:
        """Entries from an index on were cut before they were written."""
        self.entries = [entry for entry in self.entries if entry.index < index]

    def forget_up_to(self, index: int) -> None:
        """A snapshot stands for everything up to an index."""
        self.entries = [entry for entry in self.entries if entry.index > index]
        self.committed = [entry for entry in self.committed if entry.index > index]


class SnapshotReceiver:
    """The pieces of one snapshot at a time. A piece that does not follow on is left to be sent again."""

    def __init__(self) -> None:
        self._of: tuple[int, int, int] | None = None
        self._data = bytearray()

    @property
    def position(self) -> int:
        """How much is there."""
        return len(self._data)

    def take(self, piece: InstallSnapshot) -> Snapshot | None:
        """The whole snapshot, if this piece completes it."""
        snapshot = piece.snapshot
        # Two leaders' snapshots of the same state need not be the same bytes.
        of = (piece.term, snapshot.index, snapshot.term)
        if self._of != of:
            self._of = of
            self._data.clear()
        if piece.position == len(self._data):
            self._data += snapshot.data
        return replace(snapshot, data=bytes(self._data)) if len(self._data) == piece.size else None


class Raft:
    """One member."""

    def __init__(self, me: Member, hard_state: HardState, log: RaftLog, pace: RaftTiming, random: Random) -> None:
        self.me = me
        self.term = hard_state.term
        self.voted_for = hard_state.voted_for
        self.log = log
        self.members = log.members()
        self.role = Role.FOLLOWER
        self.leader_id: int | None = None
        self.commit_index = log.snapshot.index
        self.leading: LeaderState | None = None
        self._pace = pace
        self._random = random
        self._votes: set[int] = set()
        self._refusals: set[int] = set()
        self._now_ms = 0
        self._leader_heard_ms: int | None = None
        self._election_due_ms: int | None = None
        self._heartbeat_due_ms = 0
        self._durable_index = log.last_index
        self._intake = SnapshotReceiver()
        self._effects = Effects()

    def __repr__(self) -> str:
        return f"<Raft {self.me.node_id} {self.role.value} in term {self.term}, committed {self.commit_index}>"

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    def take(self) -> Effects:
        """All that is to be done since the last call."""
        effects, self._effects = self._effects, Effects()
        return effects

    # -- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)
        if self._election_due_ms is None:
            self._wait_for_leader()
            if self.members.voters == {self.me.node_id: self.me.directory_id}:
                self._election_due_ms = self._now_ms  # there is no other member to wait for
        if self.leading is not None:
            self._tick_leading(self.leading)
        elif self._now_ms >= (self._election_due_ms or 0):
            self._stand(is_trial=True)

    def _tick_leading(self, leading: LeaderState) -> None:
        if leading.successor is not None and self._now_ms >= leading.successor_until_ms:
            leading.successor = None  # it did not take over in time; go on leading
        if self._now_ms - leading.heard_majority_ms() >= self._pace.silence_ms:
            self._become_follower(self.term, None)
        elif self._now_ms >= self._heartbeat_due_ms:
            self._heartbeat_due_ms = self._now_ms + self._pace.heartbeat_ms
            leading.beat(self.commit_index)

    def _wait_for_leader(self) -> None:
        self._election_due_ms = self._now_ms + self._pace.election_ms + self._random.randrange(self._pace.election_ms)

    def doubt(self, node_id: int, now_ms: int) -> None:
        """The connection to a member broke. If it leads, do not wait for long: whether others agree, a trial tells."""
        self._now_ms = max(self._now_ms, now_ms)
        if self.leading is None and self.leader_id == node_id:
            self._leader_heard_ms = None
            self._election_due_ms = self._now_ms + 1 + self._random.randrange(self._pace.heartbeat_ms)

    # -- elections ----------------------------------------------------------------------------------------------------

    def _stand(self, *, is_trial: bool, is_handed_over: bool = False) -> None:
        """Ask for votes, first whether it is worth it and then in earnest."""
        self._wait_for_leader()
        if not self._may_stand():
            return
        self.leading = None
        self.leader_id = None
        self._votes, self._refusals = {self.me.node_id}, set()
        if is_trial:
            self.role = Role.TRIAL
        else:
            self.role = Role.CANDIDATE
            self._set_hard_state(HardState(self.term + 1, self.me.node_id))
        if self._is_elected():
            self._win()
            return
        for node_id in self.members.voters:
            if node_id != self.me.node_id:
                ask = RequestVote(
                    sender=self.me,
                    to=node_id,
                    term=self.term + 1 if is_trial else self.term,
                    last_index=self.log.last_index,
                    last_term=self.log.last_term,
                    is_trial=is_trial,
                    is_handed_over=is_handed_over,
                )
                # A real candidacy promises that this member's vote for itself is on disk.
                (self._effects.messages if is_trial else self._effects.promises).append(ask)

    def _may_stand(self) -> bool:
        """Voters may. So may one whose removal is not committed yet: no other member may have all that it has."""
        if self.members.is_voter(self.me):
            return True
        return self.log.members_index() > self.commit_index and self.log.members_before().is_voter(self.me)

    def _is_elected(self) -> bool:
        return len(self._votes & self.members.voters.keys()) >= self.members.majority

    def _win(self) -> None:
        if self.role is Role.TRIAL:
            self._stand(is_trial=False)
        else:
            self._lead()

    def _on_ask(self, ask: RequestVote) -> None:
        is_up_to_date = self.log.is_behind(ask.last_index, ask.last_term)
        if ask.is_trial:
            is_granted = is_up_to_date and ask.term > self.term and not self._hears_leader()
            answer_term = ask.term if is_granted else self.term
        else:
            is_granted = is_up_to_date and self.voted_for in (None, ask.sender.node_id) and self.leader_id is None
            answer_term = self.term
            if is_granted:
                self._set_hard_state(HardState(self.term, ask.sender.node_id))
                self._wait_for_leader()
        self._answer_ask(ask, answer_term, is_granted=is_granted)

    def _answer_ask(self, ask: RequestVote, term: int, *, is_granted: bool) -> None:
        answer = VoteResponse(
            sender=self.me, to=ask.sender.node_id, term=term, is_granted=is_granted, is_trial=ask.is_trial
        )
        self._effects.promises.append(answer)

    def _on_vote(self, vote: VoteResponse) -> None:
        wanted = Role.TRIAL if vote.is_trial else Role.CANDIDATE
        due_term = self.term + 1 if vote.is_trial else self.term
        if self.role is not wanted or not self.members.is_voter(vote.sender):
            return
        if not vote.is_granted:
            self._refusals.add(vote.sender.node_id)
            if len(self._refusals) >= self.members.majority:
                self._become_follower(self.term, None)
        elif vote.term == due_term:
            self._votes.add(vote.sender.node_id)
            if self._is_elected():
                self._win()

    def _hears_leader(self) -> bool:
        if self.leading is not None:
            return True
        heard_ms = self._leader_heard_ms
        return self.leader_id is not None and heard_ms is not None and self._now_ms - heard_ms < self._pace.election_ms

    def _lead(self) -> None:
        self.role = Role.LEADER
        self.leader_id = self.me.node_id
        self.leading = LeaderState(self.me, self.term, self.log, self._pace, self._send)
        self.leading.durable = self._durable_index
        self.leading.follow_members(self.members, self._now_ms)
        self._heartbeat_due_ms = self._now_ms + self._pace.heartbeat_ms
        self._append(EntryKind.NOTHING, b"")
        self.leading.beat(self.commit_index)

    def _send(self, message: RaftMessage) -> None:
        """What a leader says stands for its term, which is on disk for certain once its first entry is."""
        is_stored = self.leading is not None and self.leading.durable >= self.leading.first_index
        (self._effects.messages if is_stored else self._effects.promises).append(message)

    def _become_follower(self, term: int, leader_id: int | None) -> None:
        if term > self.term:
            self._set_hard_state(HardState(term, None))
        if self.leading is not None:
            self._effects.failed_reads += self.leading.reads
        self.role = Role.FOLLOWER
        self.leading = None
        self.leader_id = leader_id
        self._wait_for_leader()

    def _set_hard_state(self, hard_state: HardState) -> None:
        self.term, self.voted_for = hard_state
        self._effects.hard_state = hard_state

    # -- messages -----------------------------------------------------------------------------------------------------

    def receive(self, message: RaftMessage, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)
        if self._election_due_ms is None:
            self._wait_for_leader()
        if isinstance(message, RequestVote):
            if message.term < self.term:
                self._answer_ask(message, self.term, is_granted=False)
                return
            if not message.is_trial and message.term > self.term:
                if self._hears_leader() and not message.is_handed_over:
                    return  # a leader is at work: a member that does not hear it must not disturb it
                self._become_follower(message.term, None)
            self._on_ask(message)
            return
        if message.term < self.term:
            if isinstance(message, (AppendEntries, InstallSnapshot)):
                self._answer(message, is_accepted=False, index=0)  # tell a leader of old that its time is over
            return
        is_trial_granted = isinstance(message, VoteResponse) and message.is_trial and message.is_granted
        if message.term > self.term and not is_trial_granted:
            self._become_follower(message.term, None)
        match message:
            case VoteResponse():
                self._on_vote(message)
            case AppendEntries():
                self._follow(message)
                self._on_append(message)
            case InstallSnapshot():
                self._follow(message)
                self._on_piece(message)
            case AppendResponse():
                self._on_appended(message)
            case SnapshotResponse():
                self._on_taken(message)
            case TimeoutNow():
                self._stand(is_trial=False, is_handed_over=True)

    def _follow(self, message: RaftMessage) -> None:
        assert self.leading is None, "two leaders in one term"
        if self.role is not Role.FOLLOWER or self.leader_id != message.sender.node_id:
            self._become_follower(self.term, message.sender.node_id)
        self._leader_heard_ms = self._now_ms
        self._wait_for_leader()

    # -- following ----------------------------------------------------------------------------------------------------

    def _on_append(self, append: AppendEntries) -> None:
        log = self.log
        previous = append.previous_index
        if previous < log.snapshot.index:  # all of that is committed here
            self._answer(append, is_accepted=True, index=log.snapshot.index)
            return
        if log.term_at(previous) != append.previous_term:
            # Where the logs may agree: before the whole run of entries of the term that is wrong here.
            hint = log.last_index if previous > log.last_index else log.first_of_term(previous) - 1
            self._answer(append, is_accepted=False, index=hint)
            return
        for entry in append.entries:
            known = log.term_at(entry.index)
            if known == entry.term:
                continue
            if known is not None:
                assert entry.index > self.commit_index, "a committed entry is never replaced"
                self._cut(entry.index)
            self._keep(entry)
        agreed = previous + len(append.entries)
        self._commit(min(append.commit, agreed))
        self._answer(append, is_accepted=True, index=agreed)

    def _answer(self, message: AppendEntries | InstallSnapshot, *, is_accepted: bool, index: int) -> None:
        to = message.sender.node_id
        known_round = message.round if message.term == self.term else 0  # the rounds of a term prove nothing in another
        answer = AppendResponse(
            sender=self.me, to=to, term=self.term, is_accepted=is_accepted, index=index, round=known_round
        )
        self._effects.promises.append(answer)

    def _on_piece(self, piece: InstallSnapshot) -> None:
        if piece.snapshot.index <= self.commit_index:
            self._answer(piece, is_accepted=True, index=self.commit_index)
            return
        whole = self._intake.take(piece)
        if whole is not None:
            self._install(whole)
        taken = SnapshotResponse(
            sender=self.me,
            to=piece.sender.node_id,
            term=self.term,
            index=piece.snapshot.index,
            position=self._intake.position,
            round=piece.round,
        )
        self._effects.promises.append(taken)

    def _install(self, snapshot: Snapshot) -> None:
        self.log.replace(snapshot)
        self.members = self.log.members()
        self._effects.installed = snapshot
        self._effects.forget_up_to(snapshot.index)
        self._effects.forget_from(self.log.last_index + 1)  # they were of another history
        self.commit_index = max(self.commit_index, snapshot.index)
        self._durable_index = min(self._durable_index, self.log.last_index)

    # -- the log ------------------------------------------------------------------------------------------------------

    def _append(self, kind: EntryKind, data: bytes, members: Members | None = None) -> int:
        self._keep(Entry(self.log.last_index + 1, self.term, kind, data, members))
        return self.log.last_index

    def _keep(self, entry: Entry) -> None:
        self.log.append(entry)
        self._effects.entries.append(entry)
        if entry.members is not None:
            self._change_members(entry.members)

    def _cut(self, index: int) -> None:
        self.log.cut(index)
        self._effects.forget_from(index)
        self._durable_index = min(self._durable_index, index - 1)
        self._change_members(self.log.members())

    def _change_members(self, members: Members) -> None:
        self.members = members
        if self.leading is not None:
            self.leading.follow_members(members, self._now_ms)

    def _commit(self, index: int) -> None:
        if index > self.commit_index:
            self._effects.committed += self.log.up_to(self.commit_index + 1, index)
            self.commit_index = index

    def on_durable(self, index: int, term: int) -> None:
        """The driver has written everything up to an index, whose entry is of that term."""
        if self.log.term_at(index) == term:
            self._durable_index = max(self._durable_index, index)
            if self.leading is not None:
                self.leading.durable = self._durable_index
                self._advance(self.leading)

    def compact(self, snapshot: Snapshot) -> None:
        """The driver has a snapshot of what is applied: forget the entries up to there."""
        assert snapshot.index <= self.commit_index, "only what is committed can be in a snapshot"
        if snapshot.index > self.log.snapshot.index:
            self.log.compact(snapshot)

    # -- leading ------------------------------------------------------------------------------------------------------

    def _on_appended(self, appended: AppendResponse) -> None:
        leading = self.leading
        follower = None if leading is None else leading.on_response(appended, self._now_ms)
        if leading is not None and follower is not None:
            leading.on_appended(follower, appended)
            self._advance(leading)
            if self.leading is leading:
                leading.pump(appended.sender.node_id, follower, self.commit_index)
                leading.hand_over()

    def _on_taken(self, taken: SnapshotResponse) -> None:
        leading = self.leading
        follower = None if leading is None else leading.on_response(taken, self._now_ms)
        if leading is not None and follower is not None:
            leading.on_taken(follower, taken)
            self._advance(leading)
            if self.leading is leading:
                leading.pump(taken.sender.node_id, follower, self.commit_index)

    def _advance(self, leading: LeaderState) -> None:
        """Commit what a majority has, of this term: older entries are committed with the first of it (figure 8)."""
        agreed = leading.agreed_index()
        if agreed > self.commit_index and self.log.term_at(agreed) == self.term:
            self._commit(agreed)
            leading.send_commit(self.commit_index)
        if self.commit_index >= leading.first_index:
            self._effects.reads += leading.take_confirmed_reads()
        if self.commit_index >= self.log.members_index() and not self.members.is_voter(self.me):
            self._become_follower(self.term, None)  # this member's own removal is committed

    def _leading_now(self) -> LeaderState:
        if self.leading is None:
            raise NotController(f"Node {self.me.node_id} does not lead the quorum.")
        if self.leading.successor is not None:
            raise NotController(f"Node {self.me.node_id} is handing leadership to node {self.leading.successor}.")
        return self.leading

    def propose(self, data: bytes) -> int:
        """AppendEntries a command; the index at which it will be committed, if it ever is, in this term."""
        leading = self._leading_now()
        index = self._append(EntryKind.COMMAND, data)
        leading.send_news(self.commit_index)
        return index

    def read(self, token: object) -> None:
        """Ask how far the state machine must be to read what is committed now; it comes in the effects."""
        leading = self._leading_now()
        leading.reads.append(Read(token, max(self.commit_index, leading.first_index), leading.round + 1))
        leading.beat(self.commit_index)
        self._advance(leading)

    def change_members(self, members: Members) -> int:
        """Take one step from the present members to others."""
        leading = self._leading_now()
        if self.commit_index < leading.first_index or self.log.members_index() > self.commit_index:
            raise NotController("An earlier change of members is not settled yet. Try again in a moment.")
        self.members.check_step_to(members)
        index = self._append(EntryKind.MEMBERS, b"", members)
        leading.send_news(self.commit_index)
        self._advance(leading)
        return index

    def transfer(self, node_id: int) -> None:
        """Hand leadership to another voter, as soon as it has every entry; nothing is taken meanwhile."""
        leading = self._leading_now()
        if node_id == self.me.node_id:
            return
        if node_id not in self.members.voters:
            raise InvalidRequest(f"Node {node_id} is no voter of the quorum.")
        leading.successor = node_id
        leading.successor_until_ms = self._now_ms + self._pace.election_ms
        leading.hand_over()
