"""Dead letters as every door sees them: listed, grouped by reason, looked at, counted, and sent back.

They are messages of an ordinary topic; what was sent back since is known from the ledger of redrives. Every look is
bounded and says how much of it all it has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import msgspec

from penstock.api.limits import REDRIVE_RATE_MAX
from penstock.consensus.metadata import Topic
from penstock.errors import DeadLetterNotFound, GroupNotFound, InvalidRequest, PenstockError, UnknownTopic
from penstock.features.dead_letters.letters import SUFFIX, DeadMessage, ScannedMessages, dead_letter_topic, scan
from penstock.features.queues.core.intervals import IntervalSet
from penstock.features.queues.queues import Queues
from penstock.features.redrives.records import DeadLetterFilter, RedriveJob
from penstock.features.redrives.redrives import RedriveRoute, Redrives
from penstock.machines.ports import Ports
from penstock.model import is_internal

SCAN_MESSAGES_MAX: Final = 20_000  # for one page; more is another call
SCAN_ALL_MAX: Final = 500_000  # where there are no pages
_REASONS_MAX: Final = 1_000
_SAMPLES: Final = 10


class DeadMessagePage(NamedTuple):
    """Some dead letters; ``cursor`` is where the next page begins, None if there is none."""

    topic: str  # the dead-letter topic
    messages: list[DeadMessage]
    cursor: str | None
    scanned: int
    total: int  # offsets in all partitions: what there is to be scanned


class ReasonGroup(NamedTuple):
    """Dead letters that died of the same."""

    reason: str
    messages: int
    first_ms: int
    last_ms: int
    sample: DeadMessage


class ReasonGroups(NamedTuple):
    """The most frequent first. Where it is not complete, what came after ``scanned`` is left out."""

    topic: str
    reasons: list[ReasonGroup]
    scanned: int
    total: int
    is_complete: bool


class RedrivePreview(NamedTuple):
    """What a redrive would do. Where it is not complete, it would do more."""

    topic: str
    matched: int
    scanned: int
    targets: dict[str, int]  # messages by topic
    stranded: int  # messages that have nowhere to go
    samples: list[DeadMessage]
    is_complete: bool = True


class DeadCount(NamedTuple):
    """How many dead letters there are, and how many were sent back; offsets without a message count too."""

    topic: str
    total: int
    redriven: int

    @property
    def dead(self) -> int:
        return max(self.total - self.redriven, 0)


class _Range(NamedTuple):
    partition: int
    start: int
    end: int


class DeadLetters:
    """The dead letters of any topic, from any node.

    ``topic`` is the topic whose messages died; or a dead-letter topic itself, for all that is in there. A group that
    has a dead-letter topic of its own has to be named.
    """

    def __init__(self, ports: Ports, queues: Queues, redrives: Redrives) -> None:
        self._ports = ports
        self._queues = queues
        self._redrives = redrives

    def topic_of(self, topic: str) -> str:
        """The name of the dead-letter topic, which need not be there yet."""
        metadata = self._ports.metadata
        if is_internal(topic):
            raise InvalidRequest(f"{topic!r} holds the broker's own state; it has no dead letters.")
        if topic not in metadata.topics:
            if topic + SUFFIX in metadata.topics:
                return topic + SUFFIX  # they outlive the topic they came from
            raise UnknownTopic(f"There is no topic {topic!r}.")
        return dead_letter_topic(topic, self._ports.topics.settings_of(topic).queue) or topic

    async def _topic_for(self, topic: str, group: str | None) -> str:
        """The same for a group, which may have dead letters of its own; as of the topic where it is not known."""
        name = self.topic_of(topic)
        if group is None or topic not in self._ports.metadata.topics:
            return name
        try:
            (stats,) = await self._queues.stats(topic, group)
        except GroupNotFound:
            return name
        return dead_letter_topic(topic, stats.settings) or name

    # -- looking ------------------------------------------------------------------------------------------------------

    async def page(
        self,
        topic: str,
        wanted: DeadLetterFilter | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
        has_redriven: bool = False,
    ) -> DeadMessagePage:
        """Dead letters by partition and offset. ``has_redriven``: with those that were sent back since."""
        name = await self._topic_for(topic, wanted.group if wanted is not None else None)
        found = self._ports.metadata.topics.get(name)
        if found is None:
            return DeadMessagePage(name, [], None, 0, 0)
        wanted = _of_topic(wanted, topic, name)
        ranges = await self._ranges(found)
        total = sum(at.end - at.start for at in ranges)
        messages: list[DeadMessage] = []
        scanned = 0
        for at in _from_cursor(ranges, cursor):
            offset = at.start
            while offset < at.end:
                looked = await self._look(found, at._replace(start=offset), wanted, has_redriven=has_redriven)
                messages += looked.messages[: limit - len(messages)]
                next_offset = looked.next_offset
                is_full = len(messages) >= limit
                if is_full:
                    next_offset = messages[-1].offset + 1
                scanned, offset = scanned + next_offset - offset, next_offset
                if is_full or scanned >= SCAN_MESSAGES_MAX:
                    is_over = offset >= at.end and at.partition == ranges[-1].partition
                    return DeadMessagePage(
                        name, messages, None if is_over else f"{at.partition}:{offset}", scanned, total
                    )
        return DeadMessagePage(name, messages, None, scanned, total)

    async def reasons(
        self, topic: str, wanted: DeadLetterFilter | None = None, *, scan_max: int = SCAN_ALL_MAX
    ) -> ReasonGroups:
        """What dead letters died of, those that are still dead."""
        name = await self._topic_for(topic, wanted.group if wanted is not None else None)
        found = self._ports.metadata.topics.get(name)
        if found is None:
            return ReasonGroups(name, [], 0, 0, is_complete=True)
        ranges = await self._ranges(found)
        groups: dict[str, ReasonGroup] = {}
        scanned = 0
        is_complete = True
        async for looked, advanced in self._scan(found, ranges, _of_topic(wanted, topic, name)):
            scanned += advanced
            for message in looked.messages:
                reason = message.origin.reason or ""
                known = groups.get(reason)
                if known is not None:
                    groups[reason] = _joined(known, message)
                elif len(groups) < _REASONS_MAX:
                    groups[reason] = ReasonGroup(reason, 1, message.died_ms, message.died_ms, message)
                else:
                    is_complete = False
            if scanned >= scan_max:
                is_complete = False
                break
        told = sorted(groups.values(), key=lambda each: (-each.messages, each.reason))
        return ReasonGroups(name, told, scanned, sum(at.end - at.start for at in ranges), is_complete)

    async def get(self, topic: str, partition: int, offset: int, *, group: str | None = None) -> DeadMessage:
        """One dead letter, by its place in the dead-letter topic; that of a group, if it has its own."""
        name = await self._topic_for(topic, group)
        found = self._ports.metadata.topics.get(name)
        if found is not None and 0 <= partition < len(found.partitions):
            wanted = _of_topic(DeadLetterFilter(places=[(partition, offset)]), topic, name)
            for at in await self._ranges(found):
                if at.partition == partition and at.start <= offset < at.end:
                    looked = await self._look(found, _Range(partition, offset, offset + 1), wanted, has_redriven=True)
                    if looked.messages:
                        return looked.messages[0]
        raise DeadLetterNotFound(f"There is no dead letter of {topic!r} at {name}-{partition}, offset {offset}.")

    async def count(self, topic: str) -> DeadCount:
        """How many there are; about, because it does not look into them."""
        name = self.topic_of(topic)
        found = self._ports.metadata.topics.get(name)
        if found is None:
            return DeadCount(name, 0, 0)
        ranges = await self._ranges(found)
        marks = await asyncio.gather(
            *(self._redrives.marks(name, str(found.topic_id), at.partition, at.start, at.end - 1) for at in ranges)
        )
        redriven = sum(last - first + 1 for spans in marks for first, last in spans)
        return DeadCount(name, sum(at.end - at.start for at in ranges), redriven)

    async def _ranges(self, topic: Topic) -> list[_Range]:
        """From where to where each partition can be read. One without a leader is an error: silence would lie."""
        places = [(topic.name, index) for index in range(len(topic.partitions))]
        extents = await self._ports.partitions.extents(places)
        ranges: list[_Range] = []
        for name, index in places:
            extent = extents.get((name, index))
            if extent is None:
                start = await self._ports.partitions.locate(name, index, "earliest")
                end = await self._ports.partitions.locate(name, index, "latest")
            else:
                start, end = extent.log_start_offset, extent.last_stable_offset
            ranges.append(_Range(index, start, max(start, end)))
        return ranges

    async def _look(self, topic: Topic, at: _Range, wanted: DeadLetterFilter, *, has_redriven: bool) -> ScannedMessages:
        looked = await scan(self._ports, topic.name, at.partition, at.start, at.end, wanted)
        if not looked.messages:
            return looked
        first, last = looked.messages[0].offset, looked.messages[-1].offset
        done = IntervalSet()
        for span in await self._redrives.marks(topic.name, str(topic.topic_id), at.partition, first, last):
            done.add(*span)
        told = [each._replace(is_redriven=done.covers(each.offset, each.offset)) for each in looked.messages]
        return looked._replace(messages=[each for each in told if has_redriven or not each.is_redriven])

    async def _scan(
        self, topic: Topic, ranges: list[_Range], wanted: DeadLetterFilter
    ) -> AsyncIterator[tuple[ScannedMessages, int]]:
        """All that is still dead and meant, look by look, and by how much each of them came further."""
        for at in ranges:
            offset = at.start
            while offset < at.end:
                looked = await self._look(topic, at._replace(start=offset), wanted, has_redriven=False)
                yield looked, looked.next_offset - offset
                offset = looked.next_offset

    # -- sending back -------------------------------------------------------------------------------------------------

    async def rehearse(
        self, topic: str, wanted: DeadLetterFilter | None = None, *, target: str | None = None
    ) -> RedrivePreview:
        """What a redrive would do; nothing is changed."""
        name = await self._topic_for(topic, wanted.group if wanted is not None else None)
        found = self._check_target(name, target)
        counts: dict[str, int] = {}
        samples: list[DeadMessage] = []
        matched = scanned = stranded = 0
        is_complete = True
        route = RedriveRoute(self._ports, name, target)
        if found is not None:
            async for looked, advanced in self._scan(found, await self._ranges(found), _of_topic(wanted, topic, name)):
                scanned += advanced
                matched += len(looked.messages)
                samples += looked.messages[: _SAMPLES - len(samples)]
                for message in looked.messages:
                    try:
                        to, _ = route.of(message)
                    except PenstockError:
                        stranded += 1
                    else:
                        counts[to] = counts.get(to, 0) + 1
                if scanned >= SCAN_ALL_MAX:
                    is_complete = False
                    break
        return RedrivePreview(name, matched, scanned, counts, stranded, samples, is_complete)

    async def redrive(
        self,
        topic: str,
        wanted: DeadLetterFilter | None = None,
        *,
        by: str = "",
        target: str | None = None,
        rate: float | None = None,
        limit: int | None = None,
    ) -> RedriveJob:
        """Begin to send dead letters back, those that are there now. `redrives` tells how far it is."""
        name = await self._topic_for(topic, wanted.group if wanted is not None else None)
        if rate is not None and not 0 < rate <= REDRIVE_RATE_MAX:
            raise InvalidRequest(
                f"A rate is more than 0 and at most {REDRIVE_RATE_MAX:g} messages a second, not {rate}."
            )
        if limit is not None and limit < 1:
            raise InvalidRequest(f"A limit is 1 or more, not {limit}.")
        found = self._check_target(name, target)
        if found is None:
            raise DeadLetterNotFound(f"{topic!r} has no dead letters: there is no topic {name!r}.")
        job = RedriveJob(
            id=self._ports.new_id().hex[:12],
            topic=topic,
            dead_letters=name,
            topic_id=str(found.topic_id),
            by=by,
            filter=_of_topic(wanted, topic, name),
            target=target,
            rate=rate,
            limit=limit,
            ends={at.partition: at.end for at in await self._ranges(found)},
            opened_ms=0,
        )
        return await self._redrives.open(job)

    def _check_target(self, name: str, target: str | None) -> Topic | None:
        if target is not None:
            if target == name:
                raise InvalidRequest(f"{target!r} holds these dead letters; name another topic.")
            if is_internal(target):
                raise InvalidRequest(f"{target!r} holds the broker's own state; name another topic.")
            self._ports.metadata.topic(target)
        return self._ports.metadata.topics.get(name)

    async def redrives(self, topic: str, *, group: str | None = None) -> list[RedriveJob]:
        """Every redrive of a topic's dead letters that is remembered, the oldest first."""
        name = await self._topic_for(topic, group)
        return [job for job in await self._redrives.jobs(name) if topic in (job.topic, name)]

    async def cancel(self, topic: str, job: str, *, group: str | None = None) -> RedriveJob:
        """Stop a redrive; what it has begun is brought to its end first."""
        return await self._redrives.cancel(await self._topic_for(topic, group), job)


def _of_topic(wanted: DeadLetterFilter | None, topic: str, name: str) -> DeadLetterFilter:
    """Several topics may share their dead letters, and then each is asked for its own."""
    return msgspec.structs.replace(wanted or DeadLetterFilter(), topic=None if topic == name else topic)


def _from_cursor(ranges: list[_Range], cursor: str | None) -> list[_Range]:
    if cursor is None:
        return ranges
    partition, _, offset = cursor.partition(":")
    if not (partition.isdecimal() and offset.isdecimal() and len(cursor) <= 32 and cursor.isascii()):
        raise InvalidRequest(f"{cursor!r} is no cursor; take it from the page before.")
    begun = (at._replace(start=max(at.start, int(offset))) if at.partition == int(partition) else at for at in ranges)
    return [at for at in begun if at.partition >= int(partition)]


def _joined(known: ReasonGroup, message: DeadMessage) -> ReasonGroup:
    return known._replace(
        messages=known.messages + 1,
        first_ms=min(known.first_ms, message.died_ms),
        last_ms=max(known.last_ms, message.died_ms),
    )
