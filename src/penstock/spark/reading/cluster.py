"""The cluster as the source asks it: how far topics reach, batches of a partition, and a group's progress.

Calls are tried again by the transport until its time is up, so a node that restarts is only waited for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

import msgspec

from penstock.api.groups import FindOffsets, KnownOffset, OffsetsAnswer, ReportedOffset, ReportOffsets, TopicEnds
from penstock.api.limits import TIMESTAMPS_MAX
from penstock.api.messages import ReadBatches
from penstock.client.calls import unpacked
from penstock.errors import InvalidConfig, LeaderNotAvailable, NodesUnreachable, PenstockError, UnknownTopic
from penstock.spark.connection import refuse_kafka
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.plan import PartitionReach, Reaches, ReadSpan, StreamPosition, TopicReach

log = logging.getLogger(__name__)

FETCH_BYTES: Final = 4 * 1024 * 1024  # larger answers cost both ends more, in fresh pages of memory
_FETCH_BYTES_MIN: Final = 256 * 1024
_SLACK: Final = 1.3  # messages of a span may be larger than others
_PAUSE_SECONDS: Final = 0.1


class FetchedBatches(NamedTuple):
    """Batches of a partition, and the offset to go on from."""

    next_offset: int
    data: memoryview


class Cluster:
    """The nodes that a source's options name."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._portal, self._transport = options.way()
        self._passed_over: dict[tuple[str, int], int] = {}

    # -- how far topics reach -----------------------------------------------------------------------------------------

    def reaches(
        self, *, known: StreamPosition | None = None, wait_ms: int = 0, instants: Iterable[int] = ()
    ) -> Reaches:
        """How far the source's topics reach now; with ``known``, once there is more than that.

        It is one call, unless so many instants have to be looked up that it takes more.
        """
        wanted = sorted(instants)
        found = self._reaches(known, wait_ms, wanted[:TIMESTAMPS_MAX])
        for begin in range(TIMESTAMPS_MAX, len(wanted), TIMESTAMPS_MAX):
            found = _with_located(found, self._reaches(None, 0, wanted[begin : begin + TIMESTAMPS_MAX]))
        return found

    def _reaches(self, known: StreamPosition | None, wait_ms: int, timestamps_ms: Sequence[int]) -> Reaches:
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            answer = self._ask(known, wait_ms, timestamps_ms)
            lost = [
                f"{topic.topic}-{at.partition}"
                for topic in answer.topics
                for at in topic.partitions
                if at.log_end_offset is None
            ]
            if not lost:
                return {topic.topic: self._reach(topic, timestamps_ms) for topic in answer.topics}
            if time.monotonic() >= deadline:
                raise LeaderNotAvailable(
                    f"{', '.join(lost)} cannot be reached: no leader answered within {self._options.timeout_s:g} s."
                )
            time.sleep(_PAUSE_SECONDS)

    def _ask(self, known: StreamPosition | None, wait_ms: int, timestamps_ms: Sequence[int]) -> OffsetsAnswer:
        options = self._options
        request = FindOffsets(topics=list(options.topics), pattern=options.pattern, timestamps_ms=list(timestamps_ms))
        if wait_ms and known is not None:
            offsets = [
                KnownOffset(topic=topic, partition=index, offset=offset)
                for (topic, index), offset in (*known.items(), *self._passed_over.items())
            ]
            request = msgspec.structs.replace(request, wait_ms=wait_ms, known=offsets)
        refuse_kafka(options.servers if known is None else ())
        try:
            answer = self._portal.call(self._transport.call(request))
        except NodesUnreachable:
            refuse_kafka(options.servers, is_any_port=True)
            raise
        if known is None and answer.missing:
            names = ", ".join(answer.missing)
            raise UnknownTopic(f"There is no topic {names}. Create it, or check the option `topics`.")
        return answer if options.assigned is None else self._pass_over(answer, options.assigned)

    def _pass_over(self, answer: OffsetsAnswer, assigned: Mapping[str, frozenset[int]]) -> OffsetsAnswer:
        """Leave out partitions that are not assigned, and remember how far they are: they are no news."""
        kept: list[TopicEnds] = []
        for topic in answer.topics:
            wanted = assigned[topic.topic]
            missing = wanted - {at.partition for at in topic.partitions}
            if missing:
                count = len(topic.partitions)
                raise InvalidConfig(
                    f"Option 'assign' names {topic.topic}-{min(missing)}, but {topic.topic!r} has {count} partitions."
                )
            others = [at for at in topic.partitions if at.partition not in wanted]
            self._passed_over |= {(topic.topic, at.partition): at.log_end_offset or 0 for at in others}
            mine = [at for at in topic.partitions if at.partition in wanted]
            kept.append(msgspec.structs.replace(topic, partitions=mine))
        return msgspec.structs.replace(answer, topics=kept)

    def _reach(self, topic: TopicEnds, timestamps_ms: Sequence[int]) -> TopicReach:
        is_committed_only = self._options.isolation == "read_committed"
        return TopicReach(
            topic.topic_id,
            {
                at.partition: PartitionReach(
                    at.log_start_offset or 0,
                    (at.last_stable_offset if is_committed_only else at.high_watermark) or 0,
                    at.log_end_offset or 0,
                    at.size_bytes or 0,
                    dict(zip(timestamps_ms, at.located, strict=True)),
                )
                for at in topic.partitions
            },
        )

    # -- batches ------------------------------------------------------------------------------------------------------

    def fetch(self, span: ReadSpan, offset: int, *, skips_damage: bool = False) -> Future[FetchedBatches]:
        """Ask for the batches of a span from ``offset`` on; the answer comes by itself."""
        return self._portal.submit(self._fetch(span, offset, skips_damage))

    async def _fetch(self, span: ReadSpan, offset: int, skips_damage: bool) -> FetchedBatches:
        request = ReadBatches(
            topic=span.topic,
            partition=span.partition,
            offset=offset,
            max_bytes=_bytes_for(span, offset),
            isolation=self._options.isolation,
            topic_id=span.topic_id,
            skip_damage=skips_damage,
        )
        answer = await self._transport.call_packed(request)
        _, next_offset, _, _, _, data = unpacked(answer.body, tuple[str, int, int, int, int, memoryview])
        return FetchedBatches(next_offset, data)

    def begin_of(self, span: ReadSpan) -> int | None:
        """Where the span's partition begins now; None if the topic is gone or another one."""
        answer = self._portal.call(self._transport.call(FindOffsets(topics=[span.topic])))
        for topic in answer.topics:
            for at in topic.partitions:
                if topic.topic_id == span.topic_id and at.partition == span.partition:
                    return at.log_start_offset
        return None

    # -- progress -----------------------------------------------------------------------------------------------------

    def report(self, group: str, position: StreamPosition) -> None:
        """Report how far a query got, without waiting for the answer: no work depends on it."""
        offsets = [
            ReportedOffset(
                topic=topic,
                partition=index,
                offset=offset,
                topic_id=position.topics[topic].topic_id,
                metadata="spark",  # by which lists of groups tell what this one is
            )
            for (topic, index), offset in position.items()
        ]
        if offsets:
            self._portal.submit(self._report(group, offsets))

    async def _report(self, group: str, offsets: list[ReportedOffset]) -> None:
        try:
            await self._transport.call(ReportOffsets(group=group, offsets=offsets))
        except PenstockError as error:
            log.warning("The progress of group %r could not be reported: %s", group, error.message)


def _with_located(found: Reaches, more: Reaches) -> Reaches:
    """The same with what else was looked up. Topics that changed between two calls have to be asked for again."""
    together: dict[str, TopicReach] = {}
    for name, topic in found.items():
        other = more.get(name)
        if other is None or other.topic_id != topic.topic_id or not topic.partitions.keys() <= other.partitions.keys():
            raise LeaderNotAvailable(f"Topic {name!r} was changed while its offsets were looked up; try again.")
        together[name] = TopicReach(
            topic.topic_id,
            {
                index: reach._replace(located={**reach.located, **other.partitions[index].located})
                for index, reach in topic.partitions.items()
            },
        )
    return together


def _bytes_for(span: ReadSpan, offset: int) -> int:
    """How much to ask for: what is behind the span would be thrown away."""
    if not span.message_bytes:
        return FETCH_BYTES
    expected = int((span.end - offset) * span.message_bytes * _SLACK)
    return min(max(expected, _FETCH_BYTES_MIN), FETCH_BYTES)
