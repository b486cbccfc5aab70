"""``./dev sim``: every seed it is asked for is run, and what goes wrong is told with the way to see it again."""

from __future__ import annotations

import json

import pytest
from bench import sim
from bench.histories import KINDS, Summary, Workers, is_about, run_seed, stories_of
from sim.result import Result

BAD = Result("raft", 17, 1000, 5, 2, {"crash": 3}, "abc", "one leader a term: 1 and 2", ("0.001 something",))


def test_every_seed_is_run_once_and_by_other_processes_as_here() -> None:
    with Workers(2) as workers:
        results = list(workers.seeds(iter([("raft", seed) for seed in range(5)]), share=2))
    assert sorted(result.seed for result in results) == list(range(5))
    by_seed = {result.seed: result for result in results}
    assert by_seed[3] == run_seed("raft", 3)


def test_a_summary_adds_up() -> None:
    summary = Summary()
    for result in (run_seed("raft", 1), run_seed("raft", 2), BAD):
        summary.add(result)
    told = summary.to_json()
    assert told["seeds"] == {"raft": 3}
    assert told["violations"] == [
        {
            "kind": "raft",
            "seed": 17,
            "violation": "one leader a term: 1 and 2",
            "replay": "./dev sim --kind raft --seed 17",
        }
    ]


def test_every_kind_has_stories() -> None:
    names = [name for kind in KINDS for name in stories_of(kind)]
    assert {"figure 8", "the lowest lane comes within its boost time", "clocks of leaders are behind"} <= set(names)
    assert len(set(names)) == len(names)


def test_a_subject_picks_those_seeds_whose_cluster_has_it() -> None:
    lanes = [seed for seed in range(300) if is_about("lanes", seed)]
    queues = [seed for seed in range(300) if is_about("queues", seed)]
    assert set(lanes) < set(queues)
    assert 60 < len([seed for seed in range(300) if is_about("schedules", seed)]) < 150


def test_only_histories_with_the_subject_are_run_and_what_they_did_is_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sim.main(["--with", "schedules", "--seeds", "1", "--jobs", "1", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seeds"] == {"cluster": 1}
    assert told["counts"]["histories with schedules"] == 1
    assert told["counts"]["schedules fired"] > 0


def test_a_violation_is_told_and_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sim, "run_seed", lambda kind, seed, is_kept: BAD)
    assert sim.main(["--kind", "raft", "--seed", "17"]) == 1
    printed = capsys.readouterr().out
    assert "0.001 something" in printed
    assert "one leader a term: 1 and 2" in printed


def test_a_seed_is_replayed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["--kind", "raft", "--seed", "4", "-o", "json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["trace"] == run_seed("raft", 4).trace
    assert told["history"]


def test_stories_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["--stories", "--kind", "raft"]) == 0
    assert "ok   figure 8" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--seed", "1", "--mutants"], ["--kind", "nothing"]])
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        sim.parse(arguments)


def test_all_kinds_are_run_by_default() -> None:
    assert sim.parse([]).kind == "all"
    assert set(KINDS) == {"raft", "quorum", "cluster"}
