"""The messages that a queue hands out, wherever they are: in a partition led here, or for a moment elsewhere."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from penstock.broker.partition import Partition
from penstock.broker.queues.leading.cutting import DecodedBatches
from penstock.broker.queues.leading.kept import KeptBatches
from penstock.broker.remote import RemotePartitions, Where
from penstock.errors import LeaderNotAvailable
from penstock.records import parse_header
from penstock.records.header import HEADER_BYTES
from penstock.storage.aborted import AbortedTransaction

_MESSAGE_BYTES_GUESS: Final = 1_200


class Reach(NamedTuple):
    """What a partition holds that may be handed out: from the log's start up to the last stable offset."""

    start: int
    end: int


class Found(NamedTuple):
    """Batches as stored, and the aborted transactions among them."""

    data: bytes | memoryview
    aborted: list[AbortedTransaction]


class Source(Protocol):
    """The data of one partition."""

    where: Where
    message_bytes: int  # about how long messages are here, from what was read last
    decoded: DecodedBatches

    @property
    def known_end(self) -> int:
        """Up to where there was something to hand out when somebody looked last."""

    async def reach(self) -> Reach: ...

    def keep(self, base: int, last: int, batch: memoryview) -> None:
        """More of a batch will be wanted soon, from its first offset to its last."""

    async def written_ms(self, offset: int) -> int | None:
        """About when the message at an offset, or the first one behind it, was written."""

    async def read(self, offset: int, max_bytes: int) -> Found | None:
        """Whole batches from the one that holds ``offset`` or comes behind it; None if there are none yet."""


class LedSource:
    """A partition that is led here. Nothing in it ever waits."""

    def __init__(self, partition: Partition, decoded: DecodedBatches) -> None:
        self.partition = partition
        self.where: Where = (partition.id.topic, partition.id.partition)
        self.decoded = decoded
        self._kept = KeptBatches(decoded.room)
        self.message_bytes = _MESSAGE_BYTES_GUESS

    @property
    def known_end(self) -> int:
        return self.partition.last_stable_offset

    async def reach(self) -> Reach:
        return Reach(self.partition.log.start_offset, self.partition.last_stable_offset)

    async def read(self, offset: int, max_bytes: int) -> Found | None:
        partition = self.partition
        kept = self._kept.at(offset)
        if kept is not None and partition.is_leader:
            return Found(kept, [])
        found = partition.read(offset, max_bytes, is_committed_only=True)
        if found is None:
            return None
        return Found(found.read(), partition.aborted_in(offset, found.next_offset))

    def keep(self, base: int, last: int, batch: memoryview) -> None:
        self._kept.put(base, last, batch)

    async def written_ms(self, offset: int) -> int | None:
        found = self.partition.read(offset, 1, is_committed_only=True)
        if found is None:
            return None
        return parse_header(found.file.read(found.position, HEADER_BYTES)).base_timestamp


class RemoteSource:
    """A partition that another node leads, as happens for a moment when leaders change."""

    def __init__(self, topic: str, partition: int, remote: RemotePartitions, decoded: DecodedBatches) -> None:
        self.where: Where = (topic, partition)
        self.decoded = decoded
        self._remote = remote
        self.message_bytes = _MESSAGE_BYTES_GUESS
        self.known_end = 0

    async def reach(self) -> Reach:
        extent = (await self._remote.extents([self.where])).get(self.where)
        if extent is None:
            raise LeaderNotAvailable(f"{self.where[0]}-{self.where[1]} cannot be read now. Try again in a moment.")
        self.known_end = extent.last_stable_offset
        return Reach(extent.log_start_offset, extent.last_stable_offset)

    async def read(self, offset: int, max_bytes: int) -> Found | None:
        found = await self._remote.read(*self.where, offset, max_bytes)
        return Found(found.data, found.aborted) if found.data else None

    def keep(self, base: int, last: int, batch: memoryview) -> None:
        """It is only for a moment that messages come from elsewhere."""

    async def written_ms(self, offset: int) -> int | None:
        found = await self.read(offset, 1)
        return None if found is None else parse_header(found.data).base_timestamp

    async def await_more(self, wait_ms: int) -> None:
        """Return once there is more than was known, or after a while."""
        await self._remote.await_more({self.where: self.known_end}, wait_ms)
