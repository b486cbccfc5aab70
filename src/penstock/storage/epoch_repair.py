"""Which leader epochs the batches of a log tell of, and which batches cannot be of the epoch that they name.

A batch's checksum does not cover its leader epoch, so a flipped bit there shows only by what else is known: which
epochs were saved with the last sync, and that epochs never go back from batch to batch. A batch that breaks this is
*misdated*. Its records are good, but its epoch would mislead about where two histories part (KIP-101). A
replica has misdated batches copied again from others, and where there are no others they are dated anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from penstock.records import BatchHeader
from penstock.storage.epochs import LeaderEpochs
from penstock.storage.ranges import Hole
from penstock.storage.scan import FileBytes, scan
from penstock.storage.segment import Segment

_EPOCH_POSITION: Final = 12


@dataclass(slots=True)
class _Run:
    """Batches one after the other that name the same epoch, and are of the same as far as was saved."""

    epoch: int
    saved_epoch: int
    first_offset: int
    batches: int = 0
    places: list[tuple[Segment, Hole]] = field(default_factory=list)

    def add(self, segment: Segment, position: int, size: int) -> None:
        self.batches += 1
        start = position
        if self.places and self.places[-1][0] is segment and self.places[-1][1].end == position:
            start = self.places.pop()[1].start
        self.places.append((segment, Hole(start, position + size)))


class Dates:
    """The epochs that a scan meets, in the order of the log."""

    __slots__ = ("_epochs", "_runs")

    def __init__(self, epochs: LeaderEpochs) -> None:
        self._epochs = epochs
        self._runs: list[_Run] = []

    def add(self, segment: Segment, position: int, header: BatchHeader) -> None:
        """A batch was found at a position of a segment."""
        saved = self._epochs.epoch_at(header.base_offset)
        if not self._runs or (self._runs[-1].epoch, self._runs[-1].saved_epoch) != (header.leader_epoch, saved):
            self._runs.append(_Run(header.leader_epoch, saved, header.base_offset))
        self._runs[-1].add(segment, position, header.size)

    def settle(self) -> None:
        """Note the epochs that are in order, behind those that were saved, and the batches that are misdated.

        A misdated batch counts with the epoch behind it. To call it younger than it is costs a copy more at worst; to
        call it older could make two different batches look the same.
        """
        epochs, saved_last = self._epochs, self._epochs.latest
        right = _in_order([run for run in self._runs if run.saved_epoch in (-1, run.epoch) or run.epoch > saved_last])
        start: int | None = None
        for run in self._runs:
            if id(run) in right:
                epochs.begin(run.epoch, run.first_offset if start is None else start)
                start = None
                continue
            if start is None:
                start = run.first_offset
            for segment, batches in run.places:
                segment.note_misdated(batches)
        self._runs = []


def redate(segment: Segment, epochs: LeaderEpochs) -> None:
    """Write leader epochs over damaged ones. Only where no other replica has these batches: others know better."""
    if not segment.misdated:
        return
    for found in scan(FileBytes(segment.file, segment.size), 0, segment.base_offset, segment.next_offset):
        if not isinstance(found, Hole) and segment.misdated.skip(found[0]) != found[0]:
            epoch = max(epochs.epoch_at(found[1].base_offset), 0)
            segment.file.patch(found[0] + _EPOCH_POSITION, epoch.to_bytes(4, "big"))
    segment.file.sync()
    segment.misdated.clear()


def _in_order(runs: list[_Run]) -> set[int]:
    """The identities of those runs whose epochs never go back and which have most batches together."""
    if all(one.epoch <= other.epoch for one, other in pairwise(runs)):
        return {id(run) for run in runs}
    weights: list[int] = []
    before: list[int] = []
    for at, run in enumerate(runs):
        fitting = [earlier for earlier in range(at) if runs[earlier].epoch <= run.epoch]
        best = max(fitting, key=lambda earlier: weights[earlier], default=-1)
        before.append(best)
        weights.append(run.batches + (weights[best] if best >= 0 else 0))
    # Where two ways are equally good, the lower epoch: nearly all of the bits that can flip make it a larger one.
    at = max(range(len(runs)), key=lambda last: (weights[last], -runs[last].epoch))
    kept: set[int] = set()
    while at >= 0:
        kept.add(id(runs[at]))
        at = before[at]
    return kept
