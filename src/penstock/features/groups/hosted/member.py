"""A hosted member: a consumer that lives here on behalf of a client that polls.

It holds a seat in its group and a position in each of its partitions. A position moves in the moment in which its
messages are handed over, and in no other: a poll that is cancelled, refused or interrupted leaves everything as it
was. An answer holds messages of several partitions, so that each of them gets its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final, NamedTuple

from penstock.errors import (
    IllegalGeneration,
    InvalidRequest,
    MemberBusy,
    OffsetOutOfRange,
    PartitionNotAssigned,
    PenstockError,
    RebalanceInProgress,
)
from penstock.features.groups.coordinator import GroupCoordinator
from penstock.features.groups.hosted.seat import Seat, Wish
from penstock.features.groups.messages import CommitOffsets, OffsetCommit, Where, check_committable
from penstock.features.messages.reading import BatchRun, read_messages, read_run
from penstock.machines.ports import Ports
from penstock.partitions.access import Extent
from penstock.records import Record


class Position(NamedTuple):
    """The offset to be read next, in the topic that has this id."""

    offset: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class _Told:
    """Positions as of an answer, of the partitions that are still held."""

    number: int
    positions: dict[Where, Position]


class Positions:
    """The positions of one member."""

    def __init__(self) -> None:
        self._next: dict[Where, Position] = {}
        self._committed: dict[Where, Position] = {}
        self._number = 0
        self._before: _Told | None = None

    @property
    def number(self) -> int:
        """The number of the last answer; 0 before the first."""
        return self._number

    def __getitem__(self, where: Where) -> Position:
        return self._next[where]

    def __contains__(self, where: object) -> bool:
        return where in self._next

    def places(self) -> list[Where]:
        return sorted(self._next)

    # -- partitions come and go ---------------------------------------------------------------------------------------

    def keep_only(self, places: Iterable[Where]) -> None:
        """Forget all but some partitions."""
        kept = frozenset(places)
        for where in [where for where in self._next if where not in kept]:
            self.drop(where)

    def begin(self, where: Where, position: Position, *, is_committed: bool) -> None:
        """Read a partition from here on."""
        self._next[where] = position
        if is_committed:
            self._committed[where] = position

    def drop(self, where: Where) -> None:
        self._next.pop(where, None)
        self._committed.pop(where, None)
        if self._before is not None:
            self._before.positions.pop(where, None)

    # -- reading on ---------------------------------------------------------------------------------------------------

    def skip(self, ends: Mapping[Where, int]) -> None:
        """Pass over what no client is to see."""
        for where, offset in ends.items():
            self._next[where] = self._next[where]._replace(offset=offset)

    def answer(self, ends: Mapping[Where, int]) -> int:
        """Messages up to ``ends`` are about to be told; the number of that answer."""
        self._before = _Told(self._number, dict(self._next))
        self._number += 1
        self.skip(ends)
        return self._number

    def confirm(self, last_number: int | None) -> None:
        """The member saw the answer of this number last, or does not say; what it did not see comes again."""
        if self._as_of(last_number) is not self._next:
            self.take_back(self._number)

    def take_back(self, number: int) -> None:
        """An answer never arrived: if it is the last one, go back to before it."""
        if self._before is not None and number == self._number:
            self._next.update(self._before.positions)
            self._number = self._before.number
            self._before = None

    def _as_of(self, number: int | None) -> dict[Where, Position]:
        """The positions as they were after an answer; only the last two are remembered."""
        if number is None or number == self._number:
            return self._next
        if self._before is None or number != self._before.number:
            raise InvalidRequest(f"The last answer to this member was number {self._number}, which cannot be {number}.")
        return self._before.positions

    # -- committing ---------------------------------------------------------------------------------------------------

    def uncommitted(self, last_number: int | None = None) -> dict[Where, Position]:
        """Every position, as of an answer, that is not the committed one."""
        known = self._as_of(last_number)
        return {where: position for where, position in known.items() if self._committed.get(where) != position}

    def committed(self, positions: Mapping[Where, Position]) -> None:
        """These are safe now."""
        self._committed.update({where: position for where, position in positions.items() if where in self._next})


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


# While a poll waits, this often it says that its member is alive and looks whether the group wants something of it.
_HEARTBEAT_SECONDS: Final = 0.2


class MemberStanding(NamedTuple):
    """Where a member stands. Unless it is settled, its partitions may go to another member in a moment."""

    member_id: str
    generation: int
    places: tuple[Where, ...]
    is_settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """Messages by partition, and the number of this answer."""

    number: int
    messages: list[tuple[Where, list[Record]]]
    runs: list[tuple[Where, BatchRun]]  # instead of messages, for clients that decode
    standing: MemberStanding
    # Whether the partitions are others than the client was last told of.
    is_rebalanced: bool


class OffsetToCommit(NamedTuple):
    """An offset that a client wants to be remembered."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""


