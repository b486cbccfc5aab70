"""A swarm: each seed takes some of all kinds of faults, so that no kind hides what another would show.

For a while nodes crash, networks split, disks are slow, clocks drift and members change, with work going on all the
time; then comes calm, in which everybody has to find together again.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

from penstock.consensus.raft.core import Raft
from penstock.consensus.raft.messages import EntryKind, Members
from penstock.errors import InvalidRequest
from sim.network import Weather
from sim.oracles import Violation
from sim.quorum import Node, Quorum
from sim.result import Result

FAULTS: Final = (
    "crash",
    "power cut",
    "split",
    "one-way",
    "depose",
    "pause",
    "doubt",
    "drift",
    "loss",
    "repeat",
    "late",
    "slow disk",
    "compact",
    "members",
    "transfer",
    "wipe",
)
_LAST: Final = b"last"
_DURATION_MS: Final = 20_000


def run_raft_seed(seed: int, *, is_kept: bool = False) -> Result:
    """One history, and what it came to."""
    swarm = Swarm(seed, is_kept=is_kept)
    violation = None
    try:
        swarm.run(_DURATION_MS)
    except Exception as error:  # an assertion of the core, or a crash of it, is as bad as an oracle proved wrong
        violation = f"{type(error).__name__}: {error}"
        swarm.quorum.note(f"VIOLATION {violation}")
    quorum = swarm.quorum
    commands = sum(entry.kind is EntryKind.COMMAND for entry in quorum.oracles.history.values())
    return Result(
        kind="raft",
        seed=seed,
        duration_ms=quorum.events.now_ms,
        events=quorum.trace.events,
        operations=commands + quorum.oracles.reads_confirmed,
        faults=dict(quorum.trace.faults),
        trace=quorum.trace.digest,
        violation=violation,
        history=tuple(quorum.trace.lines),
    )


class Swarm:
    """A quorum with work to do and faults to bear."""

    def __init__(self, seed: int, *, is_kept: bool = False) -> None:
        random = Random(seed)
        self._random = random
        self.quorum = quorum = Quorum(seed, random.choice((3, 3, 5)), is_kept=is_kept)
        self._kinds = [kind for kind in FAULTS if random.random() < 0.5]
        self._chatter = random.choice((0.1, 0.3, 0.6))  # how often something is done to somebody
        quorum.batches = random.random() < 0.3
        quorum.network.weather = Weather(
            delay_max_ms=random.choice((2, 10, 100)),
            lost=random.choice((0.05, 0.2)) if "loss" in self._kinds else 0.0,
            repeated=0.1 if "repeat" in self._kinds else 0.0,
            late=random.choice((0.02, 0.1)) if "late" in self._kinds else 0.0,
        )
        quorum.disk_delay_max_ms = 80 if "slow disk" in self._kinds else 5
        for kind in ("loss", "repeat", "late", "slow disk"):
            if kind in self._kinds:
                quorum.trace.note_fault(0, kind, "all the time")
        self._proposed = 0
        self._asked = 0

    def run(self, duration_ms: int) -> None:
        """A `Violation` if an oracle is proved wrong."""
        quorum, random = self.quorum, self._random
        while quorum.events.now_ms < duration_ms:
            quorum.run(random.randrange(1, 200))
            for _ in range(random.randrange(4)):
                self._propose()
            if random.random() < 0.2:
                self._read()
            if self._kinds and random.random() < self._chatter:
                self._disturb(random.choice(self._kinds))
        self._calm_down()

    def _propose(self) -> None:
        self._proposed += self.quorum.try_on_leader(partial(Raft.propose, data=b"%d" % self._proposed))

    def _read(self) -> None:
        self._asked += 1
        self.quorum.read(self._asked)

    def _disturb(self, kind: str) -> None:
        quorum, random = self.quorum, self._random
        node = random.choice(list(quorum.nodes.values()))
        about = str(node)
        match kind:
            case "crash" if node.raft is not None:
                node.crash()
            case "crash":
                node.start()
            case "power cut":
                about = "everybody"
                for each in quorum.nodes.values():
                    each.crash()
                    each.start()
            case "split" | "one-way" | "depose":
                about = self._cut(kind, node)
            case "pause":
                node.is_paused = not node.is_paused
                if not node.is_paused:
                    self._read()  # it may not know yet how long it was away
            case "doubt" if node.raft is not None and not node.is_paused:
                other = random.choice(list(quorum.nodes))
                about = f"{node} of {other}"
                node.act(lambda raft: raft.doubt(other, node.now_ms))
            case "drift":
                node.set_clock_rate(random.choice((0.3, 0.8, 1.0, 1.2, 3.0)))
            case "compact":
                node.compact()
            case "members":
                self._step_members(node)
            case "transfer":
                quorum.try_on_leader(partial(Raft.transfer, node_id=node.id))
            case "wipe":
                self._wipe(node)
            case _:
                return  # it goes on all the time
        quorum.trace.note_fault(quorum.events.now_ms, kind, about)

    def _cut(self, kind: str, node: Node) -> str:
        """Cut the network in two, between two nodes, or around a leader that has much to say at that moment."""
        quorum, random = self.quorum, self._random
        quorum.network.heal()
        here = {node.id}
        if kind == "one-way":
            other = random.choice(list(quorum.nodes))
            quorum.network.cut(node.id, other)
            return f"from {node.id} to {other}"
        if kind == "depose":
            leader = quorum.leader()
            if leader is None:
                return "nobody"
            here = {leader.id}
            if not leader.is_paused:
                for _ in range(random.randrange(20)):
                    self._proposed += quorum.try_on(leader, partial(Raft.propose, data=b"%d" % self._proposed))
        elif random.random() < 0.3:
            return "healed"
        else:
            here = set(random.sample(list(quorum.nodes), random.randrange(1, len(quorum.nodes))))
        quorum.network.split(here, set(quorum.nodes) - here)
        return f"{sorted(here)} from the others"

    def _step_members(self, node: Node) -> None:
        """Take a node one step on, and often try the next at once: it must be refused while the first is open."""
        others = self._random.sample(list(self.quorum.nodes.values()), 2)
        for each in (node, *others[: self._random.randrange(3)]):
            self.quorum.try_on_leader(partial(_change_members, node=each))

    def _wipe(self, node: Node) -> None:
        """A disk is lost. Nobody can bear that of a voter on top of other faults, so it happens to others."""
        quorum = self.quorum
        leader = quorum.leader()
        raft = None if leader is None else leader.raft
        if raft is None or raft.log.members_index() > raft.commit_index:
            return
        if not raft.members.is_voter(node.member):
            node.wipe(quorum.first_members)
            node.start()

    def _calm_down(self) -> None:
        quorum = self.quorum
        quorum.network.calm()
        quorum.disk_delay_max_ms = 2
        for node in quorum.nodes.values():
            node.is_paused = False
            node.set_clock_rate(1.0)
            if node.raft is None:
                node.start()
        quorum.run(5_000)
        if not quorum.try_on_leader(partial(Raft.propose, data=_LAST)):
            raise Violation("recovery: nobody leads, or the leader takes nothing, though all is calm")
        quorum.run(3_000)
        leader = quorum.leader()
        if leader is None or leader.raft is None or leader.applied[-1:] != [_LAST]:
            raise Violation("recovery: nothing is committed though all is calm")
        for node in quorum.nodes.values():
            if leader.raft.members.knows(node.member) and node.applied != leader.applied:
                raise Violation(f"recovery: node {node.id} does not catch up though all is calm")


def _change_members(raft: Raft, node: Node) -> None:
    """Take a node one step on: from nobody to learner to voter, and out again. Two steps at once must be refused."""
    members = raft.members
    try:
        raft.change_members(Members({9: "one", 10: "another", **members.voters}))
    except InvalidRequest:
        pass
    else:
        raise Violation("single steps: two voters were added at once")
    if members.is_voter(node.member):
        raft.change_members(members.without(node.id))
    elif members.knows(node.member):
        raft.change_members(members.with_voter(node.member))
    elif node.id in members.voters:  # its disk is another one now
        raft.change_members(members.without(node.id).with_learner(node.member))
    else:
        raft.change_members(members.with_learner(node.member))
