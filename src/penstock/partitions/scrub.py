"""The scrub: everything on this node's disk is read again now and then, so that damage is found while others have it.

A sealed segment is due when it came with the disk and was never checked in this life, and again an interval after each
check. Rounds go through all replicas in turn, no faster than the settings allow, so that clients do not notice. What is
found is noted in the segment, and dealt with as if a reader had met it: see `penstock.partitions.replication.damaged`.
The only copy there is stays as it is; it is reported.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from penstock.clock import Clock
from penstock.config.settings import ScrubSettings
from penstock.errors import PenstockError
from penstock.partitions.partition import Partition
from penstock.partitions.replicas import Replicas
from penstock.partitions.stats import ScrubStats
from penstock.partitions.throttle import Throttle
from penstock.storage.scrubbing import SegmentCheck
from penstock.storage.segment import Segment

log = logging.getLogger(__name__)

_PART_BYTES: Final = 1 << 20
_LOOK_MIN_S: Final = 0.5
_LOOK_MAX_S: Final = 10.0
_LOOKS_IN_INTERVAL: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubProgress:
    """How far the scrub of one node is. A round looks at everything that is due when its turn comes."""

    is_on: bool
    is_running: bool
    round: int  # the one under way, or the last one
    completed_round: int  # 0 before the first
    completed_at_ms: int | None
    stats: ScrubStats


class Scrub:
    """Checks what this node keeps. `run` it on the loop until `stop`."""

    def __init__(self, replicas: Replicas, config: ScrubSettings, clock: Clock, stats: ScrubStats) -> None:
        self._replicas = replicas
        self._config = config
        self._clock = clock
        self._stats = stats
        self._interval_s = config.interval_ms / 1000
        self._throttle = Throttle(config.bytes_per_second, clock.monotonic())
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._round = 0
        self._asked_round = 0  # up to this one, every segment is due
        self._completed_round = 0
        self._completed_at_ms: int | None = None

    @property
    def progress(self) -> ScrubProgress:
        return ScrubProgress(
            is_on=self._interval_s > 0,
            is_running=self._round > self._completed_round,
            round=self._round,
            completed_round=self._completed_round,
            completed_at_ms=self._completed_at_ms,
            stats=self._stats,
        )

    def ask(self) -> int:
        """Have everything checked now, whatever was checked before; the round that will have done so."""
        self._asked_round = self._round + 1
        self._wake.set()
        return self._asked_round

    async def run(self) -> None:
        """Look for work until `stop`."""
        while not self._is_stopping:
            await self._pause(min(max(self._interval_s / _LOOKS_IN_INTERVAL, _LOOK_MIN_S), _LOOK_MAX_S))
            if not self._is_stopping and (self._interval_s > 0 or self._asked_round > self._round):
                await self.go_round()

    def stop(self) -> None:
        """Begin nothing new; `run` returns when the part under way is checked."""
        self._is_stopping = True
        self._wake.set()

    async def _pause(self, seconds: float) -> None:
        if self._asked_round > self._round or self._is_stopping:
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def go_round(self) -> None:
        """Check every segment that is due, of every replica here."""
        self._round += 1
        is_asked = self._asked_round >= self._round
        for partition in self._replicas:
            for segment in self._due(partition, is_asked=is_asked):
                await self._check(partition, segment)
                if self._is_stopping:
                    return
            await asyncio.sleep(0)
        self._completed_round = self._round
        self._completed_at_ms = self._clock.now_ms()

    def _due(self, partition: Partition, *, is_asked: bool) -> list[Segment]:
        now = self._clock.monotonic()
        settled = partition.log.settled_segments
        due = [segment for segment in settled if is_asked or self._is_due(segment, now)]
        active = partition.log.segments[-1]
        if active.scrubbed_at is None and active.is_suspect:
            due.append(active)  # it was there when the log was opened: what is written since is not touched
        return due

    def _is_due(self, segment: Segment, now: float) -> bool:
        if segment.scrubbed_at is None:
            if segment.is_suspect:
                return True
            segment.scrubbed_at = now  # this process wrote it itself, or has just checked it
        return now - segment.scrubbed_at >= self._interval_s

    async def _check(self, partition: Partition, segment: Segment) -> None:
        held = partition.log
        check = SegmentCheck(held.files, segment, is_settled=segment.is_sealed and segment in held.settled_segments)
        while not check.is_done:
            while (wait_s := self._throttle.wait_s(self._clock.monotonic())) > 0 and not self._is_stopping:
                await self._rest(wait_s)
            if self._is_stopping:
                return
            async with self._replicas.upkeep(partition):
                if held.is_released or segment not in held.segments:
                    return  # it went, or was opened anew: then a later round sees to it
                try:
                    read_bytes = await asyncio.to_thread(check.step, _PART_BYTES)
                except PenstockError as error:
                    self._on_unreadable(partition, segment, error)
                    return
            self._throttle.take(read_bytes)
            self._stats.bytes += read_bytes
        self._on_checked(partition, check)

    async def _rest(self, seconds: float) -> None:
        """Keep to the rate, but not when the node stops."""
        try:
            async with asyncio.timeout(seconds):
                while not self._is_stopping:
                    await self._wake.wait()
                    self._wake.clear()
        except TimeoutError:
            return

    def _on_checked(self, partition: Partition, check: SegmentCheck) -> None:
        check.segment.scrubbed_at = self._clock.monotonic()
        self._stats.segments += 1
        if check.has_repaired_index:
            self._stats.indexes_repaired += 1
            log.warning("The index of %r of %s was damaged and is written anew.", check.segment, partition.id)
        if check.has_found_damage:
            self._stats.damaged += 1
            log.error("The scrub found damage in %r of %s, which no reader had met.", check.segment, partition.id)

    def _on_unreadable(self, partition: Partition, segment: Segment, error: PenstockError) -> None:
        segment.scrubbed_at = self._clock.monotonic()
        self._stats.unreadable += 1
        log.error("%r of %s could not be checked: %s", segment, partition.id, error.message)
