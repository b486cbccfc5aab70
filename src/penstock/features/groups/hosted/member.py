"""A hosted member: a consumer that lives here on behalf of a client who polls.

It holds a seat in its group and a position in each of its partitions. A position moves in the moment in which its
messages are handed over, and in no other: a poll that is cancelled, refused or interrupted leaves everything as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.errors import (
    IllegalGeneration,
    MemberBusy,
    OffsetOutOfRange,
    PartitionNotAssigned,
    PenstockError,
    RebalanceInProgress,
)
from penstock.features.groups.coordinator import GroupCoordinator
from penstock.features.groups.hosted.gathering import Gathered, gather, gather_runs
from penstock.features.groups.hosted.positions import Position, Positions
from penstock.features.groups.hosted.seat import Seat, Wish
from penstock.features.groups.messages import Commit, OffsetCommit, Where, check_committable
from penstock.features.messages.reading import BatchRun
from penstock.machines.ports import Ports
from penstock.partitions.access import Extent
from penstock.records import Record

# While a poll waits, this often it says that its member is alive and looks whether the group wants something of it.
_HEARTBEAT_SECONDS: Final = 0.2


class Standing(NamedTuple):
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
    standing: Standing
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
    def standing(self) -> Standing:
        seat = self.seat
        return Standing(seat.member_id, seat.generation, seat.places, seat.is_settled)

    # -- membership ---------------------------------------------------------------------------------------------------

    async def join(self, wait_seconds: float) -> Standing:
        """Take a seat, or take it again for another wish; where the member stands after that or a while."""
        self.seat.hear()
        self.seat.join()
        if await self.seat.settle(wait_seconds):
            await self._follow_seat()
        self._told = self.seat.places
        return self.standing

    def heartbeat(self, generation: int | None) -> Standing:
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
        settled = await self._groups.ask(self.group_id, Commit(self.seat.identity, commits))
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
