"""The Raft core in seeded simulation: swarms of faults with oracles."""

from __future__ import annotations

import pytest
from sim.swarm import FAULTS, Swarm, run_raft_seed


@pytest.mark.parametrize("seed", range(15))
def test_no_oracle_is_proved_wrong(seed: int) -> None:
    assert run_raft_seed(seed).violation is None


def test_a_history_is_its_seed() -> None:
    one, same = run_raft_seed(7, is_kept=True), run_raft_seed(7, is_kept=True)
    assert one == same
    assert run_raft_seed(7).trace == one.trace, "to look is not to touch"
    assert run_raft_seed(8).trace != one.trace


def test_the_swarm_does_what_it_says() -> None:
    """Entries are committed, leaders change and reads are confirmed: an idle simulation would prove nothing."""
    swarms = [Swarm(seed) for seed in range(8)]
    for swarm in swarms:
        swarm.run(20_000)
    oracles = [swarm.quorum.oracles for swarm in swarms]
    assert sum(one.committed_max for one in oracles) > 800
    assert sum(len(one.leaders) for one in oracles) > 30
    assert sum(one.reads_confirmed for one in oracles) > 50
    assert {kind for swarm in swarms for kind in swarm.quorum.trace.faults} == set(FAULTS)
