"""What a partition remembers of its producers, beside what is in the log.

`UncommittedMarkers`: transactions whose markers are written and may not be committed yet. Readers of committed data
wait for them as they wait for open ones: a marker that is lost again decided nothing.

`RefusedBatches`: producers whose batch was refused for now, so that what they sent behind it gets the same answer. A
producer has several batches on their way. If the first is refused because this node does not lead yet, or because too
few replicas are in sync, and that changes before the second is looked at, the second seems to come out of order. Some
clients then begin a new epoch for all that they have on its way anywhere, and what had arrived is stored twice
(librdkafka). As an answer that says to try again it does no harm: they send both again, in order.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from penstock.errors import PenstockError
from penstock.records import peek_producer

# As many as a producer has on their way at most, so that a producer that really lost a batch is told.
_BEHIND_MAX: Final = 5
_PRODUCERS_MAX: Final = 1_000


class MarkedTransaction(NamedTuple):
    """A transaction from its first batch to behind its marker."""

    first_offset: int
    next_offset: int


class UncommittedMarkers:
    """In the order of their markers, and only those that began before all that were decided after them.

    So the first one is always the one that began first.
    """

    __slots__ = ("_marked",)

    def __init__(self) -> None:
        self._marked: deque[MarkedTransaction] = deque()

    def __len__(self) -> int:
        return len(self._marked)

    def add(self, ended: MarkedTransaction, high_watermark: int) -> None:
        marked = self._marked
        self.forget(high_watermark)
        while marked and marked[-1].first_offset > ended.first_offset:
            marked.pop()  # began later and is committed earlier, so it never is what readers wait for
        marked.append(ended)

    def forget(self, high_watermark: int) -> None:
        """Let go of those that are committed."""
        marked = self._marked
        while marked and marked[0].next_offset <= high_watermark:
            marked.popleft()

    def first_offset(self, high_watermark: int) -> int | None:
        """Where the first one began whose marker is not committed."""
        self.forget(high_watermark)
        return self._marked[0].first_offset if self._marked else None

    def cut(self, end_offset: int) -> None:
        """The log was truncated. What was decided behind its end is waited for until all that is left is committed."""
        clipped = [MarkedTransaction(ended.first_offset, min(ended.next_offset, end_offset)) for ended in self._marked]
        self._marked = deque(ended for ended in clipped if ended.first_offset < end_offset)


class RefusedBatches:
    """The last refusal of each producer, of one partition."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[int, tuple[PenstockError, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._last)

    def note(self, batch: memoryview, error: PenstockError) -> None:
        """A producer's batch was refused, and may be sent again."""
        producer_id = peek_producer(batch)
        if producer_id < 0:
            return
        if len(self._last) >= _PRODUCERS_MAX:
            self._last.clear()
        self._last[producer_id] = (error, _BEHIND_MAX)

    def behind(self, producer_id: int) -> PenstockError | None:
        """The error for a batch that the one before is missing for, if that one was refused."""
        error, left = self._last.pop(producer_id, (None, 0))
        if error is not None and left > 1:
            self._last[producer_id] = (error, left - 1)
        return error

    def forget(self, producer_id: int) -> None:
        """A batch of the producer was taken."""
        self._last.pop(producer_id, None)
