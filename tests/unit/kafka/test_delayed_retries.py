"""A producer sends a batch with records for later again, after anything that may fail: each record comes once.

The produce handler of a real broker, on virtual time; what fails is the append, the schedule log, or the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.schedule_house import ScheduleHouse
from tests.support.virtual_time import run

from penstock.consensus.controller import TopicSpec
from penstock.doors.kafka.caller import Caller
from penstock.doors.kafka.produce import ProduceHandler
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import decode_response, encode_request, read_request_header
from penstock.doors.kafka.protocol.messages import records as plain
from penstock.doors.kafka.protocol.produce import ProduceTemplates
from penstock.errors import DiskFull, PeerNotReached, PeerUnavailable
from penstock.features.schedules.messages import PlacedSchedule, ScheduleRequest
from penstock.records import Record, encode_batch

VERSION = 9
DELAY_MS = 500
Headers = tuple[tuple[str, bytes | None], ...]


class Wire:
    """A client's connection of which only the answers are looked at."""

    local_host = ""
    throttle_ms = 0

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.templates = ProduceTemplates()
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def expect_answer(self, *, is_barrier: bool) -> Wire:
        return self

    def answer_now(self, response: bytes) -> None:
        self.complete([response])

    def let_pass(self) -> None: ...

    def complete(self, pieces: Sequence[bytes]) -> None:
        self.answered.set_result(b"".join(pieces))


class Door:
    """The produce handler of a broker, and a topic that allows delays."""

    def __init__(self, house: ScheduleHouse) -> None:
        self.house = house
        self.handler = ProduceHandler(house.broker)

    async def produce(self, *headers: Headers, epoch: int = 0, topic: str = "orders") -> int:
        """Send a numbered batch; the error code of the answer."""
        records = [Record(at, 1_000, None, b"%d" % at, each) for at, each in enumerate(headers)]
        batch = encode_batch(records, producer_id=7, producer_epoch=epoch, base_sequence=0)
        data = plain.PartitionProduceData(index=0, records=bytes(batch))
        topics = (plain.TopicProduceData(name=topic, partition_data=(data,)),)
        request = plain.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
        frame = memoryview(bytearray(encode_request(request, VERSION, 1, "test")))[4:]
        wire: Any = Wire(Caller(self.house.broker.authorizer, self.house.broker.audit))
        self.handler.handle(wire, read_request_header(frame), frame)
        answer = await asyncio.wait_for(wire.answered, 60)
        _, response = decode_response(plain.ProduceResponse, VERSION, answer[4:])
        code: int = response.responses[0].partition_responses[0].error_code
        return code

    def soon(self) -> Headers:
        """A header for a moment that is soon, and has passed when a batch is sent again."""
        return (("penstock-deliver-at", b"%d" % (self.house.now_ms + DELAY_MS)),)


class Calendar:
    """The schedules of a broker, whose next request fails: before it was done, or after."""

    def __init__(self, house: ScheduleHouse) -> None:
        self._add = house.calendar.add
        self.before: Exception | None = None
        self.after: Exception | None = None
        self.on_added: Any = None

    async def add(self, schedules: Sequence[ScheduleRequest]) -> list[PlacedSchedule]:
        error, self.before = self.before, None
        if error is not None:
            raise error
        placed = await self._add(schedules)
        if self.on_added is not None:
            self.on_added()
        error, self.after = self.after, None
        if error is not None:
            raise error
        return placed


def story_of(told: Any) -> None:
    async def story() -> None:
        async with ScheduleHouse() as house:
            await house.topic(delay_headers_enable="true")
            door, calendar = Door(house), Calendar(house)
            house.calendar.add = calendar.add  # type: ignore[method-assign]
            await told(house, door, calendar)

    run(story)


async def passed(house: ScheduleHouse, *values: str) -> None:
    """Long after all was due these have come, each once."""
    await asyncio.sleep(10)
    assert sorted(await house.values()) == sorted(values)


SHAPES = pytest.mark.parametrize("is_whole", [True, False])


def template(door: Door, *, is_whole: bool) -> list[Headers]:
    return [door.soon(), door.soon()] if is_whole else [(), door.soon(), door.soon()]


def values(*, is_whole: bool) -> list[str]:
    return ["0", "1"] if is_whole else ["0", "1", "2"]


