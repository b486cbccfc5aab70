"""A hosted member's seat in its group: it joins, syncs, leads if it must, and says that it is alive.

A round can take longer than the call in which it began, because it waits for others. So it goes on in a task of its
own, and calls wait for that as long as they can. What the task never does is to speak for a client that is silent: it
ends the round that it is in, and if the group begins another one meanwhile, it takes part in that only while the
client's session lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from uuid import uuid4

from penstock.errors import CoordinatorLoading, IllegalGeneration, RebalanceInProgress
from penstock.features.groups.client_metadata import (
    CONSUMER_PROTOCOL,
    read_assignment,
    topics_of,
    write_assignment,
    write_subscription,
)
from penstock.features.groups.consumer.assignors import CLIENT_ASSIGNORS, GroupSubscriber
from penstock.features.groups.coordinator import GroupCoordinator
from penstock.features.groups.messages import JoinedGroup, JoinRequest, Leave, MemberIdentity, SyncGroup, Where
from penstock.machines.ports import Ports

# How often to ask a coordinator that is still reading its log, and how many times.
_LOADING_PAUSE_SECONDS: Final = 0.05
_LOADING_TRIES: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a client wants of its group."""

    topics: frozenset[str]
    session_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    # Where to begin in a partition that nothing was committed for.
    reset: Literal["earliest", "latest"] = "earliest"
    # Whether what a poll told is committed when the next one comes.
    commits_itself: bool = False


