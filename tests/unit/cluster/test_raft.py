"""The Raft core in seeded simulation: swarms of faults with oracles."""

from __future__ import annotations

import pytest

from penstock.testing.simulation.swarm import run_swarm


@pytest.mark.parametrize("seed", range(40))
def test_no_oracle_is_proved_wrong(seed: int) -> None:
    run_swarm(seed)


def test_a_history_is_its_seed() -> None:
    one, same = run_swarm(7), run_swarm(7)
    assert one.history == same.history
    assert one.leaders == same.leaders
    assert run_swarm(8).history != one.history


def test_the_swarm_does_what_it_says() -> None:
    """Entries are committed, leaders change and reads are confirmed: an idle simulation would prove nothing."""
    runs = [run_swarm(seed) for seed in range(10)]
    assert sum(run.committed_max for run in runs) > 1_000
    assert sum(len(run.leaders) for run in runs) > 30
    assert sum(run.reads_confirmed for run in runs) > 50
