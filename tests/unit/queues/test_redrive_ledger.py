"""The ledger of redrives: what it decides, what it remembers, and what reading its log gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptRecords, InvalidRequest, RedriveNotFound, RedriveRunning
from penstock.features.redrives import records as redrive_records
from penstock.features.redrives.ledger import CancelJob, EndJob, LookedAt, MakePlan, OpenJob, RedriveLedger, SettlePlan
from penstock.features.redrives.records import (
    BUCKET_OFFSETS,
    DeadLetterFilter,
    JobState,
    MovePlan,
    RedriveChange,
    RedriveJob,
    RedriveTarget,
)
from penstock.records import Record


def job(name: str = "j1", topic_id: str = "id-1") -> RedriveJob:
    return RedriveJob(
        id=name,
        topic="t",
        dead_letters="t.dlq",
        topic_id=topic_id,
        by="me",
        filter=DeadLetterFilter(reason="x", key=b"\xff", places=[(0, 1)]),
        target=None,
        rate=2.5,
        limit=None,
        ends={0: 100_000},
        opened_ms=0,
    )


def plan(*offsets: int) -> MovePlan:
    return MovePlan(0, 77, offsets[-1] + 1, [RedriveTarget("t", "id-t", 0, list(offsets))])


class Desk:
    """A ledger, and the log that it writes: compacted, as the real one is."""

    def __init__(self) -> None:
        self.ledger = RedriveLedger("t.dlq")
        self.log: dict[bytes, Record] = {}
        self.now_ms = 0

    def ask(self, request: Any) -> Any:
        self.now_ms += 1
        answers: list[Any] = []
        outcome = self.ledger.handle(request, self.now_ms, answers.append)
        for change in outcome.changes:
            self.ledger.apply(change, self.now_ms)
            record = redrive_records.to_record(change, 0, self.now_ms)
            assert record.key is not None
            self.log.pop(record.key, None)
            self.log[record.key] = record
        ((_, answer),) = outcome.replies
        return answer

    def reread(self) -> RedriveLedger:
        found = RedriveLedger("t.dlq")
        for record in self.log.values():
            found.apply(redrive_records.from_record(record), 0)
        return found


def test_a_redrive_from_its_beginning_to_its_end() -> None:
    desk = Desk()
    assert desk.ask(OpenJob(job())).opened_ms == 1
    with pytest.raises(RedriveRunning):
        desk.ask(OpenJob(job("j2")))
    desk.ask(LookedAt("j1", 0, 10, 10))
    desk.ask(MakePlan("j1", plan(10, 11, 15), 6))
    with pytest.raises(InvalidRequest):
        desk.ask(EndJob("j1"))
    with pytest.raises(InvalidRequest):
        desk.ask(MakePlan("j1", plan(20), 5))
    desk.ask(SettlePlan("j1", [10, 11], 1, "no room"))
    assert desk.ask(SettlePlan("j1", [10, 11], 1, "no room")).moved == 2, "a settlement that is repeated is one"
    ended = desk.ask(EndJob("j1"))
    assert (ended.state, ended.moved, ended.failed, ended.error, ended.scanned) == (JobState.DONE, 2, 1, "no room", 16)
    assert ended.cursors == {0: 16}
    assert desk.ledger.marks("id-1", 0, 0, 100) == [(10, 11)]
    assert desk.ledger.marks("id-1", 0, 11, 100) == [(11, 11)]
    assert desk.ledger.marks("id-1", 1, 0, 100) == []
    assert desk.ledger.marks("another", 0, 0, 100) == [], "of another topic with the same name"
    with pytest.raises(RedriveNotFound):
        desk.ask(EndJob("nothing"))


def test_a_cancelled_redrive_brings_its_plan_to_an_end_and_takes_no_other() -> None:
    desk = Desk()
    desk.ask(OpenJob(job()))
    desk.ask(MakePlan("j1", plan(1), 2))
    assert desk.ask(CancelJob("j1")).state is JobState.CANCELLING
    desk.ask(SettlePlan("j1", [1], 0, None))
    with pytest.raises(InvalidRequest):
        desk.ask(MakePlan("j1", plan(5), 3))
    assert desk.ask(EndJob("j1")).state is JobState.CANCELLED
    assert desk.ask(CancelJob("j1")).state is JobState.CANCELLED


def test_old_redrives_are_forgotten_and_marks_of_a_topic_that_is_gone_with_the_next_one() -> None:
    desk = Desk()
    for number in range(250):
        desk.ask(OpenJob(job(f"j{number}")))
        desk.ask(MakePlan(f"j{number}", plan(number), 1))
        desk.ask(SettlePlan(f"j{number}", [number], 0, None))
        desk.ask(EndJob(f"j{number}"))
    assert len(desk.ledger.jobs) == 200
    assert "j49" not in desk.ledger.jobs
    assert desk.ledger.marks("id-1", 0, 0, 1_000) == [(0, 249)]
    desk.ask(OpenJob(job("new", "id-2")))
    assert desk.ledger.marks("id-1", 0, 0, 1_000) == []
    assert desk.ledger.marks("id-2", 0, 0, 1_000) == []


offsets = st.lists(st.integers(0, 4 * BUCKET_OFFSETS), min_size=1, max_size=20, unique=True).map(sorted)


@given(st.lists(st.tuples(offsets, st.integers(0, 2)), max_size=20))
def test_marks_are_those_that_were_moved_and_the_log_gives_them_back(steps: list[tuple[list[int], int]]) -> None:
    desk = Desk()
    moved: set[tuple[int, int]] = set()
    desk.ask(OpenJob(job()))
    for chosen, partition in steps:
        desk.ask(MakePlan("j1", MovePlan(partition, 1, chosen[-1] + 1, [RedriveTarget("t", "i", 0, chosen)]), 1))
        desk.ask(SettlePlan("j1", chosen, 0, None))
        moved |= {(partition, offset) for offset in chosen}
    for ledger in (desk.ledger, desk.reread()):
        found = {
            (partition, offset)
            for partition in range(3)
            for first, last in ledger.marks("id-1", partition, 0, 5 * BUCKET_OFFSETS)
            for offset in range(first, last + 1)
        }
        assert found == moved
        assert ledger.jobs == desk.ledger.jobs


def test_what_is_not_about_a_redrive_is_told_from_it() -> None:
    record = redrive_records.to_record(RedriveChange(redrive_records.JobKey("t.dlq", "j1"), job()), 0, 5)
    assert redrive_records.from_record(record).value == job()
    for bad in (record._replace(key=b"x"), record._replace(value=b"\x01"), record._replace(key=None)):
        with pytest.raises(CorruptRecords):
            redrive_records.from_record(bad)
