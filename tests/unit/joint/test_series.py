"""Series without clock, socket or log: what a number, a run and a restart come to."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.joint.journal import JointJournal
from tests.unit.transactions.journal import MemoryMarkers

from penstock.config.settings import TransactionSettings
from penstock.errors import PenstockError, SeriesFenced
from penstock.features.transactions.joint.messages import AbortJoint, Begin, Begun, CommitJoint, Enter
from penstock.features.transactions.joint.records import StoredJoint, StoredPart
from penstock.features.transactions.joint.shard import (
    NOTHING,
    RUNS_REMEMBERED,
    JointShard,
    SeriesHeads,
    Turn,
    last_committed,
    next_part,
    turn_of,
)
from penstock.features.transactions.joint.states import JointState
from penstock.features.transactions.markers import EndMarker
from penstock.features.transactions.messages import Where
from penstock.machines.messages import Rejected
from penstock.partitions.stats import TransactionStats

SERIES = "s"


def head(state: JointState, number: int, run: str = "r1", **fields: Any) -> StoredJoint:
    part = StoredPart(series=SERIES, number=number, run=run, **fields)
    return StoredJoint(state=state, timeout_ms=1, opened_ms=0, part=part)


@pytest.mark.parametrize(
    ("stored", "number", "run", "expected"),
    [
        (None, 0, "r1", Turn.OPEN),
        (head(JointState.OPEN, 5), 5, "r1", Turn.JOIN),
        (head(JointState.OPEN, 5), 5, "r2", Turn.OPEN),
        (head(JointState.OPEN, 5), 6, "r1", Turn.OPEN),
        (head(JointState.OPEN, 5, committed_before=4), 4, "r1", Turn.DONE),
        (head(JointState.COMMITTING, 5), 5, "r2", Turn.DONE),
        (head(JointState.COMMITTED, 5), 5, "r1", Turn.DONE),
        (head(JointState.COMMITTED, 5), 6, "r1", Turn.OPEN),
        (head(JointState.ABORTING, 5), 5, "r1", Turn.OPEN),
        (head(JointState.ABORTED, 5, committed_before=4), 5, "r1", Turn.OPEN),
        (head(JointState.ABORTED, 5, committed_before=4), 4, "r1", Turn.DONE),
    ],
)
def test_turns(stored: StoredJoint | None, number: int, run: str, expected: Turn) -> None:
    assert turn_of(stored, number, run) is expected


def test_a_run_that_was_replaced_is_refused_whatever_it_asks_for() -> None:
    stored = head(JointState.COMMITTED, 5, "r2", older_runs=("r1",))
    for number in (4, 5, 6):
        with pytest.raises(SeriesFenced, match="r2"):
            turn_of(stored, number, "r1")


def test_what_is_committed_is_handed_on_from_head_to_head() -> None:
    stored = head(JointState.COMMITTED, 5)
    for at in range(RUNS_REMEMBERED * 2):
        part = next_part(stored, Begin(SERIES, 6, f"r{at + 2}", 1))
        assert part.committed_before == 5
        assert part.ordinal == at + 1
        stored = StoredJoint(state=JointState.ABORTED, timeout_ms=1, opened_ms=0, part=part)
    assert stored.part is not None
    assert len(stored.part.older_runs) == RUNS_REMEMBERED
    assert stored.part.older_runs[-1] == f"r{RUNS_REMEMBERED * 2}"


def test_the_head_is_the_last_one_in_whatever_order_they_are_found() -> None:
    heads = SeriesHeads()
    for at in (1, 3, 0, 2):
        heads.note(f"t{at}", head(JointState.ABORTED, 0, ordinal=at))
    assert heads.get(SERIES) == "t3"
    assert [heads.has(f"t{at}") for at in range(4)] == [False, False, False, True]
    heads.drop("t0")
    assert heads.get(SERIES) == "t3"
    heads.drop("t3")
    assert heads.get(SERIES) is None


@dataclass
class Story:
    """Drivers of one job, of which older ones wake up again; a twin that counts what readers see."""

    journal: JointJournal = field(default_factory=JointJournal)
    committed: dict[int, int] = field(default_factory=dict)  # how often, by number
    now_ms: int = 0
    names: int = 0
    producers: dict[int, int] = field(default_factory=dict)  # the number that a producer wrote for
    visible: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.shard = self.start()

    def start(self) -> JointShard:
        shard = JointShard(
            self.journal,
            TransactionSettings(),
            MemoryMarkers(self.on_marker),
            lambda _: True,
            TransactionStats(),
            lambda: self.now_ms,
            lambda: self.now_ms,
            lambda work: work(),
            epoch=1,
        )
        shard.open(shard.read_log())
        return shard

    def on_marker(self, _where: Where, marker: EndMarker) -> None:
        producer_id = marker.producer.producer_id
        if marker.is_commit and producer_id not in self.visible:
            self.visible.add(producer_id)
            number = self.producers[producer_id]
            self.committed[number] = self.committed.get(number, 0) + 1

    def ask(self, name: str, request: Any) -> Any:
        answers: list[Any] = []
        self.shard.ask(name, request, answers.append)
        return answers[0] if answers else None

    def begin(self, number: int, run: str) -> str | None:
        answers: list[Begun | Rejected] = []
        self.names += 1
        self.shard.begin(Begin(SERIES, number, run, 60_000), f"t{self.names}", answers.append)
        (answer,) = answers
        assert isinstance(answer, Begun)
        return answer.transaction

    def write(self, transaction: str, number: int) -> None:
        producer_id = len(self.producers) + 1
        self.producers[producer_id] = number
        places = frozenset({0})
        self.ask(
            transaction,
            Enter(writer=f"w{producer_id}", fresh_producer_id=producer_id, topic="o", topic_id="o", partitions=places),
        )


@pytest.mark.parametrize("seed", range(30))
def test_each_number_is_seen_once_whoever_is_killed_and_wakes_up_again(seed: int) -> None:
    """Drivers run batches in order from where they believe the job is; they lose answers, die, and come back."""
    dice = random.Random(seed)
    story = Story()
    drivers = {f"r{at}": 0 for at in range(4)}  # the number that each is at
    alive = 0
    for _ in range(200):
        if dice.random() < 0.1:
            story.shard = story.start()  # the node was killed
        if dice.random() < 0.1:
            story.now_ms += 61_000
            story.shard.tick()
        if dice.random() < 0.05 and alive < 3:
            alive += 1
            drivers[f"r{alive}"] = max(NOTHING, *story.committed, -1) + dice.choice((0, 1)) if story.committed else 0
        run = f"r{dice.choice((alive, alive, dice.randint(0, alive)))}"
        number = drivers[run]
        try:
            name = story.begin(number, run)
            if name is not None:
                story.write(name, number)
                if dice.random() < 0.2:
                    story.ask(name, AbortJoint())
                if dice.random() < 0.6:
                    story.ask(name, CommitJoint(None))
            else:
                drivers[run] = number + 1
        except PenstockError:
            continue
    current = story.shard.head_of(SERIES)
    assert current is not None
    last = last_committed(current.stored)
    # A batch of several writers is seen whole; here all that wrote into the transaction were committed with it.
    numbers = {story.producers[producer] for producer in story.visible}
    assert numbers == set(story.committed)
    assert max(numbers, default=NOTHING) == last
    transactions = [
        each.stored.part.number
        for each in story.shard.machines.values()
        if each.stored is not None and each.stored.part is not None and each.stored.state is JointState.COMMITTED
    ]
    assert len(transactions) == len(set(transactions)), "a number was committed by two transactions"
    assert transactions == sorted(transactions)
    assert len(transactions) > 3
