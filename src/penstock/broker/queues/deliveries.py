"""All that is known of the deliveries of one partition to one group: the state that records are applied to.

Everything before ``committed`` is done. From there on rows tell of what was delivered, and what they leave out is ready.
So memory grows with what is in flight and with gaps, never with what was acked. Besides the rows there are only counts
and indices, which follow from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from penstock.broker.queues.config import Order, QueueSettings
from penstock.broker.queues.consumers import Consumers
from penstock.broker.queues.deadlines import Deadlines
from penstock.broker.queues.intervals import Interval, IntervalMap
from penstock.broker.queues.keyed import KeyedSupply
from penstock.broker.queues.messages import DeadLetter
from penstock.broker.queues.rows import (
    ACKED,
    ACKED_FACTS,
    COLUMNS,
    DYING,
    LEASED,
    WAITING,
    Row,
    facts_of,
    row_of,
)
from penstock.broker.queues.supply import PlainSupply, Supply

_MARKS_SPARE: Final = 1024  # marks that mean nothing any more are swept once they outnumber rows by this


class Deliveries:
    """Rows by offset, and what follows from them."""

    def __init__(self, settings: QueueSettings) -> None:
        self.committed = 0
        self.rows = IntervalMap(COLUMNS)
        self.counts = [0, 0, 0, 0]  # messages by kind
        self.consumers = Consumers()
        self.reasons: dict[int, str] = {}  # by dead letter, as long as it has messages
        self._dying: dict[int, tuple[int, int]] = {}  # by dead letter: where to look for it, and messages left
        self._deadlines = Deadlines()
        self._overdue: deque[Interval] = deque()  # leases may have ended in there
        self.supply: Supply
        self.supply_by(settings)

    def supply_by(self, settings: QueueSettings) -> None:
        """Choose messages as the settings want it from now on."""
        if settings.order is Order.KEY:
            self.supply = KeyedSupply(self.rows, self.is_done, settings.held_max)
        else:
            self.supply = PlainSupply(self.rows)
        self.mark_anew()

    # -- what there is ------------------------------------------------------------------------------------------------

    def is_done(self, offset: int) -> bool:
        if offset < self.committed:
            return True
        row = self.rows.at(offset)
        return row is not None and row[2] == ACKED_FACTS

    def within(self, first: int, last: int) -> Iterator[Row]:
        """The rows between two offsets, cut to them."""
        return map(row_of, self.rows.within(first, last))

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """What waits to be written to the dead letters, the oldest first; several with one id if it has gaps by now."""
        found: list[DeadLetter] = []
        for number, reason in self.reasons.items():
            if len(found) >= limit:
                break
            found += [
                DeadLetter(number, row.first, row.last, row.count, reason) for row in self.rows_of_dead_letter(number)
            ]
        return found

    def rows_of_dead_letter(self, number: int) -> list[Row]:
        first, last = self._dying[number]
        return [row for row in self.within(first, last) if row.kind == DYING and row.number == number]
