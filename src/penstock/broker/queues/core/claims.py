"""Receipts held against what is known: which deliveries are still a lease's own, and what became of the others.

Receipts of neighbours from one lease are joined first, so that five hundred of them cost one look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.broker.queues.core.deliveries import Deliveries
from penstock.broker.queues.core.holds import NOBODY
from penstock.broker.queues.core.intervals import IntervalSet
from penstock.broker.queues.core.messages import Fate, Part
from penstock.broker.queues.core.receipts import Receipt, Seal
from penstock.broker.queues.core.rows import ACKED, DYING, LEASED, Row


class Claims:
    """The receipts of one call. ``rows`` are the live deliveries they name, by offset; ``parts`` go to who asked.

    What a transaction holds is left alone, but for whoever asks in its name, ``owner``, and who only wants more time.
    """

    def __init__(
        self, deliveries: Deliveries, seal: Seal, last_lease: int, *, owner: int = NOBODY, heeds_holds: bool = True
    ) -> None:
        self._deliveries = deliveries
        self._holds = deliveries.holds if heeds_holds and deliveries.holds else None
        self._owner = owner
        self._seal = seal
        self._last_lease = last_lease
        self._claimed: IntervalSet | None = None  # what was named already in this call, once that can matter
        self._claimed_to = -1
        self._rows: list[Row] = []
        self.parts: list[tuple[Part, ...]] = []

    @property
    def rows(self) -> list[Row]:
        return sorted(self._rows)

    def add(self, receipts: Sequence[Receipt], topic: str, partition: int) -> None:
        """Judge the receipts of the call, all at once."""
        self.parts = [()] * len(receipts)
        for run in _runs(receipts):
            head, last = receipts[run[0]], receipts[run[-1]].last
            if (head.topic, head.partition) != (topic, partition):
                parts = [Part(head.first, last, Fate.FOREIGN)]
            else:
                parts = self._judge(head, last)
            if len(parts) == 1:
                fate = parts[0].fate
                for at in run:
                    self.parts[at] = (Part(receipts[at].first, receipts[at].last, fate),)
            else:
                for at, mine in zip(run, _share_out(parts, [receipts[at] for at in run]), strict=True):
                    self.parts[at] = mine

    def _judge(self, receipt: Receipt, last: int) -> list[Part]:
        lease = self._seal.lease_of(receipt.nonce)
        if lease is None or lease > self._last_lease:
            return [Part(receipt.first, last, Fate.UNKNOWN)]
        first, committed = receipt.first, self._deliveries.committed
        parts: list[Part] = []
        if first < committed:
            parts.append(Part(first, min(last, committed - 1), Fate.ALREADY_ACKED))
            first = committed
        for row in self._deliveries.within(first, last) if first <= last else ():
            if row.first > first:
                parts.append(Part(first, row.first - 1, Fate.UNKNOWN))
            first = row.last + 1
            if row.kind == LEASED and row.number == lease and row.deliveries == receipt.delivery_count:
                if self._holds is None:
                    self._claim(row, parts)
                else:
                    self._claim_unheld(row, parts)
            else:
                parts.append(Part(row.first, row.last, _fate_of(row, lease)))
        if first <= last:
            parts.append(Part(first, last, Fate.UNKNOWN))
        return parts

    def _claim_unheld(self, row: Row, parts: list[Part]) -> None:
        """Claim what no transaction holds; what the asker's own holds is done already."""
        assert self._holds is not None
        claimed: list[Part] = []
        for free in list(self._holds.free_parts(row)):
            self._claim(free, claimed)
        for first, last, owner in self._holds.within(row.first, row.last):
            claimed.append(Part(first, last, Fate.DONE if owner == self._owner else Fate.IN_TRANSACTION))
        parts += sorted(claimed, key=lambda part: part.first)

    def _claim(self, row: Row, parts: list[Part]) -> None:
        if row.first > self._claimed_to:  # as ever, since receipts come by offset and few are named twice
            self._rows.append(row)
            parts.append(Part(row.first, row.last, Fate.DONE))
        else:
            self._claim_the_rest(row, parts)
        if self._claimed is not None:
            self._claimed.add(row.first, row.last)
        self._claimed_to = max(self._claimed_to, row.last)

    def _claim_the_rest(self, row: Row, parts: list[Part]) -> None:
        """Claim what was not named before in this call."""
        if self._claimed is None:
            self._claimed = IntervalSet()
            for claimed in self._rows:
                self._claimed.add(claimed.first, claimed.last)
        fresh = [Part(first, last, Fate.DONE) for first, last in self._claimed.gaps(row.first, row.last)]
        named = [Part(first, last, Fate.REPEATED) for first, last, _ in self._claimed.within(row.first, row.last)]
        self._rows += [row._replace(first=part.first, last=part.last) for part in fresh]
        parts += sorted(fresh + named, key=lambda part: part.first)


def _fate_of(row: Row, lease: int) -> Fate:
    if row.kind == ACKED:
        return Fate.ALREADY_ACKED
    if row.kind == DYING:
        return Fate.DEAD_LETTERED
    if row.kind == LEASED:
        return Fate.UNKNOWN if row.number == lease else Fate.REDELIVERED  # no lease has two counts for a message
    return Fate.LEASE_OVER


def _runs(receipts: Sequence[Receipt]) -> Iterator[list[int]]:
    """Where those receipts are that follow each other by offset and differ in nothing else."""
    run: list[int] = []
    before = None
    for at in sorted(range(len(receipts)), key=receipts.__getitem__):
        receipt = receipts[at]
        if before is not None:
            if receipt[2] == before[3] + 1 and receipt[4:] == before[4:] and receipt[:2] == before[:2]:
                run.append(at)
                before = receipt
                continue
            yield run
        run = [at]
        before = receipt
    if run:
        yield run


def _share_out(parts: list[Part], run: list[Receipt]) -> Iterator[tuple[Part, ...]]:
    """The parts of joined receipts, given to each of them."""
    at = 0
    for receipt in run:
        mine: list[Part] = []
        while at < len(parts):
            part = parts[at]
            mine.append(Part(max(part.first, receipt.first), min(part.last, receipt.last), part.fate))
            if part.last > receipt.last:
                break
            at += 1
            if part.last == receipt.last:
                break
        yield tuple(mine)
