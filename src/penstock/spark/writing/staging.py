"""What one attempt of a task writes: sent in pieces while the next ones are made, and unseen until it is committed.

An attempt is a writer of the transaction of its batch. The driver commits it, in another process and after this one has
gone, and names the writers that count. Batches are numbered, so a call whose answer was lost is sent again. Batches of
one partition follow one another on one connection; partitions are spread over a few.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import Any, Final, NamedTuple

from penstock.api.messages import CreateProducer, PublishBatches
from penstock.api.series import BeginNumber
from penstock.api.transactions import ExtendTransaction
from penstock.client.calls import error_named, unpacked
from penstock.client.publishing import PartitionCounts
from penstock.client.transport import Backoff
from penstock.errors import PenstockError, UnexpectedAnswer
from penstock.spark.writing.encoding import EncodedBatch, Numbering
from penstock.spark.writing.options import SinkOptions

_CALL_BYTES: Final = 4 * 1024 * 1024
_UNDERWAY_BYTES: Final = 24 * 1024 * 1024
_LANES: Final = 3
_RENEWALS: Final = 3  # in the time of a transaction
# As many as a partition remembers of a producer: so a call that is sent again is told of each where it is, once that is
# committed, and never just that it was there before.
_BATCHES_A_CALL: Final = 5


class WriteClaim(NamedTuple):
    """Which batch of which query, or which write, this is, and in which run of it."""

    series: str
    number: int
    run: str


class Attempt:
    """An attempt of a task that writes into a topic or several. ``claim`` is None where nothing is staged."""

    def __init__(self, options: SinkOptions, claim: WriteClaim | None, writer: str) -> None:
        self._options = options
        self._claim = claim
        self._writer = writer
        self._way = options.way()
        self._topics = PartitionCounts(self._way.transport)
        self._counts: dict[str, int] = {}
        self._lanes = [asyncio.Lock() for _ in range(_LANES)]
        self._underway: deque[tuple[Future[None], int]] = deque()
        self._underway_bytes = 0
        self._failure: BaseException | None = None
        self._renewing: Future[None] | None = None
        self.transaction: str | None = None
        self.is_done = False  # this batch is committed already
        self.numbering: Numbering | None = None

    @property
    def writer(self) -> str:
        return self._writer

    def begin(self) -> Numbering | None:
        """Become a writer, on first use; None if the batch is committed already, so that there is nothing to write."""
        if self.numbering is None and not self.is_done:
            self._begin()
        return self.numbering

    def _begin(self) -> None:
        transport, claim = self._way.transport, self._claim
        if claim is None:
            made = self._way.portal.call(transport.call(CreateProducer()))
            self.numbering = Numbering(made.producer_id, made.producer_epoch, is_transactional=False)
            return
        timeout_ms = int(self._options.staging_timeout_s * 1000)
        request = BeginNumber(**claim._asdict(), writer=self._writer, timeout_ms=timeout_ms)
        begun = self._way.portal.call(transport.call(request))
        if begun.transaction is None or begun.producer_id is None or begun.producer_epoch is None:
            self.is_done = True
            return
        self.transaction = begun.transaction
        self.numbering = Numbering(begun.producer_id, begun.producer_epoch, is_transactional=True)
        self._renewing = self._way.portal.submit(self._renew(begun.transaction))

    async def _renew(self, transaction: str) -> None:
        """Keep the transaction open while this attempt runs."""
        while True:
            await asyncio.sleep(self._options.staging_timeout_s / _RENEWALS)
            try:
                await self._way.transport.call(ExtendTransaction(transaction=transaction))
            except PenstockError:
                continue  # what is sent next tells, if it was for good

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; it is made if the cluster does so."""
        found = self._counts.get(topic)
        if found is None:
            found = self._counts[topic] = self._way.portal.call(self._topics.ensure(topic))
        return found

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, topic: str, batches: Iterable[EncodedBatch]) -> None:
        """Send batches, in their order for each partition; returns as soon as there is room for more."""
        for lane, some in groupby(batches, lambda batch: batch.partition % _LANES):
            piece: list[EncodedBatch] = []
            size = 0
            for batch in some:
                is_full = len(piece) >= _BATCHES_A_CALL and piece[-_BATCHES_A_CALL].partition == batch.partition
                if is_full or (piece and size + len(batch.data) > _CALL_BYTES):
                    self._submit(topic, lane, piece, size)
                    piece, size = [], 0
                piece.append(batch)
                size += len(batch.data)
            self._submit(topic, lane, piece, size)

    def _submit(self, topic: str, lane: int, batches: Sequence[EncodedBatch], size: int) -> None:
        while self._underway and self._underway_bytes + size > _UNDERWAY_BYTES:
            self._settle_first()
        self._underway.append((self._way.portal.submit(self._send(topic, lane, batches)), size))
        self._underway_bytes += size

    def _settle_first(self) -> None:
        future, size = self._underway.popleft()
        self._underway_bytes -= size
        future.result()

    async def _send(self, topic: str, lane: int, batches: Sequence[EncodedBatch]) -> None:
        async with self._lanes[lane]:  # first come, first served
            if self._failure is not None:
                raise self._failure  # those behind one that is missing would be refused
            try:
                await self._call(topic, batches)
            except BaseException as error:
                self._failure = error
                raise

    async def _call(self, topic: str, batches: Sequence[EncodedBatch]) -> None:
        request = PublishBatches(
            topic=topic,
            batches=list(batches),  # type: ignore[arg-type]  # views of memory are sent as they are
            transaction=self.transaction,
            writer=None if self.transaction is None else self._writer,
        )
        loop = asyncio.get_running_loop()
        deadline, backoff = loop.time() + self._options.timeout_s, Backoff()
        while True:
            answer = await self._way.transport.call_packed(request)
            error = _first_error(unpacked(answer.body, list[tuple[Any, ...]]), len(batches))
            if error is None:
                return
            pause_s = backoff.next()
            if not error.retriable or loop.time() + pause_s > deadline:
                raise error
            await asyncio.sleep(pause_s)

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Return when everything that was sent is stored."""
        try:
            while self._underway:
                self._settle_first()
        finally:
            self.close()

    def close(self) -> None:
        """Send nothing any more. What was staged is aborted by a commit without it, or when it times out."""
        if self._renewing is not None:
            self._renewing.cancel()
        for future, _ in self._underway:
            future.cancel()
        self._underway.clear()


def _first_error(results: Sequence[tuple[Any, ...]], count: int) -> PenstockError | None:
    """What kept the first batch that is not stored from being so."""
    if len(results) != count:
        raise UnexpectedAnswer(f"A node answers for {len(results)} batches where {count} were sent.")
    for result in results:
        if result[0] == -1:
            return error_named(str(result[1]), str(result[2]))
    return None
