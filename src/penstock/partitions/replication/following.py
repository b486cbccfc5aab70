"""How a follower deals with what its leader answers. Pure: it looks at positions and epochs, and says what to do.

A follower asks with the end of its log and the epoch of its last batch. The leader compares that with its own history
(`check_history`), and answers with batches, or with where the two part. Then the follower cuts its log back, to where
both agree for certain, and asks again; several rounds may be needed (KIP-101, KIP-279). It never cuts because of a
watermark, and not because of an answer to anything but the question that is open: not of another session, another
number, another leader epoch, or about a log that has moved since.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from penstock.storage.epochs import EpochStart, LeaderEpochs

NO_EPOCH: Final = -1


class LogPosition(NamedTuple):
    """Where a follower's log ends, and the epoch of its last batch (-1: it has none)."""

    offset: int
    last_epoch: int


class FetchProblem(StrEnum):
    """Why a leader has nothing to give."""

    NONE = ""
    NOT_LEADER = "not_leader"
    FENCED = "fenced"  # the follower knows an older leader epoch
    UNKNOWN_EPOCH = "unknown_epoch"  # the follower knows a newer one
    UNKNOWN = "unknown"  # there is no such partition there, or it is being opened
    TRIMMED = "trimmed"  # the log begins behind the follower's end
    FAILED = "failed"  # the leader cannot read its log


class HistoryCheck(NamedTuple):
    """What a leader makes of a follower's position: good, trimmed, or parted at ``parting``."""

    problem: FetchProblem
    parting: EpochStart | None


GOOD: Final = HistoryCheck(FetchProblem.NONE, None)
TRIMMED: Final = HistoryCheck(FetchProblem.TRIMMED, None)
FAILED: Final = HistoryCheck(FetchProblem.FAILED, None)


def check_history(position: LogPosition, epochs: LeaderEpochs, start_offset: int, end_offset: int) -> HistoryCheck:
    """Whether a follower's history is the beginning of this one."""
    offset, last_epoch = position
    if offset < start_offset:
        return TRIMMED
    if last_epoch == epochs.latest and offset <= end_offset:
        return GOOD
    if last_epoch == NO_EPOCH:
        return GOOD if offset <= end_offset else HistoryCheck(FetchProblem.NONE, EpochStart(NO_EPOCH, end_offset))
    epoch, end = epochs.end_offset(last_epoch, end_offset)
    if epoch == NO_EPOCH:
        # Nothing that old is here. What the follower has from our start on is not ours.
        return GOOD if offset == start_offset else HistoryCheck(FetchProblem.NONE, EpochStart(NO_EPOCH, start_offset))
    if epoch == last_epoch and offset <= end:
        return GOOD
    return HistoryCheck(FetchProblem.NONE, EpochStart(epoch, end))


class LeaderAnswer(NamedTuple):
    """What a leader says about one partition."""

    leader_epoch: int
    problem: FetchProblem
    high_watermark: int
    log_start: int
    log_end: int
    size: int = 0  # bytes of batches
    parting: EpochStart | None = None


class Append(NamedTuple):
    """Write the batches, then learn how far they are committed."""

    high_watermark: int
    log_start: int


class Truncate(NamedTuple):
    """Cut everything from ``offset`` on, and ask again."""

    offset: int


class BeginAt(NamedTuple):
    """Everything here is older than what the leader still has: throw it away and go on from ``offset``."""

    offset: int


class Wait(NamedTuple):
    """Ask again later."""

    reason: str


class Ignore(NamedTuple):
    """An answer to a question that is no longer open."""


FollowStep = Append | Truncate | BeginAt | Wait | Ignore

IGNORE: Final = Ignore()


class LocalLog(NamedTuple):
    """The follower's own log, as it is when the answer arrives."""

    start: int
    end: int
    high_watermark: int
    epochs: LeaderEpochs


class Following:
    """One partition of a follower: its leader, in which epoch, and what it has asked."""

    __slots__ = ("asked", "leader_end", "leader_epoch", "leader_id")

    def __init__(self, leader_id: int, leader_epoch: int) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.asked: LogPosition | None = None  # what the leader believes is our position
        self.leader_end = 0

    def __repr__(self) -> str:
        return f"<Following node {self.leader_id} in epoch {self.leader_epoch}, asked {self.asked}>"

    def ask(self, end: int, epochs: LeaderEpochs) -> LogPosition:
        """What to ask for, from now until the answer."""
        self.asked = LogPosition(end, epochs.latest)
        return self.asked

    def on_answer(self, answer: LeaderAnswer, local: LocalLog) -> FollowStep:
        """What to do about an answer to the fetch that is open. The caller has matched session and number."""
        asked = self.asked
        if asked is None or answer.leader_epoch != self.leader_epoch or asked.offset != local.end:
            return IGNORE
        if answer.problem is FetchProblem.TRIMMED:
            # Where our end is inside the leader's log after all, the leader's start has moved back: ask again.
            return BeginAt(answer.log_start) if answer.log_start > local.end else Wait("the leader's log has moved")
        if answer.problem is not FetchProblem.NONE:
            return Wait(answer.problem.value)
        self.leader_end = answer.log_end
        if answer.parting is not None:
            return self._part(answer.parting, local)
        return Append(answer.high_watermark, answer.log_start)

    def _part(self, parting: EpochStart, local: LocalLog) -> FollowStep:
        offset = cut_at(parting, local.epochs, local.end)
        if offset >= local.end:
            return Wait("the leader names a parting that is none")
        if offset < local.high_watermark and local.epochs.latest >= self.leader_epoch:
            # The leader wrote this itself in the epoch that it still leads in, it was committed, and it is gone there.
            # We keep it: an operator has to decide, or another election.
            return Wait("the leader has lost records that are committed")
        return Truncate(offset)


def cut_at(parting: EpochStart, epochs: LeaderEpochs, end: int) -> int:
    """Up to where a log surely agrees with a leader whose largest epoch up to our last one ended at ``parting``.

    If we know that very epoch, both have its records up to the smaller of its two ends. If not, our records behind the
    end of our largest smaller epoch are from epochs that the leader never saw (KIP-279).
    """
    if parting.epoch == NO_EPOCH:
        return min(parting.start_offset, end)
    known, known_end = epochs.end_offset(parting.epoch, end)
    if known == parting.epoch:
        return min(parting.start_offset, known_end)
    if known == NO_EPOCH:
        # Our oldest epoch is newer than that one: nothing of ours is the leader's.
        first = epochs.items()[0].start_offset if epochs.items() else end
        return min(first, end)
    return min(known_end, end)
