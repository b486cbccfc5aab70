"""Schedules of whole clusters in simulation: seeds with planners, what is judged, and bugs that must not be missed."""

from __future__ import annotations

import importlib
from random import Random

import pytest
from sim.cluster.schedule_mutants import SCHEDULES
from sim.cluster.schedule_shape import ScheduleShape
from sim.cluster.seeds import run_cluster_seed
from sim.planting import planted


def shape_of(seed: int) -> ScheduleShape | None:
    return ScheduleShape.drawn(Random(f"schedules {seed}"))


@pytest.mark.parametrize(
    "seed", [1, 15, pytest.param(12, marks=pytest.mark.soak), pytest.param(14, marks=pytest.mark.soak)]
)
def test_a_seed_with_planners_without_violation(seed: int):
    assert shape_of(seed) is not None
    result = run_cluster_seed(seed, is_told=True)
    assert not result.violations, "\n".join([str(result), *result.lines[-40:]])
    told = "\n".join(result.lines)
    assert " planned for " in told
    assert " cancels " in told


def test_an_add_whose_answer_was_lost_is_not_repeated_if_its_message_may_have_come():
    result = run_cluster_seed(169)
    assert not result.violations, str(result)


def test_seeds_have_all_kinds_of_schedules():
    shapes = [shape for shape in map(shape_of, range(200)) if shape is not None]
    assert {shape.has_rules for shape in shapes} == {True, False}
    assert {shape.shards for shape in shapes} == {1, 2}
    assert 0.25 < len(shapes) / 200 < 0.45


CAUGHT = {
    "schedules are fired without numbers": "a leader dies after a schedule is appended",
    "a new leader does not repeat unfinished firings": "a leader dies before a schedule is appended",
    "a new leader takes unfinished firings for done": "a leader dies before a schedule is appended",
    "a producer's epoch is not raised after a refusal": "a schedule is refused and a leader dies",
    "a period is loaded twice": "hours pass for schedules that are far",
    "schedules are early by a tick": "a disk is full when schedules are due",
    "schedules are not synced": "the power fails after schedules are added",
    "a snapshot leaves out the ids of what is near": "the log of schedules is cut while leaders change",
    "what was added last is not read": "the power fails after schedules are added",
    "a snapshot leaves out what is far": "hours pass for schedules that are far",
    "a snapshot forgets the numbers of producers": "the log of schedules is cut while leaders change",
    "a log is cut before what it has to tell is carried on": "the log of schedules is cut while leaders change",
    "what is being fired can be cancelled": "schedules are due for a partition that takes nothing",
}
EVERYDAY = ("schedules are fired without numbers", "schedules are early by a tick")  # `./dev sim --mutants` hunts all


@pytest.mark.parametrize(
    "name", [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.soak) for name in CAUGHT]
)
def test_a_planted_bug_spoils_its_story(name: str):
    mutant = next(each for each in SCHEDULES if each.name == name)
    with planted(mutant):
        stories = importlib.import_module("sim.cluster.schedule_stories")
        with pytest.raises(stories.BrokenPromise):
            stories.SCHEDULE_STORIES[CAUGHT[name]]()


def test_every_planted_bug_has_its_story():
    assert sorted(CAUGHT) == sorted(mutant.name for mutant in SCHEDULES)
