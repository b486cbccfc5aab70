"""Publishing: messages go out in numbered batches, which are sent until they are safe, and written once.

One batch of a partition is in flight at a time. Messages that come meanwhile make the next batch, so batches grow with
the load; ``linger`` adds a moment for messages that no caller waits for one by one. Batches carry a producer id and
sequence numbers, so a batch that is sent again because its answer was lost is not written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple

from penstock.api.messages import CreateProducer, ProducerView, PublishBatches
from penstock.api.topics import DescribeTopic
from penstock.client.batching import (
    BatchContents,
    PartitionQueue,
    Pending,
    PendingCall,
    PendingMessage,
    PendingShare,
    PendingSlice,
    PendingValues,
    contents_of,
    slices_of,
)
from penstock.client.calls import call_of, error_named, unpacked
from penstock.client.connections import HttpAnswer, HttpConnection
from penstock.client.messages import Published
from penstock.client.transport import Backoff, Transport
from penstock.client.values import Outgoing
from penstock.clock import Clock
from penstock.errors import (
    ClientClosed,
    DuplicateSequence,
    InvalidProducerIdMapping,
    InvalidRequest,
    MessageTooLarge,
    OutOfOrderSequence,
    PenstockError,
    ProducerFenced,
    QuotaExceeded,
    UnexpectedAnswer,
    UnknownPartition,
    UnknownTopic,
)
from penstock.model import check_topic_name
from penstock.records import Codec, key_hash
from penstock.records.batch import Headers

_PARTITION_COUNT_SECONDS: Final = 60.0  # for how long a topic's number of partitions is remembered
_REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
_BATCH_OVERHEAD_BYTES: Final = 61
_SEQUENCES: Final = 1 << 31
# The cluster has forgotten this producer, or has other numbers for it: a new producer can begin from 0.
_IDENTITY_ERRORS: Final = (OutOfOrderSequence, ProducerFenced, DuplicateSequence, InvalidProducerIdMapping)
_RESULTS: Final = list[list[int | str]]  # one for each batch

CLOSED_IN_FLIGHT: Final = "The client was closed before the message was known to be safe; it may have been written."

# What became of a batch: its first offset and append time, or an error.
BatchOutcome = tuple[int, int] | PenstockError


class PartitionCounts:
    """How many partitions topics have, remembered for a while."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._counts: dict[str, tuple[int, float]] = {}

    def known(self, topic: str) -> int | None:
        """The number of partitions, if it is remembered."""
        found = self._counts.get(topic)
        if found is None or asyncio.get_running_loop().time() - found[1] > _PARTITION_COUNT_SECONDS:
            return None
        return found[0]

    def forget(self, topic: str) -> None:
        self._counts.pop(topic, None)

    async def partitions(self, topic: str) -> int:
        """The number of partitions, asked of a node; `UnknownTopic` if there is no such topic."""
        found = await self._transport.call(DescribeTopic(topic=check_topic_name(topic)))
        self._counts[topic] = found.partitions, asyncio.get_running_loop().time()
        return found.partitions

    async def ensure(self, topic: str) -> int:
        """The number of partitions of a topic to publish to, which is created if the cluster does so."""
        try:
            return await self.partitions(topic)
        except UnknownTopic:
            # Publishing nothing creates the topic, as publishing something would.
            await self._transport.call_packed(PublishBatches(topic=topic, batches=[]))
            return await self.partitions(topic)


class PublisherIdentity:
    """An identity for idempotent batches, and how many messages it has sent to each partition."""

    def __init__(self, identity: ProducerView) -> None:
        self.id = identity.producer_id
        self.epoch = identity.producer_epoch
        self.sequences: dict[tuple[str, int], int] = {}


