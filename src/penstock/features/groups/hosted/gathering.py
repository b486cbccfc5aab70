"""Messages from several partitions in one answer, so that each of them gets its turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

from penstock.errors import OffsetOutOfRange, PenstockError
from penstock.features.groups.hosted.positions import Positions
from penstock.features.groups.messages import Where
from penstock.features.messages.reading import BatchRun, read_messages, read_run
from penstock.machines.ports import Ports
from penstock.records import Record


@dataclass(slots=True)
class Gathered:
    """Messages by partition, in order, and how far each partition was looked at."""

    messages: list[tuple[Where, list[Record]]] = field(default_factory=list)
    runs: list[tuple[Where, BatchRun]] = field(default_factory=list)  # instead, for clients that decode
    ends: dict[Where, int] = field(default_factory=dict)
    # Partitions whose position is outside of what their log holds.
    out_of_range: list[Where] = field(default_factory=list)
    # Why some partition could not be read; it does not keep the others from being read.
    failure: PenstockError | None = None

    @property
    def has_any(self) -> bool:
        return bool(self.messages or self.runs)

    def keep_only(self, places: Iterable[Where]) -> None:
        """Leave out what was found elsewhere."""
        kept = frozenset(places)
        self.messages = [(where, records) for where, records in self.messages if where in kept]
        self.runs = [(where, run) for where, run in self.runs if where in kept]
        self.ends = {where: end for where, end in self.ends.items() if where in kept}


async def gather(ports: Ports, positions: Positions, order: Sequence[Where], limit: int, max_bytes: int) -> Gathered:
    """Up to ``limit`` messages and about ``max_bytes`` from the partitions in ``order``.

    Each gets an equal share of what is left when its turn comes. What the last ones leave over is offered to all again.
    """
    gathered = Gathered()
    found: dict[Where, list[Record]] = {}
    queue = list(order)
    while queue and limit > 0 and max_bytes > 0:
        going_on = []
        for at, where in enumerate(queue):
            share, share_bytes = ceil(limit / (len(queue) - at)), ceil(max_bytes / (len(queue) - at))
            records = await _read(ports, positions, where, gathered, share, share_bytes)
            found.setdefault(where, []).extend(records)
            limit -= len(records)
            max_bytes -= sum(len(record.key or b"") + len(record.value or b"") for record in records)
            if records:
                going_on.append(where)
            if limit <= 0 or max_bytes <= 0:
                break
        queue = going_on
    gathered.messages = [(where, records) for where, records in found.items() if records]
    return gathered


async def gather_runs(
    ports: Ports, positions: Positions, order: Sequence[Where], limit: int, max_bytes: int
) -> Gathered:
    """The same as batches, without looking into them; each partition is read once, as far as its share goes."""
    gathered = Gathered()
    for at, where in enumerate(order):
        if limit <= 0 or max_bytes <= 0:
            break
        left = len(order) - at
        share, share_bytes = ceil(limit / left), ceil(max_bytes / left)
        try:
            run = await read_run(ports, *where, positions[where].offset, limit=share, max_bytes=share_bytes)
        except OffsetOutOfRange:
            gathered.out_of_range.append(where)
            continue
        except PenstockError as error:
            gathered.failure = error
            continue
        gathered.ends[where] = run.end
        limit -= run.messages
        max_bytes -= len(run.data)
        if run.messages:
            gathered.runs.append((where, run))
    return gathered


async def _read(
    ports: Ports, positions: Positions, where: Where, gathered: Gathered, limit: int, max_bytes: int
) -> list[Record]:
    offset = gathered.ends.get(where, positions[where].offset)
    try:
        result = await read_messages(ports, *where, offset, limit=limit, max_bytes=max_bytes)
    except OffsetOutOfRange:
        gathered.out_of_range.append(where)
        return []
    except PenstockError as error:
        gathered.failure = error
        return []
    gathered.ends[where] = result.next_offset
    return result.messages
