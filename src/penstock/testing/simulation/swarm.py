"""A swarm: each seed takes some of all kinds of faults, so that no kind hides what another would show.

For a while nodes crash, networks split, disks are slow and members change, with work going on all the time; then comes
calm, in which everybody has to find together again.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

from penstock.cluster.raft.core import Raft
from penstock.cluster.raft.messages import Members
from penstock.errors import InvalidRequest
from penstock.testing.simulation.network import Weather
from penstock.testing.simulation.quorum import Node, Quorum, Violation

FAULTS: Final = (
    "crash",
    "split",
    "one-way",
    "pause",
    "loss",
    "repeat",
    "late",
    "slow-disk",
    "compact",
    "members",
    "transfer",
    "wipe",
)
_LAST: Final = b"last"


def run_swarm(seed: int, *, duration_ms: int = 20_000) -> Quorum:
    """One history; a `Violation` if an oracle was proved wrong in it."""
    random = Random(seed)
    quorum = Quorum(seed, random.choice((3, 3, 5)))
    kinds = [kind for kind in FAULTS if random.random() < 0.5]
    quorum.network.weather = Weather(
        delay_max_ms=random.choice((2, 10, 100)),
        lost=random.choice((0.05, 0.2)) if "loss" in kinds else 0.0,
        repeated=0.1 if "repeat" in kinds else 0.0,
        late=0.02 if "late" in kinds else 0.0,
    )
    quorum.disk_delay_max_ms = 80 if "slow-disk" in kinds else 5
    proposed = 0
    while quorum.events.now_ms < duration_ms:
        quorum.run(random.randrange(1, 200))
        for _ in range(random.randrange(4)):
            proposed += quorum.try_on_leader(partial(Raft.propose, data=b"%d" % proposed))
        if random.random() < 0.2:
            quorum.read(quorum.events.now_ms)
        if kinds and random.random() < 0.3:
            _disturb(quorum, random, random.choice(kinds))
    _calm_down(quorum)
    return quorum


def _disturb(quorum: Quorum, random: Random, kind: str) -> None:
    nodes = list(quorum.nodes.values())
    node = random.choice(nodes)
    match kind:
        case "crash" if node.raft is not None:
            node.crash()
        case "crash":
            node.start()
        case "split":
            quorum.network.heal()
            if random.random() < 0.7:
                here = set(random.sample(list(quorum.nodes), random.randrange(1, len(nodes))))
                quorum.network.split(here, set(quorum.nodes) - here)
        case "one-way":
            quorum.network.heal()
            quorum.network.cut(node.id, random.choice(nodes).id)
        case "pause":
            node.is_paused = not node.is_paused
        case "compact":
            node.compact()
        case "members":
            quorum.try_on_leader(partial(_change_members, node=node))
        case "transfer":
            quorum.try_on_leader(partial(Raft.transfer, node_id=node.id))
        case "wipe":
            _wipe(quorum, node)


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
    elif node.id in members.voters or node.id in members.learners:
        raft.change_members(members.without(node.id))  # its disk is another one now
    else:
        raft.change_members(members.with_learner(node.member))


def _wipe(quorum: Quorum, node: Node) -> None:
    """A disk is lost. Nobody can bear that of a voter on top of other faults, so it happens to others."""
    leader = quorum.leader()
    raft = None if leader is None else leader.raft
    if raft is None or raft.log.members_index() > raft.commit_index:
        return
    if not raft.members.is_voter(node.member):
        node.wipe(quorum.first_members)
        node.start()


def _calm_down(quorum: Quorum) -> None:
    quorum.network.heal()
    quorum.network.weather = Weather()
    quorum.disk_delay_max_ms = 2
    for node in quorum.nodes.values():
        node.is_paused = False
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