class InFlightBatch:
    """A batch that is being sent."""

    __slots__ = ("contents", "data", "producer", "queue", "slices", "tries")

    def __init__(self, queue: PartitionQueue, slices: list[PendingSlice], contents: BatchContents) -> None:
        self.queue = queue
        self.slices = slices
        self.contents = contents
        self.data = bytearray()
        self.producer: PublisherIdentity | None = None
        self.tries = 0

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.slices)

    def can_be_split(self, error: PenstockError) -> bool:
        """Whether other messages of this refused batch may be accepted without the one at fault."""
        if isinstance(error, MessageTooLarge):
            return len(self.contents) > 1
        return isinstance(error, InvalidRequest) and len(self.slices) > 1

    def succeed(self, topic: str, base_offset: int, append_time_ms: int) -> None:
        """Tell the callers that their messages are safe."""
        published = self.contents.published(topic, self.queue.partition, base_offset, append_time_ms)
        at = 0
        for pending, begin, end, _ in self.slices:
            pending.succeed(begin, published if len(published) == end - begin else published[at : at + end - begin])
            at += end - begin

    def fail(self, error: PenstockError) -> None:
        """Tell the callers that their messages were refused, or that their fate is unknown."""
        for piece in self.slices:
            piece.pending.fail(error)


def outcomes_of(answer: HttpAnswer, count: int) -> list[BatchOutcome]:
    """What a node's answer says of each of the batches in a request."""
    results = unpacked(answer.body, _RESULTS)
    if len(results) != count:
        raise UnexpectedAnswer(f"{count} batches were sent, but the answer has {len(results)} results.")
    return [_outcome(result) for result in results]


def _outcome(result: list[int | str]) -> BatchOutcome:
    match result:
        case [int(base_offset), int(append_time_ms)]:
            return base_offset, append_time_ms
        case [_, str(code), str(message)]:
            return error_named(code, message)
    return UnexpectedAnswer(f"{result!r} is not a result for a batch.")


class PublishConfig(NamedTuple):
    """How to publish; see `AsyncClient`."""

    linger_s: float
    batch_bytes_max: int
    buffer_bytes_max: int
    timeout_s: float
    codec: Codec


