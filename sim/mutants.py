"""Known bugs of the quorum's core: a simulation that does not catch every one of them proves nothing."""

from __future__ import annotations

from typing import Final

from sim.planting import Mutant

_CORE: Final = "penstock.consensus.raft.core"
_LEADING: Final = "penstock.consensus.raft.leading"
_LOG: Final = "penstock.consensus.raft.log"
_MESSAGES: Final = "penstock.consensus.raft.messages"
_INTAKE: Final = "penstock.consensus.raft.core"

RAFT: Final = (
    Mutant(
        "votes twice in a term",
        _CORE,
        "is_up_to_date and self.voted_for in (None, ask.sender.node_id) and self.leader_id is None",
        "is_up_to_date",
    ),
    Mutant(
        "votes for a log that is behind",
        _CORE,
        "is_up_to_date = self.log.is_behind(ask.last_index, ask.last_term)",
        "is_up_to_date = True",
    ),
    Mutant(
        "compares logs by length alone",
        _LOG,
        "(last_term, last_index) >= (self.last_term, self.last_index)",
        "last_index >= self.last_index",
    ),
    Mutant(
        "votes before the vote is on disk",
        _CORE,
        ("self._effects.promises.append(answer)\n\n    def _on_vote"),
        ("self._effects.messages.append(answer)\n\n    def _on_vote"),
    ),
    Mutant(
        "acknowledges before the entries are on disk",
        _CORE,
        "round=known_round\n        )\n        self._effects.promises.append(answer)",
        "round=known_round\n        )\n        self._effects.messages.append(answer)",
    ),
    Mutant(
        "does not store its vote",
        _CORE,
        "        self._effects.hard_state = hard_state\n",
        "",
    ),
    Mutant(
        "a leader counts entries it has not on disk",
        _LEADING,
        "self._reached_by_majority(self.durable,",
        "self._reached_by_majority(self._log.last_index,",
    ),
    Mutant(
        "commits entries of older terms by counting",
        _CORE,
        "if agreed > self.commit_index and self.log.term_at(agreed) == self.term:",
        "if agreed > self.commit_index:",
    ),
    Mutant(
        "a majority of half",
        _MESSAGES,
        "len(self.voters) // 2 + 1",
        "max(1, len(self.voters) // 2)",
    ),
    Mutant(
        "cuts its log at every message",
        _CORE,
        ("            if known == entry.term:\n                continue\n"),
        "",
    ),
    Mutant(
        "keeps entries that the leader does not have",
        _CORE,
        ("                self._cut(entry.index)\n            self._keep(entry)"),
        ("                continue\n            self._keep(entry)"),
    ),
    Mutant(
        "takes entries without looking at those before",
        _CORE,
        "if log.term_at(previous) != append.previous_term:",
        "if previous > log.last_index:",
    ),
    Mutant(
        "commits what the leader committed, not what agrees",
        _CORE,
        "self._commit(min(append.commit, agreed))",
        "self._commit(min(append.commit, log.last_index))",
    ),
    Mutant(
        "acknowledges its whole log",
        _CORE,
        "        self._answer(append, is_accepted=True, index=agreed)",
        "        self._answer(append, is_accepted=True, index=log.last_index)",
    ),
    Mutant(
        "reads without asking anybody",
        _LEADING,
        "ready = [read for read in self.reads if read.round <= confirmed]",
        "ready = list(self.reads)",
    ),
    Mutant(
        "reads by the round before",
        _CORE,
        "leading.round + 1))",
        "leading.round))",
    ),
    Mutant(
        "a round of an earlier term is answered as one of this term",
        _CORE,
        "message.round if message.term == self.term else 0",
        "message.round",
    ),
    Mutant(
        "reads before an entry of its own term is committed",
        _CORE,
        "Read(token, max(self.commit_index, leading.first_index), leading.round + 1)",
        "Read(token, self.commit_index, leading.round + 1)",
    ),
    Mutant(
        "goes on in a new term with the old vote",
        _CORE,
        "self._set_hard_state(HardState(term, None))",
        "self._set_hard_state(HardState(term, self.voted_for))",
    ),
    Mutant(
        "counts answers of older terms",
        _CORE,
        ("        if message.term < self.term:\n            if isinstance(message, (AppendEntries, InstallSnapshot)):"),
        (
            "        if message.term < self.term and not isinstance(message, (AppendResponse, VoteResponse)):\n"
            "            if isinstance(message, (AppendEntries, InstallSnapshot)):"
        ),
    ),
    Mutant(
        "changes several voters at once",
        _MESSAGES,
        "        if len(changed) > 1:\n",
        "        if False:\n",
    ),
    Mutant(
        "changes members before the last change is settled",
        _CORE,
        ("if self.commit_index < leading.first_index or self.log.members_index() > self.commit_index:"),
        "if False:",
    ),
    Mutant(
        "takes a node with another disk for the member it was",
        _MESSAGES,
        "return self.voters.get(member.node_id) == member.directory_id",
        "return member.node_id in self.voters",
    ),
    Mutant(
        "keeps its entries behind a snapshot of another history",
        _LOG,
        ("            self._entries = []\n            self._changes = []\n"),
        "",
    ),
    Mutant(
        "a snapshot moves the commit back",
        _CORE,
        "self.commit_index = max(self.commit_index, snapshot.index)",
        "self.commit_index = snapshot.index - 1",
    ),
    Mutant(
        "glues pieces of different snapshots",
        _INTAKE,
        "            self._data.clear()\n",
        "",
    ),
    Mutant(
        "forgets the members of a snapshot",
        _CORE,
        ("        self.members = self.log.members()\n        self._effects.installed"),
        "        self._effects.installed",
    ),
    Mutant(
        "a removed voter that is ahead may not stand",
        _CORE,
        ("return self.log.members_index() > self.commit_index and self.log.members_before().is_voter(self.me)"),
        "return False",
    ),
    Mutant(
        "follows members only when they are committed too late",
        _CORE,
        ("        self.members = members\n        if self.leading is not None:"),
        ("        if self.leading is not None:\n            self.members = members"),
    ),
    Mutant(
        "never sends again what was lost",
        _LEADING,
        (
            "            follower.in_flight = 0  # what was lost is sent again; what was not is taken "
            "twice without harm\n"
            "            self._send_to(node_id, follower, commit)"
        ),
        ("            if follower.takes_more(self._pace):\n                self._send_to(node_id, follower, commit)"),
    ),
    Mutant(
        "a refused follower is asked the same again",
        _LEADING,
        "            follower.next_index = max(follower.matched, appended.index) + 1\n",
        "",
    ),
    # -- elections
    Mutant(
        "stands without a trial",
        _CORE,
        "            self._stand(is_trial=True)\n\n    def _tick_leading",
        "            self._stand(is_trial=False)\n\n    def _tick_leading",
    ),
    Mutant(
        "grants a trial though it hears a leader",
        _CORE,
        "is_granted = is_up_to_date and ask.term > self.term and not self._hears_leader()",
        "is_granted = is_up_to_date and ask.term > self.term",
    ),
    Mutant(
        "votes against a leader it hears",
        _CORE,
        "if self._hears_leader() and not message.is_handed_over:",
        "if False:",
    ),
    Mutant(
        "leads on though nobody answers",
        _CORE,
        "if self._now_ms - leading.heard_majority_ms() >= self._pace.silence_ms:",
        "if False:",
    ),
    Mutant(
        "asks for votes before its own is on disk",
        _CORE,
        "(self._effects.messages if is_trial else self._effects.promises).append(ask)",
        "self._effects.messages.append(ask)",
    ),
    Mutant(
        "leads before its term is on disk",
        _CORE,
        "(self._effects.messages if is_stored else self._effects.promises).append(message)",
        "self._effects.messages.append(message)",
    ),
    Mutant(
        "hands over to one that is behind",
        _LEADING,
        "if self.successor is not None and self.followers[self.successor].matched == self._log.last_index:",
        "if self.successor is not None:",
    ),
    Mutant(
        "takes proposals while it hands over",
        _CORE,
        "        if self.leading.successor is not None:\n            raise",
        "        if False:\n            raise",
    ),
    Mutant(
        "waits for its successor for ever",
        _CORE,
        "if leading.successor is not None and self._now_ms >= leading.successor_until_ms:",
        "if False:",
    ),
    # -- counting
    Mutant(
        "counts learners as voters",
        _LEADING,
        "of(self.followers[node_id]) for node_id in self.members.voters\n",
        "of(self.followers[node_id]) for node_id in (self._me.node_id, *self.followers)\n",
    ),
    Mutant(
        "counts itself though it is removed",
        _LEADING,
        "of(self.followers[node_id]) for node_id in self.members.voters\n",
        "of(self.followers[node_id]) for node_id in {self._me.node_id: 0, **self.members.voters}\n",
    ),
    Mutant(
        "believes that entries are on disk that were cut",
        _CORE,
        "        self._durable_index = min(self._durable_index, index - 1)\n",
        "",
    ),
    Mutant(
        "believes that entries are on disk that a snapshot replaced",
        _CORE,
        "        self._durable_index = min(self._durable_index, self.log.last_index)\n",
        "",
    ),
    Mutant(
        "takes what is on disk for what was meant to be",
        _CORE,
        "        if self.log.term_at(index) == term:\n            self._durable_index",
        "        if True:\n            self._durable_index",
    ),
    # -- members
    Mutant(
        "a new leader changes members at once",
        _CORE,
        "if self.commit_index < leading.first_index or self.log.members_index() > self.commit_index:",
        "if self.log.members_index() > self.commit_index:",
    ),
    Mutant(
        "leads on after its removal",
        _CORE,
        "            self._become_follower(self.term, None)  # this member's own removal is committed\n",
        "            pass\n",
    ),
    Mutant(
        "takes a new disk for what the old one had",
        _LEADING,
        "if follower is None or follower.directory_id != directory_id:",
        "if follower is None:",
    ),
    Mutant(
        "expects to have heard of a voter that is new",
        _LEADING,
        "heard_ms=now_ms)",
        "heard_ms=0)",
    ),
    Mutant(
        "keeps the members of entries that were cut",
        _LOG,
        "        self._changes = [change for change in self._changes if change[0] < index]\n",
        "",
    ),
    # -- reads and snapshots
    Mutant(
        "leaves those who wait for a read in the dark",
        _CORE,
        "            self._effects.failed_reads += self.leading.reads\n",
        "            pass\n",
    ),
    Mutant(
        "glues pieces of two leaders",
        _INTAKE,
        "of = (piece.term, snapshot.index, snapshot.term)",
        "of = (0, snapshot.index, snapshot.term)",
    ),
    Mutant(
        "says that it has a snapshot before it is on disk",
        _CORE,
        "        self._effects.promises.append(taken)",
        "        self._effects.messages.append(taken)",
    ),
    Mutant(
        "sends the next piece whatever came of the last",
        _LEADING,
        "        follower.position = taken.position\n",
        "        follower.position += self._pace.piece_bytes\n",
    ),
    Mutant(
        "sends entries where a snapshot is needed",
        _LEADING,
        "        if previous_term is None or follower.snapshot is not None:\n",
        "        previous_term = previous_term or 0\n        if follower.snapshot is not None:\n",
    ),
)
