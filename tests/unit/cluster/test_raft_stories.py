"""The Raft core in scripted histories, and the bugs that these and the swarm must find."""

from __future__ import annotations

import pytest
from sim.mutants import RAFT
from sim.planting import Mutant, hunt, planted
from sim.stories import STORIES, Story

STORIES_NAME = "sim.stories:STORIES"
SWARM_NAME = "sim.swarm:run_raft_seed"


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_a_story_ends_well(story: Story) -> None:
    story()


@pytest.mark.parametrize("mutant", RAFT, ids=[mutant.name for mutant in RAFT])
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    assert hunt(mutant, range(40), STORIES_NAME, SWARM_NAME).is_caught


def test_names_of_mutants_are_their_own() -> None:
    assert len({mutant.name for mutant in RAFT}) == len(RAFT) >= 30


def test_nothing_is_caught_where_nothing_is_wrong() -> None:
    """A change that changes nothing: what the hunt finds, it finds because of the bug."""
    text = "len(self.voters) // 2 + 1"
    harmless = Mutant("none", "penstock.consensus.raft.messages", text, f"({text})")
    assert not hunt(harmless, range(2), STORIES_NAME, SWARM_NAME).is_caught


def test_a_bug_is_gone_after_the_hunt() -> None:
    import penstock.consensus.raft.messages as before

    with planted(RAFT[0]):
        import penstock.consensus.raft.messages as inside

        assert inside is not before
    import penstock.consensus.raft.messages as after

    assert after is before


def test_a_mutant_that_is_out_of_date_is_no_catch() -> None:
    """Its text is not in the source any more: the hunt must not take that for a bug found."""
    with pytest.raises(LookupError, match="not once"):
        hunt(Mutant("gone", "penstock.consensus.raft.log", "no such text", ""), range(1), STORIES_NAME, SWARM_NAME)