class _TopicQueues:
    """What waits for the partitions of one topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.partitions: dict[int, PartitionQueue] = {}
        self.turn = 0  # messages without a key go to one partition until a batch of it is sent
        self.timer: asyncio.Handle | None = None
        self.is_urgent = False

    def partition(self, partition: int, bytes_max: int) -> PartitionQueue:
        found = self.partitions.get(partition)
        if found is None:
            found = self.partitions[partition] = PartitionQueue(partition, bytes_max)
        return found


class Publisher:
    """Sends messages; one for each client."""

    def __init__(self, transport: Transport, topics: PartitionCounts, clock: Clock, config: PublishConfig) -> None:
        self._transport = transport
        self._topics = topics
        self._clock = clock
        self._config = config
        self._batch_bytes = max(config.batch_bytes_max - _BATCH_OVERHEAD_BYTES, 1)
        self._by_topic: dict[str, _TopicQueues] = {}
        self._producer: PublisherIdentity | None = None
        self._identifying = asyncio.Lock()
        self._bytes_held = 0
        self._waiters: list[asyncio.Future[None]] = []  # until something is settled
        self._deliveries: set[asyncio.Task[None]] = set()
        self._in_flight: dict[InFlightBatch, HttpConnection] = {}
        self._is_closed = False

    # -- accepting messages -------------------------------------------------------------------------------------------

    async def send(
        self, topic: str, message: Outgoing, partition: int | None, pending: PendingMessage, *, is_urgent: bool
    ) -> None:
        """Take a message and return when there is room for it; its pending learns when it is safe."""
        queues, count = await self._queues_of(topic)
        queue = queues.partition(self._partition(queues, message.key, partition, count), self._batch_bytes)
        size = message.size
        await self._reserve(size)
        queue.add(PendingSlice(pending, 0, 1, size))
        self._schedule_send(queues, queue, is_urgent=is_urgent)

    async def send_values(
        self, topic: str, values: Sequence[bytes], partition: int | None, headers: Headers = ()
    ) -> Sequence[Published]:
        """Publish all of these, which have no keys and the same headers, and return when they are safe, in order."""
        if not values:
            return []
        queues, count = await self._queues_of(topic)
        call = PendingCall(len(values))
        queue = queues.partition(self._partition(queues, None, partition, count), self._batch_bytes)
        await self._enqueue(queues, queue, PendingValues(call, values, headers))
        return await call.future

    async def send_many(self, topic: str, messages: Sequence[Outgoing], partition: int | None) -> Sequence[Published]:
        """Publish all of these and return when they are safe, in order."""
        if not messages:
            return []
        queues, count = await self._queues_of(topic)
        call = PendingCall(len(messages))
        shares: dict[int, tuple[list[Outgoing], list[int]]] = {}
        for place, message in enumerate(messages):
            chosen = self._partition(queues, message.key, partition, count)
            share = shares.get(chosen)
            if share is None:
                share = shares[chosen] = ([], [])
            share[0].append(message)
            share[1].append(place)
        for chosen, (members, places) in shares.items():
            await self._enqueue(
                queues, queues.partition(chosen, self._batch_bytes), PendingShare(call, members, places)
            )
        return await call.future

    async def _enqueue(self, queues: _TopicQueues, queue: PartitionQueue, pending: Pending) -> None:
        for piece in slices_of(pending, self._batch_bytes):
            await self._reserve(piece.size)
            queue.add(piece)
            self._schedule_send(queues, queue, is_urgent=True)

    async def flush(self) -> None:
        """Return when everything that was handed over before is safe or refused."""
        targets = [
            (queues, queue, queue.accepted)
            for queues in self._by_topic.values()
            for queue in queues.partitions.values()
        ]
        for queues, queue, accepted in targets:
            while queue.settled < accepted and not self._is_closed:
                self._send_ready(queues)
                await self._something_settled()

    async def close(self) -> None:
        """Send what is left, then take nothing more."""
        await self.flush()
        self._is_closed = True

    def abandon(self) -> None:
        """Give up what is in flight; its callers get `ClientClosed`."""
        self._is_closed = True
        for task in self._deliveries:
            task.cancel()
        in_flight, self._in_flight = self._in_flight, {}
        for batch, connection in in_flight.items():
            connection.close()
            batch.fail(ClientClosed(CLOSED_IN_FLIGHT))
        self._wake()
        for queues in self._by_topic.values():
            if queues.timer is not None:
                queues.timer.cancel()
            for queue in queues.partitions.values():
                while slices := queue.take():
                    for piece in slices:
                        piece.pending.fail(ClientClosed("The client was closed before the message was sent."))

    async def _queues_of(self, topic: str) -> tuple[_TopicQueues, int]:
        if self._is_closed:
            raise ClientClosed()
        count = self._topics.known(topic)
        if count is None:
            count = await self._topics.ensure(topic)
        queues = self._by_topic.get(topic)
        if queues is None:
            queues = self._by_topic[topic] = _TopicQueues(topic)
        return queues, count

    def _partition(self, queues: _TopicQueues, key: bytes | None, partition: int | None, count: int) -> int:
        if partition is not None:
            if not 0 <= partition < count:
                raise UnknownPartition(f"Topic {queues.topic!r} has partitions 0 to {count - 1}, not {partition}.")
            return partition
        return (key_hash(key) if key is not None else queues.turn) % count

    async def _reserve(self, size: int) -> None:
        """Wait until the buffer has room. A message larger than the whole buffer waits until it is empty."""
        while self._bytes_held and self._bytes_held + size > self._config.buffer_bytes_max:
            await self._something_settled()
        self._bytes_held += size

    # -- sending ------------------------------------------------------------------------------------------------------

    def _schedule_send(self, queues: _TopicQueues, queue: PartitionQueue, *, is_urgent: bool) -> None:
        """Have the batches of a topic sent: at once, or after the linger."""
        loop = asyncio.get_running_loop()
        is_due = is_urgent or not self._config.linger_s or queue.bytes_waiting >= queue.bytes_max
        if queues.timer is not None:
            if queues.is_urgent or not is_due:
                return
            queues.timer.cancel()
        queues.is_urgent = is_due
        # Not before the loop's next iteration, so that messages of concurrent calls share a batch.
        queues.timer = (
            loop.call_soon(self._send_ready, queues)
            if is_due
            else loop.call_later(self._config.linger_s, self._send_ready, queues)
        )

    def _send_ready(self, queues: _TopicQueues) -> None:
        """Send a batch of every queue that has messages and no batch in flight."""
        if queues.timer is not None:
            queues.timer.cancel()
            queues.timer = None
        queues.is_urgent = False
        batches: list[InFlightBatch] = []
        size = 0
        for queue in list(queues.partitions.values()):
            if queue.is_busy or not queue.waiting:
                continue
            slices = queue.take()
            queue.is_busy = True
            batches.append(InFlightBatch(queue, slices, contents_of(slices, self._clock.now_ms())))
            size += sum(piece.size for piece in slices)
            queues.turn += 1
            if size >= _REQUEST_BYTES_MAX:
                self._send_batches(queues, batches)
                batches, size = [], 0
        if batches:
            self._send_batches(queues, batches)

    def _send_batches(self, queues: _TopicQueues, batches: list[InFlightBatch]) -> None:
        if len(batches) > 1 or not self._send_without_task(queues, batches[0]):
            self._spawn(self._deliver(queues, batches))

    def _spawn(self, delivery: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(delivery)
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)

    def _send_without_task(self, queues: _TopicQueues, batch: InFlightBatch) -> bool:
        """Send one batch without a task, as nearly all are; False if that is not possible."""
        producer = self._producer
        if producer is None:
            return False
        try:
            self._encode(queues.topic, batch, producer)
        except PenstockError:
            return False  # the task meets the error again, and reports it
        connection = self._transport.begin(
            call_of(PublishBatches(topic=queues.topic, batches=[(batch.queue.partition, batch.data)])),
            lambda answer: self._on_answer(queues, batch, answer),
        )
        if connection is None:
            return False
        batch.tries += 1
        self._in_flight[batch] = connection
        return True

    def _on_answer(self, queues: _TopicQueues, batch: InFlightBatch, answer: HttpAnswer | PenstockError) -> None:
        """Settle a batch that was sent without a task; if it is not safe yet, a task goes on from there."""
        if self._in_flight.pop(batch, None) is None:
            return  # abandoned
        try:
            outcome = answer if isinstance(answer, PenstockError) else outcomes_of(answer, 1)[0]
        except PenstockError as error:
            outcome = error
        if isinstance(outcome, PenstockError):
            self._spawn(self._deliver(queues, [batch], [outcome]))
        else:
            self._settle(queues, batch, outcome, has_time=True)
            self._release(queues, batch)

    async def _deliver(
        self, queues: _TopicQueues, batches: list[InFlightBatch], outcomes: Sequence[BatchOutcome] | None = None
    ) -> None:
        """Send batches until each is safe, refused, or out of time; ``outcomes`` are those of the first try."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.timeout_s
        backoff = Backoff()
        left = batches
        try:
            while left:
                outcomes = outcomes or await self._attempt(queues.topic, left)
                again: list[InFlightBatch] = []
                for batch, outcome in zip(left, outcomes, strict=True):
                    if self._settle(queues, batch, outcome, has_time=loop.time() < deadline):
                        self._release(queues, batch)
                    else:
                        again.append(batch)
                pause_s = max((_told_to_wait(outcome) for outcome in outcomes), default=0.0)
                left, outcomes = again, None
                if left:
                    await asyncio.sleep(min(pause_s or backoff.next(), max(deadline - loop.time(), 0)))
        except BaseException:
            for batch in left:
                batch.fail(ClientClosed(CLOSED_IN_FLIGHT))
            raise

    async def _something_settled(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _release(self, queues: _TopicQueues, batch: InFlightBatch) -> None:
        queue = batch.queue
        queue.is_busy = False
        self._bytes_held -= batch.size
        self._wake()
        if queue.waiting:
            self._schedule_send(queues, queue, is_urgent=True)

    async def _attempt(self, topic: str, batches: Sequence[InFlightBatch]) -> Sequence[BatchOutcome]:
        """What became of each batch: its first offset and append time, or an error."""
        try:
            producer = await self._identity()
        except PenstockError as error:
            return [error] * len(batches)
        refusals: dict[int, PenstockError] = {}
        for batch in batches:
            if batch.producer is None:
                try:
                    self._encode(topic, batch, producer)
                except PenstockError as error:
                    refusals[id(batch)] = error
        sent = [batch for batch in batches if id(batch) not in refusals]
        answers: Iterable[BatchOutcome] = ()
        if sent:
            answers = await self._post(topic, sent)
        answered = iter(answers)
        return [refusals.get(id(batch)) or next(answered) for batch in batches]

    async def _post(self, topic: str, batches: Sequence[InFlightBatch]) -> Sequence[BatchOutcome]:
        """Send once, without retries: what an error means depends on whether an earlier try may have been written."""
        given = [(batch.queue.partition, batch.data) for batch in batches]
        for batch in batches:
            batch.tries += 1
        try:
            answer = await self._transport.send(call_of(PublishBatches(topic=topic, batches=given)), is_once=True)
            return outcomes_of(answer, len(batches))
        except PenstockError as error:
            if error.retriable or len(batches) == 1:
                return [error] * len(batches)
            # The request may have been refused for one of them: send the others without it.
            return [(await self._post(topic, [batch]))[0] for batch in batches]

    def _settle(self, queues: _TopicQueues, batch: InFlightBatch, outcome: BatchOutcome, *, has_time: bool) -> bool:
        """Tell the callers; False if the batch is to be sent again."""
        topic, queue, producer = queues.topic, batch.queue, batch.producer
        if not isinstance(outcome, PenstockError):
            assert producer is not None
            taken = producer.sequences.get((topic, queue.partition), 0) + len(batch.contents)
            producer.sequences[topic, queue.partition] = taken % _SEQUENCES
            queue.settled += len(batch.contents)
            batch.succeed(topic, *outcome)
            return True
        is_first = batch.tries <= 1
        if isinstance(outcome, _IDENTITY_ERRORS) and is_first and producer is not None:
            # Nothing was written. A new identity may help; tries are counted on.
            self._discard(producer)
            batch.producer = None
            return False
        if is_first and batch.can_be_split(outcome):
            if isinstance(outcome, MessageTooLarge):
                queue.put_back_smaller(batch.slices)
            else:
                queue.put_back_apart(batch.slices)
            self._bytes_held += batch.size  # they stay in the buffer
            return True
        if isinstance(outcome, UnknownTopic | UnknownPartition):
            self._topics.forget(topic)
        elif outcome.retriable and has_time:
            return False
        if producer is not None and not (is_first and not outcome.retriable):
            self._discard(producer)  # the batch may have been written, so its numbers must not be used again
        queue.settled += len(batch.contents)
        batch.fail(outcome)
        return True

    def _encode(self, topic: str, batch: InFlightBatch, producer: PublisherIdentity) -> None:
        """Encode a batch with its sequence numbers; every try sends the same bytes."""
        sequence = producer.sequences.get((topic, batch.queue.partition), 0)
        batch.data = batch.contents.encode(self._config.codec, producer.id, producer.epoch, sequence)
        batch.producer = producer

    async def _identity(self) -> PublisherIdentity:
        async with self._identifying:
            if self._producer is None:
                self._producer = PublisherIdentity(await self._transport.call(CreateProducer()))
            return self._producer

    def _discard(self, producer: PublisherIdentity) -> None:
        if self._producer is producer:
            self._producer = None


def _told_to_wait(outcome: BatchOutcome) -> float:
    """The seconds for which the node asks not to be asked again, because a quota is used up."""
    return outcome.retry_after_ms / 1000 if isinstance(outcome, QuotaExceeded) else 0.0
