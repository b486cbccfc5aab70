"""Known bugs, planted one at a time: a simulation that does not catch them proves nothing.

A mutant is a text in a source file and what stands in its place. Each must be caught within a number of seeds.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple


class Mutant(NamedTuple):
    """A bug by name: in ``module``, ``right`` becomes ``wrong``."""

    name: str
    module: str
    right: str
    wrong: str


_CORE: Final = "penstock.cluster.raft.core"
_LEADING: Final = "penstock.cluster.raft.leading"
_LOG: Final = "penstock.cluster.raft.log"
_MESSAGES: Final = "penstock.cluster.raft.messages"
_INTAKE: Final = "penstock.cluster.raft.intake"

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
        ("            round=message.round,\n        )\n        self._effects.promises.append(answer)"),
        ("            round=message.round,\n        )\n        self._effects.messages.append(answer)"),
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
        ("        if message.term < self.term:\n            if isinstance(message, (Append, SendSnapshot)):"),
        (
            "        if message.term < self.term and not isinstance(message, (Appended, GiveVote)):\n"
            "            if isinstance(message, (Append, SendSnapshot)):"
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
)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run with the bug in place: the module is made anew from the wrong text, and those that use it are too."""
    spec = importlib.util.find_spec(mutant.module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    if source.count(mutant.right) != 1:
        raise LookupError(f"mutant {mutant.name!r}: its text is there {source.count(mutant.right)} times, not once")
    names = [
        name for name in sys.modules if name.startswith(("penstock.cluster.raft.", "penstock.testing.simulation."))
    ]
    names = [name for name in names if name != __name__]
    saved: dict[str, ModuleType] = {name: sys.modules.pop(name) for name in names}
    try:
        module = ModuleType(mutant.module)
        module.__file__ = spec.origin
        module.__package__ = mutant.module.rpartition(".")[0]
        sys.modules[mutant.module] = module
        exec(compile(source.replace(mutant.right, mutant.wrong), spec.origin, "exec"), module.__dict__)  # noqa: S102
        yield
    finally:
        for name in [name for name in sys.modules if name in saved or name == mutant.module]:
            del sys.modules[name]
        sys.modules.update(saved)


def is_caught(mutant: Mutant, seeds: range) -> int | None:
    """The first seed that shows the bug, or None."""
    with planted(mutant):
        swarm = importlib.import_module("penstock.testing.simulation.swarm")
        for seed in seeds:
            try:
                swarm.run_swarm(seed)
            except Exception:  # an oracle, an assertion of the core, or a crash: all of them would be noticed
                return seed
    return None
