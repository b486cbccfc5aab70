"""The pure cores of replication against a dumb twin: three replicas that are lists, and messages that come at any time.

What a leader's watermark ever covered is kept by the twin. Whoever is elected by the rules must have all of it; and
below the watermarks that nodes know, their lists are the same. Messages are delayed, lost, doubled and reordered, nodes
lose their power and all that they did not keep, and the controller's answers get lost while the change is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from penstock.partitions.replication.followers import Followers, Proposal, ReplicaAssignment
from penstock.partitions.replication.following import (
    GOOD,
    Append,
    Following,
    LeaderAnswer,
    LocalLog,
    LogPosition,
    Truncate,
    check_history,
)
from penstock.storage.epochs import LeaderEpochs
from penstock.testing.files import MemoryFiles

NODES = (1, 2, 3)
MIN_IN_SYNC = 2
LAG_S = 5.0
STEPS = 600


class Entry(NamedTuple):
    epoch: int
    value: int


class Asked(NamedTuple):
    """A fetch on its way to a leader."""

    source: int
    target: int
    node_epoch: int
    number: int
    leader_epoch: int
    slot: int
    position: LogPosition
    stable: int


class Answered(NamedTuple):
    """An answer on its way back, with the entries it brings."""

    target: int
    node_epoch: int
    number: int
    answer: LeaderAnswer
    entries: tuple[Entry, ...]


class Kept(NamedTuple):
    source: int
    target: int
    node_epoch: int
    leader_epoch: int
    slot: int
    stable: int


class Change(NamedTuple):
    """A proposal on its way to the controller; the answer is for the very leader that asked."""

    source: int
    node_epoch: int
    leader_epoch: int
    followers: Followers
    proposal: Proposal
    is_answered: bool


@dataclass
class State:
    """What the controller has decided."""

    in_sync: tuple[int, ...] = NODES
    eligible: tuple[int, ...] = ()
    leader: int = 1
    leader_epoch: int = 0
    partition_epoch: int = 0
    node_epochs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(NODES, 0))


class Machine:
    """One node."""

    def __init__(self, node_id: int) -> None:
        self.id = node_id
        self.log: list[Entry] = []
        self.stable = 0
        self.high_watermark = 0
        self.node_epoch = 0
        self.number = 0
        self.slot = 0  # another one whenever it begins to follow, or has cut its log
        self.good: dict[int, int] = {}  # slots of followers whose history is ours
        self.open_number = -1
        self.leader_epoch = -1
        self.followers: Followers | None = None
        self.following: Following | None = None
        self.epochs = LeaderEpochs(MemoryFiles(), Path("/epochs"))

    def append(self, entry: Entry) -> None:
        self.epochs.begin(entry.epoch, len(self.log))
        self.log.append(entry)

    def cut(self, end: int) -> None:
        del self.log[end:]
        self.epochs.cut(end)
        self.stable = min(self.stable, end)
        self.high_watermark = min(self.high_watermark, end)


class World:
    """Three nodes, a controller, and all that is on its way between them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.state = State()
        self.nodes = {node_id: Machine(node_id) for node_id in NODES}
        self.committed: list[Entry] = []
        self.values = 0
        self.fetches: list[Asked] = []
        self.answers: list[Answered] = []
        self.kept: list[Kept] = []
        self.changes: list[Change] = []
        for node_id in NODES:
            self.learn(node_id)

    # -- metadata -----------------------------------------------------------------------------------------------------

    def learn(self, node_id: int) -> None:
        """A node applies what was decided."""
        node, state = self.nodes[node_id], self.state
        assigned = ReplicaAssignment(NODES, state.in_sync, state.partition_epoch)
        if state.leader_epoch > node.leader_epoch:
            node.leader_epoch = state.leader_epoch
            node.followers = node.following = None
            node.good.clear()
            node.slot += 1
            if state.leader == node_id and state.node_epochs[node_id] == node.node_epoch:
                node.followers = Followers(
                    node_id,
                    assigned,
                    lambda other, epoch: self.state.node_epochs[other] == epoch,
                    min_in_sync=MIN_IN_SYNC,
                    epoch_start=len(node.log),
                    lag_s=LAG_S,
                    now=self.now,
                )
            elif state.leader in NODES and state.leader != node_id:
                node.following = Following(state.leader, state.leader_epoch)
                node.open_number = -1
        elif node.followers is not None:
            node.followers.assign(assigned, self.now)
        self.advance(node)

    def apply(self, pick: int) -> None:
        self.learn(NODES[pick % 3])

    def settle(self, in_sync: tuple[int, ...], leader: int) -> None:
        """As the controller does: who falls out while too few are in sync stays eligible."""
        state = self.state
        before = {*state.in_sync, *state.eligible}
        state.eligible = tuple(sorted(before - set(in_sync))) if len(in_sync) < MIN_IN_SYNC else ()
        state.in_sync = in_sync
        state.partition_epoch += 1
        if leader != state.leader:
            state.leader = leader
            state.leader_epoch += 1
            if leader in NODES:
                self.check_leader(self.nodes[leader])

    def check_leader(self, node: Machine) -> None:
        assert node.log[: len(self.committed)] == self.committed, "a leader lacks what was committed"

    def elect(self, pick: int) -> None:
        """The leader is given up: somebody in sync takes over, or who is eligible if nobody is left."""
        state = self.state
        others = [node_id for node_id in state.in_sync if node_id != state.leader]
        if others:
            heir = others[pick % len(others)]
            self.settle(tuple(others), heir)
        elif state.eligible and state.leader not in NODES:
            heir = state.eligible[pick % len(state.eligible)]
            self.settle((heir,), heir)

    def lose_power(self, pick: int) -> None:
        """A node keeps what is stable and nothing else, and registers anew."""
        node = self.nodes[NODES[pick % 3]]
        node.cut(node.stable)
        node.node_epoch += 1
        node.slot += 1
        node.followers = node.following = None
        self.state.node_epochs[node.id] = node.node_epoch
        state = self.state
        living = tuple(node_id for node_id in state.in_sync if node_id != node.id)
        if living:
            self.settle(living, living[0] if state.leader == node.id else state.leader)
        else:
            # It was the last one: it leads again, in a new epoch.
            state.leader = -1
            self.settle(state.in_sync, node.id)
        node.leader_epoch = min(node.leader_epoch, state.leader_epoch - 1)
        self.learn(node.id)

    # -- the leader ---------------------------------------------------------------------------------------------------

    def advance(self, node: Machine) -> None:
        if node.followers is None:
            return
        target = min(node.stable, node.followers.limit)
        if target > node.high_watermark:
            node.high_watermark = target
            found = node.log[:target]
            shared = min(len(found), len(self.committed))
            assert found[:shared] == self.committed[:shared], "two leaders committed different things"
            if target > len(self.committed):
                self.committed = found

    def leaders(self) -> list[Machine]:
        return [node for node in self.nodes.values() if node.followers is not None]

    def write(self, pick: int) -> None:
        leader = self.leaders()[pick % len(self.leaders())]
        self.values += 1
        leader.append(Entry(leader.leader_epoch, self.values))

    def sync(self, pick: int) -> None:
        node = self.nodes[NODES[pick % 3]]
        node.stable = len(node.log)
        self.advance(node)
        if node.following is not None:
            where = node.following.leader_id
            self.kept.append(Kept(node.id, where, node.node_epoch, node.following.leader_epoch, node.slot, node.stable))

    def pass_time(self, seconds: float, is_answered: bool) -> None:
        self.now += seconds
        for leader in self.leaders():
            followers = leader.followers
            assert followers is not None
            followers.check_lag(len(leader.log), leader.high_watermark, self.now)
            proposal = followers.propose(leader.node_epoch, leader.high_watermark, self.now)
            if proposal is not None:
                self.changes.append(
                    Change(leader.id, leader.node_epoch, leader.leader_epoch, followers, proposal, is_answered)
                )
            self.advance(leader)

    # -- messages -----------------------------------------------------------------------------------------------------

    def ask(self, pick: int) -> None:
        node = self.nodes[NODES[pick % 3]]
        if node.following is None:
            return
        position = node.following.ask(len(node.log), node.epochs)
        node.number += 1
        node.open_number = node.number
        self.fetches.append(
            Asked(
                node.id,
                node.following.leader_id,
                node.node_epoch,
                node.number,
                node.following.leader_epoch,
                node.slot,
                position,
                node.stable,
            )
        )

    def serve(self, pick: int, is_lost: bool) -> None:
        # Sessions let nothing old through: a leader takes a follower's fetches in order, each once.
        asked = self.fetches.pop(pick % len(self.fetches))
        self.fetches = [each for each in self.fetches if each.source != asked.source or each.number > asked.number]
        leader = self.nodes[asked.target]
        if is_lost:
            return
        if leader.followers is None or leader.leader_epoch != asked.leader_epoch:
            return
        history = check_history(asked.position, leader.epochs, 0, len(leader.log))
        entries: tuple[Entry, ...] = ()
        leader.good.pop(asked.source, None)
        if history is GOOD:
            leader.good[asked.source] = asked.slot
            leader.followers.report(
                asked.source, asked.node_epoch, asked.position.offset, asked.stable, len(leader.log), self.now
            )
            self.advance(leader)
            entries = tuple(leader.log[asked.position.offset :][: 1 + pick % 3])
        answer = LeaderAnswer(
            leader.leader_epoch,
            history.problem,
            leader.high_watermark,
            0,
            len(leader.log),
            len(entries),
            history.parting,
        )
        self.answers.append(Answered(asked.source, asked.node_epoch, asked.number, answer, entries))

    def take(self, pick: int, is_doubled: bool) -> None:
        at = pick % len(self.answers)
        found = self.answers[at] if is_doubled else self.answers.pop(at)
        node = self.nodes[found.target]
        if node.following is None or found.node_epoch != node.node_epoch or found.number != node.open_number:
            return
        node.open_number = -1
        local = LocalLog(0, len(node.log), node.high_watermark, node.epochs)
        match node.following.on_answer(found.answer, local):
            case Append(high_watermark, _):
                for entry in found.entries:
                    node.append(entry)
                node.high_watermark = max(node.high_watermark, min(high_watermark, len(node.log)))
            case Truncate(offset):
                assert offset >= node.high_watermark, "what was committed is cut away"
                node.cut(offset)
                node.slot += 1

    def hear_kept(self, pick: int) -> None:
        kept = self.kept.pop(pick % len(self.kept))
        leader = self.nodes[kept.target]
        is_known = leader.good.get(kept.source) == kept.slot
        if is_known and leader.followers is not None and leader.leader_epoch == kept.leader_epoch:
            leader.followers.report_stable(kept.source, kept.node_epoch, kept.stable, len(leader.log), self.now)
            self.advance(leader)

    def decide(self, pick: int, is_doubled: bool) -> None:
        """A change reaches the controller, perhaps not for the last time."""
        at = pick % len(self.changes)
        change = self.changes[at] if is_doubled else self.changes.pop(at)
        state, proposal = self.state, change.proposal
        is_of_now = (change.leader_epoch, change.source) == (state.leader_epoch, state.leader)
        if not is_of_now or proposal.partition_epoch != state.partition_epoch:
            verdict = "lost"
        elif any(state.node_epochs[node_id] != epoch for node_id, epoch in proposal.in_sync):
            verdict = "refused"
        else:
            verdict = "granted"
            self.settle(proposal.node_ids, state.leader)
        if is_doubled or not change.is_answered:
            change.followers.lose(proposal)
        elif verdict == "granted":
            change.followers.grant(proposal, ReplicaAssignment(NODES, state.in_sync, state.partition_epoch), self.now)
        elif verdict == "refused":
            change.followers.refuse(proposal)
        else:
            change.followers.lose(proposal)
        self.advance(self.nodes[change.source])

    # -- laws ---------------------------------------------------------------------------------------------------------

    def the_maximal_set_covers_what_the_controller_has(self) -> None:
        leader = self.nodes.get(self.state.leader)
        if leader is not None and leader.followers is not None and leader.leader_epoch == self.state.leader_epoch:
            assert set(self.state.in_sync) <= set(leader.followers.maximal) | {leader.id}

    def whoever_may_lead_has_what_is_committed(self) -> None:
        for node_id in self.state.in_sync:
            node = self.nodes[node_id]
            assert node.log[: node.stable][: len(self.committed)] == self.committed

    def logs_agree_where_they_are_known_to_be_committed(self) -> None:
        for node in self.nodes.values():
            known = min(node.high_watermark, len(node.log))
            assert node.log[:known] == self.committed[:known]

    def check(self) -> None:
        self.the_maximal_set_covers_what_the_controller_has()
        self.whoever_may_lead_has_what_is_committed()
        self.logs_agree_where_they_are_known_to_be_committed()

    # -- chance -------------------------------------------------------------------------------------------------------

    def step(self, weights: dict[str, float]) -> None:
        """One thing happens."""
        random = self.random
        pick = random.randrange(1 << 16)
        match random.choices(tuple(weights), tuple(weights.values()))[0]:
            case "apply":
                self.apply(pick)
            case "elect":
                self.elect(pick)
            case "lose power":
                self.lose_power(pick)
            case "write" if self.leaders():
                self.write(pick)
            case "sync":
                self.sync(pick)
            case "ask":
                self.ask(pick)
            case "serve" if self.fetches:
                self.serve(pick, is_lost=random.random() < 0.1)
            case "take" if self.answers:
                self.take(pick, is_doubled=random.random() < 0.1)
            case "hear" if self.kept:
                self.hear_kept(pick)
            case "decide" if self.changes:
                self.decide(pick, is_doubled=random.random() < 0.3)
            case "time":
                self.pass_time(random.choice((0.0, 0.1, 1.0, 6.0)), is_answered=random.random() < 0.6)


def weights_of(random: Random) -> dict[str, float]:
    """Mostly the ordinary course of things, and more or less of each kind of trouble."""
    usual = {
        "apply": 6.0,
        "write": 6.0,
        "sync": 10.0,
        "ask": 14.0,
        "serve": 18.0,
        "take": 18.0,
        "hear": 8.0,
        "time": 4.0,
    }
    trouble = {name: random.choice((0.0, 0.2, 0.6, 1.5)) for name in ("elect", "lose power")}
    slowness = {name: random.choice((0.1, 0.5, 1.0)) for name in usual}
    return (
        {name: weight * slowness[name] for name, weight in usual.items()} | trouble | {"decide": random.choice((1, 4))}
    )


@pytest.mark.parametrize("seed", range(300))
def test_whoever_is_elected_has_everything_that_was_committed(seed: int) -> None:
    random = Random(seed)
    world = World(random)
    weights = weights_of(random)
    for _ in range(STEPS):
        world.step(weights)
        world.check()
