"""Publishing: messages are packed into batches, numbered, and sent until they are safe, once.

One batch of a partition is under way at a time. What comes meanwhile waits and makes the next batch, so batches grow
with the load by themselves; ``linger`` adds a moment for messages that nobody waits for one by one. Batches carry a
producer id and sequence numbers, so one that is sent again because its answer was lost is not written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple

from penstock.client.backoff import Backoff
from penstock.client.connections import Answer, Connection
from penstock.client.contents import batches_body, contents_of
from penstock.client.messages import Published
from penstock.client.parcels import (
    Lane,
    Order,
    OrderParcel,
    Outgoing,
    Parcel,
    SingleParcel,
    Span,
    ValuesParcel,
    spans_of,
)
from penstock.client.shipments import (
    Identity,
    Producer,
    Shipment,
    ShipmentOutcome,
    can_be_parted,
    fail,
    outcomes_of,
    succeed,
)
from penstock.client.topics import PartitionCounts
from penstock.client.transport import MSGPACK, Transport
from penstock.clock import Clock
from penstock.errors import (
    ClientClosed,
    DuplicateSequence,
    InvalidProducerIdMapping,
    MessageTooLarge,
    OutOfOrderSequence,
    PenstockError,
    ProducerFenced,
    UnknownPartition,
    UnknownTopic,
)
from penstock.records import Codec, key_hash
from penstock.records.batch import Headers

_REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
_SEQUENCES: Final = 1 << 31
# The cluster knows this producer no more, or not as it knows itself: a new one can begin from 0.
_STRANGERS: Final = (OutOfOrderSequence, ProducerFenced, DuplicateSequence, InvalidProducerIdMapping)
_BATCH_OVERHEAD_BYTES: Final = 61


class PublishConfig(NamedTuple):
    """How to publish; see `AsyncClient`."""

    linger_s: float
    batch_bytes_max: int
    buffer_bytes_max: int
    timeout_s: float
    codec: Codec


class _Road:
    """What is on its way to one topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.lanes: dict[int, Lane] = {}
        self.turn = 0  # messages without a key go to one partition until a batch of it leaves
        self.timer: asyncio.Handle | None = None
        self.is_urgent = False

    def lane(self, partition: int, bytes_max: int) -> Lane:
        found = self.lanes.get(partition)
        if found is None:
            found = self.lanes[partition] = Lane(partition, bytes_max)
        return found


