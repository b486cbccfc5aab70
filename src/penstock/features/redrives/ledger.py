"""The ledger of one dead-letter topic as a state machine: its redrives, and which dead letters are done with.

One redrive at a time. It goes in steps: a plan is written, then carried out by the leader, then settled, which marks
the messages that were moved and forgets the plan in one write. Nothing here knows a clock, a log or a topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec

from penstock.errors import InvalidRequest, RedriveNotFound, RedriveRunning
from penstock.features.queues.core.intervals import IntervalSet
from penstock.features.redrives.records import (
    BUCKET_OFFSETS,
    JobKey,
    JobState,
    MarksKey,
    MovePlan,
    RedriveChange,
    RedriveJob,
    RedrivenMarks,
    Span,
)
from penstock.machines.messages import Request
from penstock.machines.shard import PromptMachine

_REMEMBERED: Final = 200  # redrives that are over


@dataclass(frozen=True, slots=True)
class OpenJob(Request[RedriveJob]):
    job: RedriveJob


@dataclass(frozen=True, slots=True)
class MakePlan(Request[RedriveJob]):
    """Note what is about to be moved."""

    job: str
    plan: MovePlan
    scanned: int


@dataclass(frozen=True, slots=True)
class SettlePlan(Request[RedriveJob]):
    """The plan was carried out: these were moved, so many could not be."""

    job: str
    moved: Sequence[int]
    failed: int
    error: str | None


@dataclass(frozen=True, slots=True)
class LookedAt(Request[RedriveJob]):
    """Nothing to move was found before an offset of a partition."""

    job: str
    partition: int
    next_offset: int
    scanned: int


@dataclass(frozen=True, slots=True)
class EndJob(Request[RedriveJob]):
    job: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CancelJob(Request[RedriveJob]):
    job: str


class RedriveLedger(PromptMachine[RedriveChange]):
    """The redrives of one dead-letter topic."""

    def __init__(self, dead_letters: str) -> None:
        self.id = dead_letters
        self.jobs: dict[str, RedriveJob] = {}
        self._topic_id = ""  # of the marks
        self._marks: dict[tuple[int, int], list[Span]] = {}  # by partition and bucket

    @property
    def is_forgettable(self) -> bool:
        return not self.jobs and not self._marks

    @property
    def open_job(self) -> RedriveJob | None:
        return next((job for job in self.jobs.values() if not job.state.is_over), None)

    def marks(self, topic_id: str, partition: int, first: int, last: int) -> list[Span]:
        """What is done with between two offsets, of the topic that has that id."""
        if topic_id != self._topic_id:
            return []
        found: list[Span] = []
        buckets = sorted(at for of, at in self._marks if of == partition)
        for bucket in buckets:
            if bucket < first // BUCKET_OFFSETS or bucket > last // BUCKET_OFFSETS:
                continue
            for begin, end in self._marks[partition, bucket]:
                if end >= first and begin <= last:
                    found.append((max(begin, first), min(end, last)))
        return found

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _open(self, request: OpenJob, now_ms: int) -> tuple[list[RedriveChange], RedriveJob]:
        running = self.open_job
        if running is not None:
            raise RedriveRunning(
                f"Redrive {running.id} of {self.id!r} is under way; wait for its end or cancel it, then try again."
            )
        job = msgspec.structs.replace(request.job, opened_ms=now_ms)
        changes = [RedriveChange(JobKey(self.id, job.id), job)]
        if job.topic_id != self._topic_id:  # another topic of the same name: what was marked is gone with the old one
            changes += [RedriveChange(MarksKey(self.id, *at), None) for at in sorted(self._marks)]
        old = sorted(self.jobs.values(), key=lambda each: each.opened_ms)[: max(0, len(self.jobs) + 1 - _REMEMBERED)]
        changes += [RedriveChange(JobKey(self.id, each.id), None) for each in old]
        return changes, job

    def _find(self, job_id: str) -> RedriveJob:
        job = self.jobs.get(job_id)
        if job is None:
            raise RedriveNotFound(f"There is no redrive {job_id!r} of {self.id!r}, or it ended too long ago.")
        return job

    def _written(self, job: RedriveJob, **values: Any) -> tuple[RedriveChange, RedriveJob]:
        changed = msgspec.structs.replace(job, **values)
        return RedriveChange(JobKey(self.id, job.id), changed), changed

    def _plan(self, request: MakePlan, _now_ms: int) -> tuple[list[RedriveChange], RedriveJob]:
        job = self._find(request.job)
        if job.state is not JobState.RUNNING or job.plan is not None:
            raise InvalidRequest(f"Redrive {job.id} takes no plan now.")
        change, job = self._written(job, plan=request.plan, scanned=job.scanned + request.scanned)
        return [change], job

    def _settle(self, request: SettlePlan, _now_ms: int) -> tuple[list[RedriveChange], RedriveJob]:
        job = self._find(request.job)
        plan = job.plan
        if plan is None:
            return [], job  # it was settled, and the answer was lost
        change, job = self._written(
            job,
            plan=None,
            cursors={**job.cursors, plan.partition: plan.next_offset},
            moved=job.moved + len(request.moved),
            failed=job.failed + request.failed,
            error=request.error or job.error,
        )
        return [change, *self._marked(job.topic_id, plan.partition, request.moved)], job

    def _marked(self, topic_id: str, partition: int, offsets: Sequence[int]) -> list[RedriveChange]:
        buckets: dict[int, IntervalSet] = {}
        for offset in offsets:
            bucket = offset // BUCKET_OFFSETS
            if bucket not in buckets:
                buckets[bucket] = IntervalSet()
                known = self._marks.get((partition, bucket), []) if topic_id == self._topic_id else []
                for first, last in known:
                    buckets[bucket].add(first, last)
            buckets[bucket].add(offset, offset)
        return [
            RedriveChange(
                MarksKey(self.id, partition, bucket),
                RedrivenMarks(topic_id, [(at.first, at.last) for at in spans.intervals()]),
            )
            for bucket, spans in sorted(buckets.items())
        ]

    def _looked(self, request: LookedAt, _now_ms: int) -> tuple[list[RedriveChange], RedriveJob]:
        job = self._find(request.job)
        if job.state.is_over or job.plan is not None:
            return [], job
        cursors = {**job.cursors, request.partition: request.next_offset}
        change, job = self._written(job, cursors=cursors, scanned=job.scanned + request.scanned)
        return [change], job

    def _end(self, request: EndJob, now_ms: int) -> tuple[list[RedriveChange], RedriveJob]:
        job = self._find(request.job)
        if job.state.is_over:
            return [], job
        if job.plan is not None:
            raise InvalidRequest(f"Redrive {job.id} has a plan that is not carried out.")
        state = JobState.CANCELLED if job.state is JobState.CANCELLING else JobState.DONE
        change, job = self._written(job, state=state, ended_ms=now_ms, error=request.error or job.error)
        return [change], job

    def _cancel(self, request: CancelJob, _now_ms: int) -> tuple[list[RedriveChange], RedriveJob]:
        job = self._find(request.job)
        if job.state is not JobState.RUNNING:
            return [], job
        change, job = self._written(job, state=JobState.CANCELLING)
        return [change], job

    # -- what survives ------------------------------------------------------------------------------------------------

    def apply(self, change: RedriveChange, at_ms: int, now_ms: int = 0) -> None:  # noqa: ARG002
        """Take over what was written to the log."""
        key, value = change.key, change.value
        if isinstance(key, JobKey):
            if isinstance(value, RedriveJob):
                self.jobs[key.job] = value
            else:
                self.jobs.pop(key.job, None)
        elif isinstance(value, RedrivenMarks):
            if value.topic_id != self._topic_id:
                self._marks.clear()
                self._topic_id = value.topic_id
            self._marks[key.partition, key.bucket] = value.spans
        else:
            self._marks.pop((key.partition, key.bucket), None)

    rules: ClassVar = {
        OpenJob: _open,
        MakePlan: _plan,
        SettlePlan: _settle,
        LookedAt: _looked,
        EndJob: _end,
        CancelJob: _cancel,
    }