class HostedMember:
    """A seat and the positions that go with it. Calls other than `poll` may come at any time; polls one at a time."""

    def __init__(self, ports: Ports, groups: GroupCoordinator, group_id: str, wish: Wish, member_id: str = "") -> None:
        self._ports = ports
        self._groups = groups
        self.group_id = group_id
        self.seat = Seat(ports, groups, group_id, wish, member_id)
        self._positions = Positions()
        self._generation = -1  # the one that the positions belong to
        self._told: tuple[Where, ...] | None = None
        self._turn = 0
        self.is_polling = False

    @property
    def standing(self) -> MemberStanding:
        seat = self.seat
        return MemberStanding(seat.member_id, seat.generation, seat.places, seat.is_settled)

    # -- membership ---------------------------------------------------------------------------------------------------

    async def join(self, wait_seconds: float) -> MemberStanding:
        """Take a seat, or take it again for another wish; where the member stands after that or a while."""
        self.seat.hear()
        self.seat.join()
        if await self.seat.settle(wait_seconds):
            await self._follow_seat()
        self._told = self.seat.places
        return self.standing

    def heartbeat(self, generation: int | None) -> MemberStanding:
        """Keep the session going. A client that hears of an unsettled group should poll, for that takes part in it."""
        self.seat.hear()
        self._check_generation(generation)
        is_settled = self.seat.is_alive()
        return self.standing._replace(is_settled=is_settled)

    def _check_generation(self, generation: int | None) -> None:
        current = self.seat.generation
        if generation is not None and generation != current:
            raise IllegalGeneration(f"This member is in generation {current}, not {generation}. Poll to go on.")

    # -- polling ------------------------------------------------------------------------------------------------------

    async def poll(
        self, limit: int, max_bytes: int, wait_seconds: float, last_number: int | None, *, is_raw: bool = False
    ) -> Polled:
        """Messages, as soon as there are any; none if none come in time, or if the partitions are others now.

        ``is_raw``: as batches, which are not looked into.
        """
        if self.is_polling:
            raise MemberBusy(f"Member {self.seat.member_id!r} is polling already. Wait for that answer.")
        self.is_polling = True
        try:
            self.seat.hear()
            self._positions.confirm(last_number)
            if self.seat.wish.commits_itself:
                # What a round keeps from being committed comes again, to this member or the next reader.
                with contextlib.suppress(RebalanceInProgress, IllegalGeneration):
                    await self.commit(None, None, None)
            return await self._poll(limit, max_bytes, wait_seconds, is_raw)
        finally:
            self.is_polling = False
            self.seat.hear()

    async def _poll(self, limit: int, max_bytes: int, wait_seconds: float, is_raw: bool) -> Polled:
        clock = self._ports.clock
        deadline = clock.monotonic() + wait_seconds
        while True:
            gathered = Gathered()
            is_news = False
            if await self.seat.settle(deadline - clock.monotonic()):
                await self._follow_seat()
                is_news = self._told != self.seat.places
                with self._watching() as moved:
                    gathered = await self._gather(limit, max_bytes, is_raw)
                    left = deadline - clock.monotonic()
                    if not (gathered.has_any or gathered.out_of_range or is_news) and left > 0:
                        await self._wait(moved, min(left, _HEARTBEAT_SECONDS))
            if gathered.has_any or is_news or clock.monotonic() >= deadline:
                return self._answer(gathered)

    async def _gather(self, limit: int, max_bytes: int, is_raw: bool) -> Gathered:
        places = self._positions.places()
        self._turn += 1
        first = self._turn % len(places) if places else 0
        read = gather_runs if is_raw else gather
        gathered = await read(self._ports, self._positions, places[first:] + places[:first], limit, max_bytes)
        if gathered.failure is not None and not gathered.has_any:
            raise gathered.failure
        for where in gathered.out_of_range:
            self._positions.drop(where)
            await self._begin(where, is_reset=True)
        gathered.keep_only(self._positions.places())
        if not gathered.has_any:
            self._positions.skip(gathered.ends)
        return gathered

    def _answer(self, gathered: Gathered) -> Polled:
        number = self._positions.answer(gathered.ends) if gathered.has_any else self._positions.number
        places = self.seat.places
        is_rebalanced = self._told is not None and self._told != places
        self._told = places
        return Polled(
            number=number,
            messages=gathered.messages,
            runs=gathered.runs,
            standing=self.standing,
            is_rebalanced=is_rebalanced,
        )

    def take_back(self, polled: Polled) -> None:
        """An answer could not be handed over: its messages come again."""
        if polled.messages or polled.runs:
            self._positions.take_back(polled.number)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever one of the partitions that are led here moves."""
        moved = asyncio.Event()
        partitions = [found for where in self._positions.places() if (found := self._ports.partitions.local(*where))]
        for partition in partitions:
            partition.watch(moved.set)
        try:
            yield moved
        finally:
            for partition in partitions:
                partition.unwatch(moved.set)

    async def _wait(self, moved: asyncio.Event, seconds: float) -> None:
        """Wait until a partition moves; those that are led elsewhere are asked about there."""
        elsewhere = {
            where: self._positions[where].offset
            for where in self._positions.places()
            if self._ports.partitions.local(*where) is None
        }
        asking = None
        if elsewhere:
            asking = asyncio.ensure_future(self._ports.partitions.await_more(elsewhere, int(seconds * 1000)))
            asking.add_done_callback(lambda _: moved.set())
        try:
            async with asyncio.timeout(seconds):
                await moved.wait()
        except TimeoutError:
            return
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    # -- positions ----------------------------------------------------------------------------------------------------

    async def _follow_seat(self) -> None:
        """Have a position in every partition that is assigned, and in no other.

        Positions are kept from one generation to the next. If one was missed, another member may have read there.
        """
        seat, positions = self.seat, self._positions
        if seat.generation not in (self._generation, self._generation + 1):
            positions.keep_only(())
        positions.keep_only(seat.places)
        self._generation = seat.generation
        for where in seat.places:
            if where in positions and positions[where].topic_id != self._topic_id(where):
                positions.drop(where)
        missing = [where for where in seat.places if where not in positions]
        if missing:
            # No member begins at an offset that could still be lost.
            await self._groups.settled(self.group_id)
            for where in missing:
                if where in seat.places and where not in positions:  # another call may have been here meanwhile
                    await self._begin(where)

    async def _begin(self, where: Where, *, is_reset: bool = False) -> None:
        """Find where to begin in a partition. Where that cannot be told yet, it is tried again with the next look."""
        topic_id = self._topic_id(where)
        group = self._groups.find(self.group_id)
        if topic_id is None or (group is not None and group.offsets.is_undecided(where)):
            return
        kept = None if group is None or is_reset else group.offsets.get(where)
        if kept is not None and kept.topic_id == topic_id:
            self._positions.begin(where, Position(kept.offset, topic_id), is_committed=True)
            return
        generation = self.seat.generation
        try:
            start = await self._ports.partitions.locate(*where, self.seat.wish.reset)
        except PenstockError:
            return
        is_same = self.seat.generation == generation and self._topic_id(where) == topic_id
        if is_same and where in self.seat.places and where not in self._positions:
            self._positions.begin(where, Position(start, topic_id), is_committed=False)

    def _topic_id(self, where: Where) -> str | None:
        topic = self._ports.metadata.topics.get(where[0])
        return None if topic is None else topic.topic_id.hex

    # -- committing ---------------------------------------------------------------------------------------------------

    async def commit(
        self, offsets: Sequence[OffsetToCommit] | None, generation: int | None, last_number: int | None
    ) -> list[OffsetToCommit]:
        """Commit some offsets, or everything polled so far, up to an answer if one is named; what was committed."""
        self.seat.hear()
        self._check_generation(generation)
        if offsets is None:
            if self.seat.is_settled:
                await self._follow_seat()
            polled = self._positions.uncommitted(last_number)
            offsets = [OffsetToCommit(*where, position.offset) for where, position in sorted(polled.items())]
            ends: Mapping[Where, Extent] = {}  # what was polled is there
        else:
            ends = await self._ports.partitions.extents([(wanted.topic, wanted.partition) for wanted in offsets])
        commits = tuple(self._checked(offsets, ends))
        settled = await self._groups.ask(self.group_id, CommitOffsets(self.seat.identity, commits))
        for error in settled.refused.values():
            raise error
        self._positions.committed(
            {(commit.topic, commit.partition): Position(commit.offset, commit.topic_id) for commit in commits}
        )
        return list(offsets)

    def _checked(self, offsets: Iterable[OffsetToCommit], ends: Mapping[Where, Extent]) -> Iterator[OffsetCommit]:
        for wanted in offsets:
            where = (wanted.topic, wanted.partition)
            name = f"{wanted.topic}-{wanted.partition}"
            assigned = self._ports.metadata.partition(*where)
            if where not in self.seat.places:
                raise PartitionNotAssigned(
                    f"{name} is not assigned to this member in generation {self.seat.generation}, so it cannot "
                    "commit there. Poll to hear what is."
                )
            if where in ends and wanted.offset > ends[where].log_end_offset:
                raise OffsetOutOfRange(f"{name} ends at {ends[where].log_end_offset}, before {wanted.offset}.")
            check_committable(wanted.offset)
            topic_id = self._topic_id(where)
            assert topic_id is not None, "a partition has a topic"
            yield OffsetCommit(*where, wanted.offset, assigned.leader_epoch, wanted.metadata, topic_id)