@SHAPES
def test_what_was_scheduled_comes_once_though_its_partition_refuses_until_it_is_due(is_whole: bool) -> None:
    async def told(house: ScheduleHouse, door: Door, calendar: Calendar) -> None:
        partition = house.broker.partition("orders", 0)

        def cut_off() -> None:
            partition.is_isolated = True

        calendar.on_added = cut_off
        batch = template(door, is_whole=is_whole)
        await door.produce(*batch)
        calendar.on_added = None
        await asyncio.sleep(2 * DELAY_MS / 1000)
        partition.is_isolated = False
        assert await door.produce(*batch) == ErrorCode.NONE
        await passed(house, *values(is_whole=is_whole))

    story_of(told)


@SHAPES
def test_a_batch_that_could_not_be_appended_has_scheduled_nothing_for_a_later_epoch_to_double(is_whole: bool) -> None:
    async def told(house: ScheduleHouse, door: Door, _: Calendar) -> None:
        log = house.broker.partition("orders", 0).log
        append = log.append

        def fail_once(*_: Any) -> int:
            log.append = append  # type: ignore[method-assign]
            raise DiskFull("There is no room.")

        log.append = fail_once  # type: ignore[method-assign]
        batch = template(door, is_whole=is_whole)
        assert await door.produce(*batch) != ErrorCode.NONE
        assert await door.produce(*batch, epoch=1) == ErrorCode.NONE
        await passed(house, *values(is_whole=is_whole))

    story_of(told)


@SHAPES
@pytest.mark.parametrize("wait_ms", [0, 2 * DELAY_MS])
def test_records_that_the_schedule_log_did_not_take_are_scheduled_by_the_next_attempt(
    is_whole: bool, wait_ms: int
) -> None:
    async def told(house: ScheduleHouse, door: Door, calendar: Calendar) -> None:
        batch = template(door, is_whole=is_whole)
        calendar.before = PeerNotReached("gone")
        assert await door.produce(*batch) == ErrorCode.REQUEST_TIMED_OUT, "not an error of a batch that is not there"
        await asyncio.sleep(wait_ms / 1000)
        assert await door.produce(*batch) == ErrorCode.NONE
        await passed(house, *values(is_whole=is_whole))

    story_of(told)


@SHAPES
@pytest.mark.parametrize("wait_ms", [0, 2 * DELAY_MS])
def test_records_that_the_schedule_log_took_without_a_word_come_once(is_whole: bool, wait_ms: int) -> None:
    async def told(house: ScheduleHouse, door: Door, calendar: Calendar) -> None:
        batch = template(door, is_whole=is_whole)
        calendar.after = PeerUnavailable("gone")
        assert await door.produce(*batch) == ErrorCode.REQUEST_TIMED_OUT
        await asyncio.sleep(wait_ms / 1000)
        assert await door.produce(*batch) == ErrorCode.NONE
        assert await door.produce(*batch) == ErrorCode.NONE
        await passed(house, *values(is_whole=is_whole))

    story_of(told)


def test_a_batch_that_is_sent_again_while_its_records_are_being_scheduled_waits_with_the_first() -> None:
    async def told(house: ScheduleHouse, door: Door, _: Calendar) -> None:
        batch = template(door, is_whole=False)
        codes = await asyncio.gather(*(door.produce(*batch) for _ in range(3)))
        assert codes == [ErrorCode.NONE] * 3
        await passed(house, *values(is_whole=False))

    story_of(told)


def test_a_record_that_was_past_its_time_when_it_came_is_in_the_partition_and_not_scheduled_by_a_retry() -> None:
    async def told(house: ScheduleHouse, door: Door, _: Calendar) -> None:
        batch: list[Headers] = [(("penstock-deliver-at", b"5"),), door.soon()]
        for _attempt in range(2):
            assert await door.produce(*batch) == ErrorCode.NONE
        await passed(house, "0", "1")

    story_of(told)


def test_a_record_that_its_topic_will_not_take_when_it_is_due_keeps_the_whole_batch_out() -> None:
    """It fits as it is, and not with the headers that it bears when it comes."""

    async def told(house: ScheduleHouse, door: Door, _: Calendar) -> None:
        await house.broker.create_topic(
            TopicSpec(name="small", partitions=1, configs={"delay.headers.enable": "true", "max.message.bytes": "120"})
        )
        assert await door.produce(door.soon(), topic="small") == ErrorCode.MESSAGE_TOO_LARGE
        assert house.broker.partition("small", 0).log.end_offset == 0

    story_of(told)
