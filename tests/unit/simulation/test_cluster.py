"""Whole clusters in simulation: a few seeds, and that a seed is one history. Many seeds: ``./dev sim``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim.cluster.mutants import CLUSTER
from sim.cluster.seeds import run_cluster_seed
from sim.cluster.stories import STORIES
from sim.planting import Mutant, planted


@pytest.mark.parametrize("seed", [2, 4, 1012])
def test_a_seed_without_violation(seed: int):
    result = run_cluster_seed(seed, is_told=True)
    assert not result.violations, "\n".join([str(result), *result.lines[-40:]])
    assert result.acked > 10
    assert result.reads > 10
    assert result.faults


@pytest.mark.parametrize("seed", [13, 52, 102, 111, 123, 168])
def test_bits_that_flip_and_disks_that_are_lost_one_at_a_time_cost_nothing(seed: int):
    result = run_cluster_seed(seed, kinds=("bit flip", "wipe", "kill"), is_told=True)
    assert not result.violations, "\n".join([str(result), *result.lines[-40:]])


@pytest.mark.parametrize("seed", [8, 10])
def test_full_and_failing_disks_come_right_again(seed: int):
    result = run_cluster_seed(seed, kinds=("disk full", "failing syncs", "restart"), is_told=True)
    assert not result.violations, "\n".join([str(result), *result.lines[-40:]])


def test_a_seed_is_the_same_history_in_every_process():
    program = "from sim.cluster.seeds import run_cluster_seed as run; print(run(2).trace)"
    traces = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("0", "4711")
    ]
    assert traces == [run_cluster_seed(2).trace] * 2
    assert run_cluster_seed(3).trace != traces[0]


@pytest.mark.parametrize("mutant", CLUSTER, ids=lambda mutant: mutant.name)
def test_the_code_that_a_mutant_changes_is_there(mutant: Mutant):
    source = importlib.util.find_spec(mutant.module).origin
    assert Path(source).read_text().count(mutant.right) == 1


@pytest.mark.parametrize("story", STORIES)
def test_a_story_ends_well(story: str):
    STORIES[story]()


CAUGHT = [
    (
        "the high watermark minds the committed in-sync set only",
        "a leader never hears that a follower was taken in",
    ),
    ("no history is found to part", "a follower has what the next leader never saw"),
    ("any living replica may lead", "the last replica that has everything is gone for a while"),
    ("changes of the in-sync set are not compared", "a leader's word of who is in sync comes late"),
    ("a node joins the in-sync set in any life", "a follower loses its disk while it is being taken in"),
    ("a wiped node counts as in sync", "the first to come back has lost its disk"),
    ("a move ends before the new replicas have caught up", "replicas move to where they cannot be copied"),
    ("a follower cuts its log at the watermark it knows", "a disk is wiped while all are down"),
    ("an answer is taken for one to what is asked now", "a leader's word of where histories part comes late"),
    (
        "a change of the in-sync set that is not answered counts as refused",
        "a leader gives up waiting to hear whether a follower was taken in",
    ),
    ("a healed voter votes at once, under its old name", "a voter forgets what it acknowledged"),
    (
        "a healed node vouches for replicas that it has not looked at",
        "a node loses its metadata and the end of its replica",
    ),
    ("a healed node has another disk", "a bit flips in a node's Raft log"),
    ("the scrub does not look at sealed segments", "a bit of an old segment flips, and nobody reads it"),
    ("readers step over what is damaged", "a bit of an old segment flips, and a consumer reads it"),
    ("what was written in this life is never checked", "a bit of an old segment flips, and nobody reads it"),
    (
        "a segment that was cut where a batch ends counts as whole",
        "an old segment is cut where a batch ends",
    ),
    ("a damaged replica is cut while it may still be elected", "a follower is damaged where too few are left"),
]
EVERYDAY = 3  # `./dev sim --mutants` hunts all of them


@pytest.mark.parametrize(
    ("name", "story"),
    [*CAUGHT[:EVERYDAY], *(pytest.param(*each, marks=pytest.mark.soak) for each in CAUGHT[EVERYDAY:])],
)
def test_a_planted_bug_spoils_its_story(name: str, story: str):
    mutant = next(each for each in CLUSTER if each.name == name)
    with planted(mutant):
        stories = importlib.import_module("sim.cluster.stories")
        with pytest.raises(stories.BrokenPromise):
            stories.STORIES[story]()


def test_what_a_dead_process_left_behind_is_not_heard_of(capfd: pytest.CaptureFixture[str]):
    run_cluster_seed(4)
    assert capfd.readouterr().err == ""
