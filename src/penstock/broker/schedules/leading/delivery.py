"""One firing's batch into its partition, wherever that is led: repeated until it is there or certainly is not.

Numbers make repeating safe. A refusal counts only if no earlier attempt can have got through: otherwise the partition
is asked what it has of this producer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.broker.coordination.messages import ProducerIdentity
from penstock.broker.partition import Partition
from penstock.broker.queues.letters.sequences import UNKNOWN, Sequences
from penstock.broker.schedules.leading.shard import ScheduleShard
from penstock.broker.schedules.leading.targets import Target, to_records
from penstock.broker.schedules.messages import Granted
from penstock.broker.schedules.records import Schedule
from penstock.errors import (
    DuplicateSequence,
    InvalidRequest,
    OutOfOrderSequence,
    PenstockError,
    ProducerFenced,
    UnknownPartition,
    UnknownTopic,
)
from penstock.records import encode_batch
from penstock.storage.producers import SEQUENCE_WRAP

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger(__name__)

_APPEND_TIMEOUT_MS: Final = 30_000
_PAUSE_MIN_S: Final = 0.05
_PAUSE_MAX_S: Final = 2.0
# The partition has not taken the batch, and never will as it is.
_REFUSED: Final = (InvalidRequest, UnknownTopic, UnknownPartition, OutOfOrderSequence, ProducerFenced)
_TOLD_FROM: Final = 5  # attempts, after most of a second
_GONE_TRIES: Final = 8  # looks for a topic that was there when the firing began, some five seconds in all

OnDelivered = Callable[["Delivery", str | None], None]  # with why it was refused, None if it is there


class Delivery:
    """Schedules that are to be appended, in order, with the numbers that they were given."""

    def __init__(
        self,
        shard: ScheduleShard,
        target: Target,
        granted: Granted,
        schedules: list[Schedule],
        on_done: OnDelivered,
        *,
        is_doubtful: bool,
    ) -> None:
        self.shard = shard
        self.target = target
        self.granted = granted
        self.schedules = schedules
        self.on_done = on_done
        self.is_doubtful = is_doubtful  # an attempt may have got through that nobody heard of
        self.attempts = 0
        self.pause_s = _PAUSE_MIN_S
        self.is_failing = False

    def encode(self) -> bytearray:
        """The batch, stamped with the present time."""
        return encode_batch(
            to_records(self.schedules, self.shard.now_ms()),
            producer_id=self.granted.producer_id,
            producer_epoch=self.granted.epoch,
            base_sequence=self.granted.sequence,
        )

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.granted.producer_id, self.granted.epoch)

    def is_covered_by(self, last: int) -> bool:
        """Whether a producer whose last message is ``last`` has written all of this; numbers go round."""
        own = (self.granted.sequence + len(self.schedules) - 1) % SEQUENCE_WRAP
        return last != UNKNOWN and (last - own) % SEQUENCE_WRAP < SEQUENCE_WRAP // 2


class Postman:
    """Brings deliveries to partitions."""

    def __init__(self, broker: Broker, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._broker = broker
        self.spawn = spawn
        self._sequences = Sequences(broker.metadata, broker.peers, broker.replicas.find)

    def send(self, delivery: Delivery) -> None:
        """Bring it there; its ``on_done`` is called when that is settled, unless the shard is led elsewhere by then."""
        if not delivery.shard.is_ready:
            return
        delivery.attempts += 1
        target = delivery.target
        partition = self._broker.replicas.find(UUID(bytes=target.topic_id), target.partition)
        if partition is None or not partition.is_leader:
            self.spawn(self._send_away(delivery))
            return
        try:
            partition.check_in_sync()
            batch = memoryview(delivery.encode())
            now_ms = self._broker.clock.now_ms()
            written = partition.append(batch, now_ms, is_durable=self._broker.syncs_before_ack)
        except PenstockError as error:
            self._on_error(delivery, error)
        else:
            partition.when_committed(written.next_offset, partial(self._on_committed, delivery, partition))

    def _on_committed(self, delivery: Delivery, partition: Partition, error: PenstockError | None) -> None:
        if error is None:
            self._end(delivery, None)
        else:
            delivery.is_doubtful = True  # it is written here, and whoever leads next may have it
            log.debug("A firing to %s is repeated: %s", partition.id, error.message)
            self._again(delivery, error)

    async def _send_away(self, delivery: Delivery) -> None:
        target = delivery.target
        try:
            known = self._broker.metadata.topic_by_id(UUID(bytes=target.topic_id))
            if known is None:
                raise UnknownTopic(f"Topic {target.topic!r} was deleted.")
            batch = delivery.encode()
            delivery.is_doubtful = True  # what comes back tells of the last of several attempts
            await self._broker.remote.append(known.name, target.partition, batch, timeout_ms=_APPEND_TIMEOUT_MS)
        except PenstockError as error:
            self._on_error(delivery, error)
        else:
            self._end(delivery, None)

    def _end(self, delivery: Delivery, refusal: str | None) -> None:
        if delivery.is_failing:
            log.info("Schedules reach %s-%d again.", delivery.target.topic, delivery.target.partition)
        delivery.on_done(delivery, refusal)

    def _on_error(self, delivery: Delivery, error: PenstockError) -> None:
        if isinstance(error, DuplicateSequence):
            self._end(delivery, None)
        elif isinstance(error, UnknownTopic):  # deleted, or this node has yet to hear of it
            if delivery.is_doubtful and delivery.attempts < _GONE_TRIES:
                self._again(delivery, error)
            else:
                self._end(delivery, error.message)
        elif isinstance(error, _REFUSED) and not delivery.is_doubtful:
            self._end(delivery, error.message)
        elif isinstance(error, _REFUSED):
            self.spawn(self._find_out(delivery, error))
        else:
            self._again(delivery, error)

    async def _find_out(self, delivery: Delivery, refusal: PenstockError) -> None:
        """An attempt is refused and an earlier one may not have been: ask what is there."""
        target = delivery.target
        try:
            last = await self._sequences.last(target.topic, target.partition, delivery.producer)
        except PenstockError as error:
            self._again(delivery, error)
        else:
            self._end(delivery, None if delivery.is_covered_by(last) else refusal.message)

    def _again(self, delivery: Delivery, error: PenstockError) -> None:
        if not delivery.is_failing and delivery.attempts >= _TOLD_FROM:  # leaders change, which is nothing to tell
            delivery.is_failing = True
            place = f"{delivery.target.topic}-{delivery.target.partition}"
            log.warning("Schedules cannot reach %s now, and are kept: %s", place, error.message)
        asyncio.get_running_loop().call_later(delivery.pause_s, self.send, delivery)
        delivery.pause_s = min(2 * delivery.pause_s, _PAUSE_MAX_S)
