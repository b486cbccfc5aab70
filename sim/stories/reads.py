"""Stories of reads: whoever answers one must know that nobody else leads."""

from __future__ import annotations

from penstock.consensus.raft.messages import AppendEntries, AppendResponse
from sim.stage import Stage


def a_leader_of_old_confirms_no_read() -> None:
    """Its clock stands still, so it does not know how long it has been alone, and others have written since."""
    stage = Stage(3)
    stage.elect(1, 2, 3)
    stage[1].set_clock_rate(0.0)
    stage.elect(2, 3)
    stage[2].propose(b"a")
    stage.deliver(2, 3)
    assert stage[1].core.is_leader
    stage[1].read(1)
    assert stage.oracles.reads_confirmed == 0
    stage.deliver(1, 2, 3)
    assert stage.oracles.reads_failed == 1


def an_answer_to_an_earlier_round_confirms_no_read() -> None:
    """It was given before the read was asked for, by one who has followed another leader since."""
    stage = Stage(3)
    stage.elect(1, 2, 3)
    stage[1].set_clock_rate(0.0)
    stage[1].read(1)
    stage.deliver(1, 3)
    assert stage.oracles.reads_confirmed == 1
    stage[1].read(2)
    for append in stage.keep(type(stage.post[0]), 1, 2):
        stage.hand(append)
    late = stage.keep(AppendResponse, 2, 1)
    assert late
    stage.elect(2, 3)
    stage[2].propose(b"a")
    stage.deliver(2, 3)
    stage.drop()
    stage[1].read(3)
    for answer in late:
        stage.hand(answer)
    assert stage.oracles.reads_confirmed == 2, "only the read that was asked for before that round"


def a_round_of_an_earlier_term_confirms_no_read() -> None:
    """The same node led before, for many rounds; a message of that time comes late and is answered in the new term."""
    stage = Stage(3)
    stage.elect(1, 2, 3)
    for _ in range(10):
        stage.beat(1, 3)
    late = stage.keep(AppendEntries, 1, 2)
    assert late
    stage.elect(2, 1, 3)
    stage.elect(1, 2, 3)
    for append in late:
        stage.hand(append)
    for answer in stage.keep(AppendResponse, 2, 1):
        stage.hand(answer)
    stage[1].set_clock_rate(0.0)
    stage.elect(2, 3)
    stage[2].propose(b"a")
    stage.deliver(2, 3)
    assert stage[1].core.is_leader
    stage[1].read(1)
    assert stage.oracles.reads_confirmed == 0


def a_new_leader_reads_what_its_predecessor_committed() -> None:
    """It has the entry but was not told that it is committed."""
    stage = Stage(3)
    stage.elect(1, 2, 3)
    stage[1].propose(b"a")
    stage.deliver(1, 2)
    assert stage[1].applied == [b"a"]
    stage[1].crash()
    stage.elect(2, 3, is_heard=False)
    stage[2].read(1)
    for _ in range(2):
        stage.beat(2, 3)
    assert stage.oracles.reads_confirmed == 1
