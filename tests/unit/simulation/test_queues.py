"""Queues of whole clusters in simulation: seeds with workers, what is judged, and bugs that must not be missed."""

from __future__ import annotations

import importlib

import pytest
from sim.cluster.lane_mutants import LANES
from sim.cluster.queue_mutants import QUEUES
from sim.cluster.queue_shape import KEYED, PLAIN, QueueShape
from sim.cluster.seeds import run_cluster_seed
from sim.planting import planted


def shape_of(seed: int) -> QueueShape | None:
    return QueueShape.of_seed(seed)


@pytest.mark.parametrize("seed", [1063, 1071, 2056, 2067, 3095, 5022, 6041])
def test_a_seed_with_workers_without_violation(seed: int):
    assert shape_of(seed) is not None
    result = run_cluster_seed(seed, is_told=True)
    assert not result.violations, "\n".join([str(result), *result.lines[-40:]])
    told = "\n".join(result.lines)
    assert " receives " in told
    assert " ack " in told


def test_a_follower_that_knows_sooner_than_its_leader_is_heard_of_all_the_same():
    result = run_cluster_seed(1067)
    assert not result.violations, str(result)


def test_a_seed_with_workers_is_the_same_history_every_time():
    assert run_cluster_seed(2056).trace == run_cluster_seed(2056).trace


def test_seeds_have_all_kinds_of_groups():
    shapes = [shape for shape in map(shape_of, range(200)) if shape is not None]
    assert {shape.groups for shape in shapes} == {(PLAIN,), (KEYED,), (PLAIN, KEYED)}
    assert {shape.has_transactions for shape in shapes} == {True, False}
    assert 0.3 < len(shapes) / 200 < 0.5
    assert {(shape.has_lanes, bool(shape.fair_by)) for shape in shapes} == {
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    }


CAUGHT = {
    "a lease is told before it is committed": "a leader that is cut off leases",
    "acks are forgotten by a new leader": "a new leader knows what became of every message",
    "acks are not synced": "the power fails after acks",
    "any receipt of a message will do": "a worker acks too late",
    "leases are measured by a clock that jumps": "the clock of a leader jumps",
    "a snapshot leaves out what waits": "snapshots are written and companions cut",
    "a companion is cut where only the busiest group can spare it": "snapshots are written and companions cut",
    "a message that failed lets its key go": "a key fails while leaders change",
    "a dead letter is confirmed before it is written": "a leader dies before a dead letter is written",
    "dead letters are written without numbers": "a leader dies after a dead letter is written",
    "an abort acks": "acks in transactions while leaders change",
}


CAUGHT_IN_LANES = {
    "no lane is ever boosted": "the lowest lane comes within its boost time",
    "what is served is charged to nobody": "each lane gets its share",
    "lanes hand out what a former leader has leased": "a new leader knows what became of every message of every lane",
    "what fails leaves its lane for good": "a new leader knows what became of every message of every lane",
    "all tenants are one": "one tenant is noisy",
    "a dead letter loses its priority": "dead letters have priorities",
}
# `./dev sim --mutants` hunts all.
EVERYDAY = (
    "acks are forgotten by a new leader",
    "any receipt of a message will do",
    "no lane is ever boosted",
    "lanes hand out what a former leader has leased",
)


@pytest.mark.parametrize(
    "name",
    [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.soak) for name in CAUGHT | CAUGHT_IN_LANES],
)
def test_a_planted_bug_spoils_its_story(name: str):
    mutant = next(each for each in QUEUES + LANES if each.name == name)
    with planted(mutant):
        stories = importlib.import_module("sim.cluster.stories")
        stage = importlib.import_module("sim.cluster.stage")
        with pytest.raises(stage.BrokenPromise):
            stories.STORIES[(CAUGHT | CAUGHT_IN_LANES)[name]]()
