"""The audit log as a topic: events wait in memory for a moment, and are appended to ``__audit`` in small batches.

Noting an event never waits. What does not fit into the queue is counted in ``dropped`` instead of holding a request up.
An append whose outcome is unknown is repeated, so that an event may be there twice and is not missing. The topic is
made with the first event, has one partition so that events keep their order, and is closed to clients; they read it by
the operation `read_audit`. Format: docs/formats/audit.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.consensus.commands import ConfigureTopic
from penstock.errors import CorruptRecords, PenstockError
from penstock.features.access.audit import AuditEvent
from penstock.machines.ports import Ports
from penstock.model import AUDIT_TOPIC
from penstock.records import Record, decode_records, encode_batch, iter_batches

log = logging.getLogger(__name__)

PARTITIONS: Final = 1
RETENTION: Final = "retention.ms"
WAITING_MAX: Final = 10_000  # events, of about 300 bytes each
SCANNED_MAX: Final = 20_000  # events that one call looks at, which takes a fraction of a second
_BATCH_EVENTS: Final = 500
_GATHER_SECONDS: Final = 0.1  # for which events wait for others, to be written together
_PAUSE_SECONDS: Final = 1.0  # after an append that failed
_FLUSH_SECONDS: Final = 2.0  # for what waits when the node stops
_COMMIT_TIMEOUT_MS: Final = 30_000
_READ_BYTES: Final = 1024 * 1024
_SEGMENT_BYTES: Final = 8 * 1024 * 1024

_encode: Final = msgspec.json.Encoder().encode
_events: Final = msgspec.json.Decoder(AuditEvent)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which events are wanted; None: whatever it is."""

    principal: str | None = None
    decision: str | None = None
    since_ms: int | None = None

    def is_in_time(self, event: AuditEvent) -> bool:
        return self.since_ms is None or event.time_ms >= self.since_ms

    def fits(self, event: AuditEvent) -> bool:
        return (
            self.principal in (None, event.principal)
            and self.decision in (None, event.decision)
            and self.is_in_time(event)
        )


@dataclass(frozen=True, slots=True)
class FoundEvents:
    """Events, the newest first; ``scanned`` of ``total`` were looked at."""

    events: list[AuditEvent]
    scanned: int
    total: int


class AuditTopic:
    """Writes events of this node, and reads those of all."""

    def __init__(self, ports: Ports, retention_ms: int) -> None:
        self._ports = ports
        self._configs = {
            "cleanup.policy": "delete",
            RETENTION: str(retention_ms),
            "segment.bytes": str(_SEGMENT_BYTES),
        }
        self._waiting: deque[AuditEvent] = deque()
        self._has_some = asyncio.Event()
        self._has_none = asyncio.Event()
        self._has_none.set()
        self._is_stopping = False
        self._is_ensured = False
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<AuditTopic, {len(self._waiting)} waiting, {self.dropped} dropped>"

    def add(self, event: AuditEvent) -> None:
        """Have an event written soon."""
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
            return
        self._waiting.append(event)
        self._has_none.clear()
        self._has_some.set()

    # -- writing ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = self._ports.supervision.start("the audit log", self._run)

    async def flush(self) -> None:
        """Return when what waits now is written, or after a moment; for a node that is about to hand over its logs."""
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._has_none.wait()
        except TimeoutError:
            log.warning("%d audit events still wait to be written.", len(self._waiting))

    async def stop(self) -> None:
        """Write what waits; not for long, because a cluster that takes no writes must not keep a node from stopping."""
        self._is_stopping = True
        self._has_some.set()
        if self._task is None:
            return
        done, _ = await asyncio.wait((self._task,), timeout=_FLUSH_SECONDS)
        if not done:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._waiting:
            self.dropped += len(self._waiting)
            log.warning("%d audit events could not be written before the node stopped.", len(self._waiting))
            self._waiting.clear()

    async def _run(self) -> None:
        while True:
            await self._has_some.wait()
            self._has_some.clear()
            if not self._is_stopping:
                await asyncio.sleep(_GATHER_SECONDS)
            while self._waiting:
                try:
                    await self._write_some()
                except PenstockError as error:
                    self._is_ensured = False
                    log.warning("Audit events wait, because they cannot be written now: %s", error.message)
                    await asyncio.sleep(_PAUSE_SECONDS)
            self._has_none.set()
            if self._is_stopping:
                return

    async def _write_some(self) -> None:
        await self._ensure()
        events = [self._waiting[at] for at in range(min(len(self._waiting), _BATCH_EVENTS))]
        records = [Record(at, event.time_ms, None, _encode(event), ()) for at, event in enumerate(events)]
        await self._ports.partitions.append(
            AUDIT_TOPIC, 0, encode_batch(records), timeout_ms=_COMMIT_TIMEOUT_MS, is_internal=True
        )
        for _ in events:
            self._waiting.popleft()

    async def _ensure(self) -> None:
        """Have the topic, with the retention that this node's settings say."""
        if self._is_ensured:
            return
        topic = await self._ports.topics.ensure_internal(AUDIT_TOPIC, self._configs)
        retention_ms = self._configs[RETENTION]
        if topic.configs.get(RETENTION) != retention_ms:
            await self._ports.topics.command(ConfigureTopic(name=AUDIT_TOPIC, changes={RETENTION: retention_ms}))
        self._is_ensured = True

    # -- reading ------------------------------------------------------------------------------------------------------

    async def find(self, wanted: AuditFilter, limit: int) -> FoundEvents:
        """The newest events that are wanted. At most `SCANNED_MAX` are looked at, from the newest on."""
        topic = self._ports.metadata.topics.get(AUDIT_TOPIC)
        if topic is None:
            return FoundEvents([], 0, 0)
        await self._ports.topics.opened(topic)
        start = await self._ports.partitions.locate(AUDIT_TOPIC, 0, "earliest")
        end = await self._ports.partitions.locate(AUDIT_TOPIC, 0, "latest")
        found: list[AuditEvent] = []
        scanned, position = 0, end
        while start < position and scanned < SCANNED_MAX:
            first = max(start, position - _BATCH_EVENTS)
            events = await self._between(first, position)
            for event in reversed(events):
                scanned += 1
                if wanted.fits(event):
                    found.append(event)
                    if len(found) == limit:
                        return FoundEvents(found, scanned, end - start)
            # Nodes write in turns, so a single event may be older than the one before it.
            if not any(map(wanted.is_in_time, events)):
                break
            position = first
        return FoundEvents(found, scanned, end - start)

    async def _between(self, first: int, end: int) -> list[AuditEvent]:
        """The events from an offset on and before another, in their order."""
        events: list[AuditEvent] = []
        at = first
        while at < end:
            data = (await self._ports.partitions.read(AUDIT_TOPIC, 0, at, _READ_BYTES)).data
            read_to = at
            for position, header in iter_batches(data):
                read_to = header.next_offset
                batch = memoryview(data)[position : position + header.size]
                events += [_event_of(record) for record in decode_records(batch) if at <= record.offset < end]
            if read_to <= at:
                break  # trimmed meanwhile
            at = read_to
        return events


def _event_of(record: Record) -> AuditEvent:
    try:
        return _events.decode(record.value or b"")
    except msgspec.MsgspecError as error:
        raise CorruptRecords(f"Record {record.offset} of {AUDIT_TOPIC} is not an audit event: {error}") from error