class Publisher:
    """Sends messages; one for each client."""

    def __init__(self, transport: Transport, topics: PartitionCounts, clock: Clock, config: PublishConfig) -> None:
        self._transport = transport
        self._topics = topics
        self._clock = clock
        self._config = config
        self._batch_bytes = max(config.batch_bytes_max - _BATCH_OVERHEAD_BYTES, 1)
        self._roads: dict[str, _Road] = {}
        self._producer: Producer | None = None
        self._asking = asyncio.Lock()
        self._bytes_held = 0
        self._waiters: list[asyncio.Future[None]] = []  # until something is settled
        self._deliveries: set[asyncio.Task[None]] = set()
        self._flights: dict[Shipment, Connection] = {}
        self._is_closed = False

    # -- handing over -------------------------------------------------------------------------------------------------

    async def send(
        self, topic: str, message: Outgoing, partition: int | None, parcel: SingleParcel, *, is_urgent: bool
    ) -> None:
        """Take a message and return when there is room for it; its parcel is told when it is safe."""
        road, count = await self._road(topic)
        lane = road.lane(self._partition(road, message.key, partition, count), self._batch_bytes)
        size = message.size
        await self._take_room(size)
        lane.add(Span(parcel, 0, 1, size))
        self._depart(road, lane, is_urgent=is_urgent)

    async def send_values(
        self, topic: str, values: Sequence[bytes], partition: int | None, headers: Headers = ()
    ) -> Sequence[Published]:
        """Publish all of these, which have no keys and the same headers, and return when they are safe, in order."""
        if not values:
            return []
        road, count = await self._road(topic)
        order = Order(len(values))
        lane = road.lane(self._partition(road, None, partition, count), self._batch_bytes)
        await self._load(road, lane, ValuesParcel(order, values, headers))
        return await order.future

    async def send_many(self, topic: str, messages: Sequence[Outgoing], partition: int | None) -> Sequence[Published]:
        """Publish all of these and return when they are safe, in their order."""
        if not messages:
            return []
        road, count = await self._road(topic)
        order = Order(len(messages))
        shares: dict[int, tuple[list[Outgoing], list[int]]] = {}
        for place, message in enumerate(messages):
            chosen = self._partition(road, message.key, partition, count)
            share = shares.get(chosen)
            if share is None:
                share = shares[chosen] = ([], [])
            share[0].append(message)
            share[1].append(place)
        for chosen, (members, places) in shares.items():
            await self._load(road, road.lane(chosen, self._batch_bytes), OrderParcel(order, members, places))
        return await order.future

    async def _load(self, road: _Road, lane: Lane, parcel: Parcel) -> None:
        for span in spans_of(parcel, self._batch_bytes):
            await self._take_room(span.size)
            lane.add(span)
            self._depart(road, lane, is_urgent=True)

    async def flush(self) -> None:
        """Return when everything that was handed over before is safe or refused."""
        targets = [(road, lane, lane.accepted) for road in self._roads.values() for lane in road.lanes.values()]
        for road, lane, accepted in targets:
            while lane.settled < accepted and not self._is_closed:
                self._pump(road)
                await self._something_settled()

    async def close(self) -> None:
        """Send what is left, then take nothing more."""
        await self.flush()
        self._is_closed = True

    def abandon(self) -> None:
        """Give up what is under way; whoever waits for it hears that the client was closed."""
        self._is_closed = True
        for task in self._deliveries:
            task.cancel()
        flights, self._flights = self._flights, {}
        for shipment, connection in flights.items():
            connection.close()
            fail(shipment, ClientClosed("The client was closed before this was safe; it may be."))
        self._wake()
        for road in self._roads.values():
            if road.timer is not None:
                road.timer.cancel()
            for lane in road.lanes.values():
                while spans := lane.take():
                    for span in spans:
                        span.parcel.fail(ClientClosed("The client was closed before this was safe."))

    async def _road(self, topic: str) -> tuple[_Road, int]:
        if self._is_closed:
            raise ClientClosed()
        count = self._topics.known(topic)
        if count is None:
            count = await self._topics.ensure(topic)
        road = self._roads.get(topic)
        if road is None:
            road = self._roads[topic] = _Road(topic)
        return road, count

    def _partition(self, road: _Road, key: bytes | None, partition: int | None, count: int) -> int:
        if partition is not None:
            if not 0 <= partition < count:
                raise UnknownPartition(f"Topic {road.topic!r} has partitions 0 to {count - 1}, not {partition}.")
            return partition
        return (key_hash(key) if key is not None else road.turn) % count

    async def _take_room(self, size: int) -> None:
        """Wait until the buffer has room; whoever is larger than all of it waits until it is empty."""
        while self._bytes_held and self._bytes_held + size > self._config.buffer_bytes_max:
            await self._something_settled()
        self._bytes_held += size

    # -- sending ------------------------------------------------------------------------------------------------------

    def _depart(self, road: _Road, lane: Lane, *, is_urgent: bool) -> None:
        """See to it that a lane leaves: at once, or after the linger."""
        loop = asyncio.get_running_loop()
        is_due = is_urgent or not self._config.linger_s or lane.bytes_waiting >= lane.bytes_max
        if road.timer is not None:
            if road.is_urgent or not is_due:
                return
            road.timer.cancel()
        road.is_urgent = is_due
        # Not before the loop's next turn, so that calls made together leave together.
        road.timer = (
            loop.call_soon(self._pump, road) if is_due else loop.call_later(self._config.linger_s, self._pump, road)
        )

    def _pump(self, road: _Road) -> None:
        """Send a batch of every lane that has messages and none under way."""
        if road.timer is not None:
            road.timer.cancel()
            road.timer = None
        road.is_urgent = False
        shipments: list[Shipment] = []
        size = 0
        for lane in list(road.lanes.values()):
            if lane.is_busy or not lane.waiting:
                continue
            spans = lane.take()
            lane.is_busy = True
            shipments.append(Shipment(lane, spans, contents_of(spans, self._clock.now_ms())))
            size += sum(span.size for span in spans)
            road.turn += 1
            if size >= _REQUEST_BYTES_MAX:
                self._start(road, shipments)
                shipments, size = [], 0
        if shipments:
            self._start(road, shipments)

    def _start(self, road: _Road, shipments: list[Shipment]) -> None:
        if len(shipments) > 1 or not self._fly(road, shipments[0]):
            self._spawn(self._deliver(road, shipments))

    def _spawn(self, delivery: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(delivery)
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)

    def _fly(self, road: _Road, shipment: Shipment) -> bool:
        """Send one batch without a task, which is how nearly all go; False if that cannot be."""
        producer = self._producer
        if producer is None:
            return False
        try:
            self._seal(road.topic, shipment, producer)
        except PenstockError:
            return False  # a task meets it again, and tells
        connection = self._transport.begin(
            ("v1", "topics", road.topic, "batches"),
            batches_body([(shipment.lane.partition, shipment.data)]),
            content_type=MSGPACK,
            accept=MSGPACK,
            done=lambda answer: self._land(road, shipment, answer),
        )
        if connection is None:
            return False
        shipment.tries += 1
        self._flights[shipment] = connection
        return True

    def _land(self, road: _Road, shipment: Shipment, answer: Answer | PenstockError) -> None:
        """Hear what became of a batch; where it is not safe yet, a task goes on from there."""
        if self._flights.pop(shipment, None) is None:
            return  # given up
        try:
            outcome = answer if isinstance(answer, PenstockError) else outcomes_of(answer, 1)[0]
        except PenstockError as error:
            outcome = error
        if isinstance(outcome, PenstockError):
            self._spawn(self._deliver(road, [shipment], [outcome]))
        else:
            self._settle(road, shipment, outcome, has_time=True)
            self._release(road, shipment)

    async def _deliver(
        self, road: _Road, shipments: list[Shipment], outcomes: Sequence[ShipmentOutcome] | None = None
    ) -> None:
        """Send batches until each is safe, refused, or out of time; ``outcomes`` are those of a first try."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.timeout_s
        backoff = Backoff()
        left = shipments
        try:
            while left:
                outcomes = outcomes or await self._attempt(road.topic, left)
                again: list[Shipment] = []
                for shipment, outcome in zip(left, outcomes, strict=True):
                    if self._settle(road, shipment, outcome, has_time=loop.time() < deadline):
                        self._release(road, shipment)
                    else:
                        again.append(shipment)
                left, outcomes = again, None
                if left:
                    await asyncio.sleep(min(backoff.next(), max(deadline - loop.time(), 0)))
        except BaseException:
            for shipment in left:
                fail(shipment, ClientClosed("The client was closed before this was safe; it may be."))
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

    def _release(self, road: _Road, shipment: Shipment) -> None:
        lane = shipment.lane
        lane.is_busy = False
        self._bytes_held -= sum(span.size for span in shipment.spans)
        self._wake()
        if lane.waiting:
            self._depart(road, lane, is_urgent=True)

    async def _attempt(self, topic: str, shipments: Sequence[Shipment]) -> Sequence[ShipmentOutcome]:
        """What became of each batch: its first offset and append time, or an error."""
        try:
            producer = await self._identity()
        except PenstockError as error:
            return [error] * len(shipments)
        refusals: dict[int, PenstockError] = {}
        for shipment in shipments:
            if shipment.producer is None:
                try:
                    self._seal(topic, shipment, producer)
                except PenstockError as error:
                    refusals[id(shipment)] = error
        sent = [shipment for shipment in shipments if id(shipment) not in refusals]
        answers: Iterable[ShipmentOutcome] = ()
        if sent:
            answers = await self._ask(topic, sent)
        told = iter(answers)
        return [refusals.get(id(shipment)) or next(told) for shipment in shipments]

    async def _ask(self, topic: str, shipments: Sequence[Shipment]) -> Sequence[ShipmentOutcome]:
        """Ask once: whether a batch may have been written before decides what an error means."""
        body = batches_body([(shipment.lane.partition, shipment.data) for shipment in shipments])
        for shipment in shipments:
            shipment.tries += 1
        path = ("v1", "topics", topic, "batches")
        try:
            answer = await self._transport.call(
                "POST", path, body=body, content_type=MSGPACK, accept=MSGPACK, is_once=True
            )
            return outcomes_of(answer, len(shipments))
        except PenstockError as error:
            if error.retriable or len(shipments) == 1:
                return [error] * len(shipments)
            # The call was refused for one of them, perhaps: the others need not suffer.
            return [(await self._ask(topic, [shipment]))[0] for shipment in shipments]

    def _settle(self, road: _Road, shipment: Shipment, outcome: ShipmentOutcome, *, has_time: bool) -> bool:
        """Tell whoever waits; False if the batch is to be sent again."""
        topic, lane, producer = road.topic, shipment.lane, shipment.producer
        if not isinstance(outcome, PenstockError):
            assert producer is not None
            taken = producer.sequences.get((topic, lane.partition), 0) + len(shipment.contents)
            producer.sequences[topic, lane.partition] = taken % _SEQUENCES
            lane.settled += len(shipment.contents)
            succeed(topic, shipment, *outcome)
            return True
        is_first = shipment.tries <= 1
        if isinstance(outcome, _STRANGERS) and is_first and producer is not None:
            # Nothing of it was written. If it is the identity's fault, a new one helps; tries go on counting.
            self._forget(producer)
            shipment.producer = None
            return False
        if is_first and can_be_parted(shipment, outcome):
            if isinstance(outcome, MessageTooLarge):
                lane.put_back_smaller(shipment.spans)
            else:
                lane.put_back_apart(shipment.spans)
            self._bytes_held += sum(span.size for span in shipment.spans)  # they are held on to
            return True
        if isinstance(outcome, UnknownTopic | UnknownPartition):
            self._topics.forget(topic)
        elif outcome.retriable and has_time:
            return False
        if producer is not None and not (is_first and not outcome.retriable):
            self._forget(producer)  # it may have been written after all, so its numbers must not be used again
        lane.settled += len(shipment.contents)
        fail(shipment, outcome)
        return True

    def _seal(self, topic: str, shipment: Shipment, producer: Producer) -> None:
        """Make the bytes of a batch, numbered; they stay the same however often it is sent."""
        sequence = producer.sequences.get((topic, shipment.lane.partition), 0)
        shipment.data = shipment.contents.encode(self._config.codec, producer.id, producer.epoch, sequence)
        shipment.producer = producer

    async def _identity(self) -> Producer:
        async with self._asking:
            if self._producer is None:
                identity = await self._transport.post(Identity, "v1", "producers", body=None)
                self._producer = Producer(identity)
            return self._producer

    def _forget(self, producer: Producer) -> None:
        if self._producer is producer:
            self._producer = None


__all__ = ["Parcel", "PublishConfig", "Publisher"]