class Seat:
    """One member of one group, as its coordinator sees it."""

    def __init__(self, ports: Ports, groups: GroupCoordinator, group_id: str, wish: Wish, member_id: str = "") -> None:
        """``member_id`` is empty for a new member, and else that of one which the group still knows."""
        self._ports = ports
        self._groups = groups
        self._group_id = group_id
        self._is_new = not member_id
        self._round: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        self._counts: Mapping[str, int] | None = None  # the partitions that we shared out, if we lead
        self.wish = wish
        self.member_id = member_id or f"{wish.instance_id or wish.client_id or 'rest'}-{uuid4()}"
        self.generation = -1
        self.places: tuple[Where, ...] = ()
        self.hear()

    def __repr__(self) -> str:
        return f"<Seat {self.member_id!r} in {self._group_id!r}, generation {self.generation}>"

    @property
    def identity(self) -> MemberIdentity:
        return MemberIdentity(member_id=self.member_id, instance_id=self.wish.instance_id, generation=self.generation)

    @property
    def is_settled(self) -> bool:
        """Whether it has an assignment and no round is under way that we know of."""
        return self.generation >= 0 and (self._round is None or self._round.done())

    def hear(self) -> None:
        """The client made a call: its session starts anew."""
        self._heard_at = self._ports.clock.monotonic()

    @property
    def _is_silent(self) -> bool:
        return (self._ports.clock.monotonic() - self._heard_at) * 1000 > self.wish.session_timeout_ms

    # -- rounds -------------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Begin to take part in a round; one that is under way already is begun again."""
        self.abandon()
        self._round = asyncio.ensure_future(self._take_part())
        self._round.add_done_callback(_look_at)

    async def settle(self, wait_seconds: float) -> bool:
        """Say that the member is alive, and take part in whatever round there is; whether it is settled in time."""
        self._end_round()
        if self._round is None and not self._is_in_order():
            self.join()
        current = self._round
        if current is None:
            return True
        await asyncio.wait({current}, timeout=max(wait_seconds, 0))
        if current.cancelled():  # by another call, which has begun a new one or has left
            return False
        self._end_round()
        return self._round is None

    def is_alive(self) -> bool:
        """Say that the member is alive; whether it is settled, too. `UnknownMember` if it was given up."""
        self._end_round()
        return self._round is None and self._is_in_order(may_lead=False)

    def _end_round(self) -> None:
        """If the round is over, hear how it ended."""
        if self._round is not None and self._round.done():
            ended, self._round = self._round, None
            ended.result()

    def _is_in_order(self, *, may_lead: bool = True) -> bool:
        try:
            self._groups.heartbeat(self._group_id, self.identity)
        except (RebalanceInProgress, IllegalGeneration):
            return False
        # Who leads has to see to it that new partitions are shared out.
        return not may_lead or self._counts is None or self._counts == self._count(self._counts)

    async def _take_part(self) -> None:
        while True:
            joined = await self._join()
            self._is_new = False
            self.member_id = joined.member_id
            identity = MemberIdentity(
                member_id=joined.member_id, instance_id=self.wish.instance_id, generation=joined.generation
            )
            sync = SyncGroup(
                identity=identity,
                protocol_type=joined.protocol_type,
                protocol=joined.protocol,
                assignments=self._share_out(joined),
            )
            try:
                synced = await self._groups.ask(self._group_id, sync)
            except (RebalanceInProgress, IllegalGeneration):
                if self._is_silent:
                    raise
                continue
            self.generation = joined.generation
            self.places = tuple(sorted(read_assignment(synced.assignment)))
            return

    async def _join(self) -> JoinedGroup:
        wish = self.wish
        metadata = write_subscription(wish.topics)
        join = JoinRequest(
            # A static member that is new takes its predecessor's place, which goes by the instance alone.
            member_id="" if self._is_new else self.member_id,
            instance_id=wish.instance_id,
            client_id=wish.client_id,
            client_host=wish.client_host,
            session_timeout_ms=wish.session_timeout_ms,
            rebalance_timeout_ms=wish.session_timeout_ms,
            protocol_type=CONSUMER_PROTOCOL,
            protocols=tuple((name, metadata) for name in CLIENT_ASSIGNORS),
            fresh_id=self.member_id,
            takes_id_first=False,
            can_skip_assignment=True,
        )
        for _ in range(_LOADING_TRIES):
            try:
                answer = await self._groups.ask(self._group_id, join)
            except CoordinatorLoading:
                await asyncio.sleep(_LOADING_PAUSE_SECONDS)
                continue
            assert isinstance(answer, JoinedGroup), "an id is promised only to those who ask for one first"
            return answer
        raise CoordinatorLoading

    # -- leading ------------------------------------------------------------------------------------------------------

    def _share_out(self, joined: JoinedGroup) -> tuple[tuple[str, bytes], ...]:
        """The assignments of all members, if this one is to make them."""
        self._counts = None
        if joined.leader_id != joined.member_id:
            return ()
        subscribers = {
            member_id: GroupSubscriber(topics_of(metadata) or frozenset(), instance_id)
            for member_id, instance_id, metadata in joined.members
        }
        self._counts = self._count(frozenset[str]().union(*(each.topics for each in subscribers.values())))
        if joined.skips_assignment:
            return ()
        counts = {topic: count for topic, count in self._counts.items() if count}
        shares = CLIENT_ASSIGNORS[joined.protocol](subscribers, {}, counts)
        return tuple((member_id, write_assignment(places)) for member_id, places in shares.items())

    def _count(self, topics: frozenset[str] | Mapping[str, int]) -> Mapping[str, int]:
        known = self._ports.metadata.topics
        return {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}

    # -- the end ------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Give up the seat, so that the others need not wait until it is missed."""
        self.abandon()
        identity = MemberIdentity(member_id=self.member_id, instance_id=self.wish.instance_id)
        left = await self._groups.ask(self._group_id, Leave((identity,)))
        for error in left.errors:
            if error is not None:
                raise error

    def abandon(self) -> None:
        """Do no more for this member; its group will miss it when its session ends."""
        if self._round is not None:
            self._round.cancel()
            self._round = None


def _look_at(task: asyncio.Task[None]) -> None:
    """How a round ended is told with the next call, and there may be none."""
    if not task.cancelled():
        task.exception()
