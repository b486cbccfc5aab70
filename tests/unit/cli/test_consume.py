"""Partitions read as one stream."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from penstock.cli.consume import ReadStart, TopicReader
from penstock.cli.exits import CommandError, Exit
from penstock.cli.rest import RefusedError

EPOCH = datetime(2025, 1, 1, tzinfo=UTC)


def at(second: int) -> datetime:
    return EPOCH + timedelta(seconds=second)


class FakeTopic:
    """A topic that answers as a node does: messages are (offset, second) by partition."""

    def __init__(self, *partitions: list[tuple[int, int]], ends: list[int] | None = None, page: int = 2) -> None:
        self.partitions = list(partitions)
        self.ends = ends or [messages[-1][0] + 1 if messages else 0 for messages in partitions]
        self.starts = [messages[0][0] if messages else 0 for messages in partitions]
        self.stable: dict[int, int] = {}  # where an open transaction begins
        self.page = page
        self.requests = 0

    def get(self, *path: str, wait_ms: int = 0, **params: Any) -> Any:
        self.requests += 1
        if path[-1] != "messages":
            spans = zip(self.starts, self.ends, strict=True)
            return {
                "partition_details": [
                    {"partition": index, "log_start_offset": start, "high_watermark": end}
                    for index, (start, end) in enumerate(spans)
                ]
            }
        partition = params["partition"]
        if "since" in params:
            return self._since(partition, params["since"])
        offset = params["offset"]
        if offset == "latest":
            return {"messages": [], "next_offset": self.stable.get(partition, self.ends[partition])}
        if offset < self.starts[partition]:
            raise RefusedError(416, "offset_out_of_range", "gone")
        found = [pair for pair in self.partitions[partition] if pair[0] >= offset][: min(self.page, params["limit"])]
        is_all = not found or found[-1] == self.partitions[partition][-1]
        return {
            "messages": [{"offset": found_at, "timestamp": at(second).isoformat()} for found_at, second in found],
            "next_offset": self.stable.get(partition, self.ends[partition]) if is_all else found[-1][0] + 1,
        }

    def _since(self, partition: int, moment: datetime) -> Any:
        found = [pair for pair in self.partitions[partition] if at(pair[1]) >= moment][:1]
        messages = [{"offset": offset, "timestamp": at(second).isoformat()} for offset, second in found]
        return {"messages": messages, "next_offset": found[0][0] + 1 if found else self.ends[partition]}


def read(topic: FakeTopic, start: ReadStart | None = None, partition: int | None = None) -> list[tuple[int, int]]:
    reader = TopicReader(topic, "t", partition)  # type: ignore[arg-type]
    return [(message["partition"], message["offset"]) for message in reader.read(start or ReadStart())]


def test_partitions_are_merged_by_time_page_by_page() -> None:
    topic = FakeTopic([(0, 0), (1, 3), (2, 4)], [(0, 1), (1, 2), (2, 5)])
    assert read(topic) == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)]


def test_a_partition_keeps_its_order_whatever_its_times_say() -> None:
    assert read(FakeTopic([(0, 9), (1, 1), (2, 5)])) == [(0, 0), (0, 1), (0, 2)]


def test_holes_in_a_compacted_partition_are_passed() -> None:
    assert read(FakeTopic([(3, 0), (7, 1), (8, 2)], ends=[20])) == [(0, 3), (0, 7), (0, 8)]


def test_a_read_ends_where_the_topic_ended_when_it_began() -> None:
    topic = FakeTopic([(0, 0), (1, 1), (2, 2)], ends=[2], page=10)
    assert read(topic) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        (ReadStart(), [2, 3, 4]),
        (ReadStart(is_latest=True), []),
        (ReadStart(offset=3), [3, 4]),
        (ReadStart(offset=0), [2, 3, 4]),
        (ReadStart(offset=99), []),
        (ReadStart(offset=-2), [3, 4]),
        (ReadStart(offset=-99), [2, 3, 4]),
        (ReadStart(time=at(30)), [3, 4]),
        (ReadStart(time=at(31)), [4]),
        (ReadStart(time=at(0)), [2, 3, 4]),
        (ReadStart(time=at(99)), []),
    ],
)
def test_where_to_begin(start: ReadStart, offsets: list[int]) -> None:
    assert [offset for _, offset in read(FakeTopic([(2, 20), (3, 30), (4, 40)]), start)] == offsets


def test_an_offset_a_partition_does_not_hold_is_an_error() -> None:
    with pytest.raises(CommandError, match=r"t-0 holds offsets 2 to 3, not 0\."):
        read(FakeTopic([(2, 0)]), ReadStart(offset=0), partition=0)


def test_a_partition_that_is_not_there_is_not_found() -> None:
    with pytest.raises(CommandError, match="has no partition 3; it has 1") as caught:
        read(FakeTopic([(0, 0)]), partition=3)
    assert caught.value.exit_code == Exit.NOT_FOUND


def test_a_follower_that_fell_behind_retention_goes_on_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    topic = FakeTopic([(0, 0)])
    reader = TopicReader(topic, "t", 0)  # type: ignore[arg-type]
    assert len(list(reader.read(ReadStart()))) == 1
    topic.partitions[0], topic.starts[0], topic.ends[0] = [(5, 5), (6, 6)], 5, 7
    assert [message["offset"] for message in islice(reader.follow(), 2)] == [5, 6]
    assert "offsets 1 to 4 were deleted by retention" in capsys.readouterr().err


def test_a_follower_finds_new_partitions_from_their_start() -> None:
    topic = FakeTopic([(0, 0)])
    reader = TopicReader(topic, "t", None)  # type: ignore[arg-type]
    list(reader.read(ReadStart(is_latest=True)))
    topic.partitions.append([(0, 7)])
    topic.starts.append(0)
    topic.ends.append(1)
    assert [message["partition"] for message in islice(reader.follow(), 1)] == [1]


def test_before_an_open_transaction_a_follower_waits_without_asking_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = FakeTopic([(0, 0), (1, 1)], [(0, 0)], ends=[5, 1])
    topic.stable = {0: 2}
    reader = TopicReader(topic, "t", None)  # type: ignore[arg-type]
    assert len(list(reader.read(ReadStart()))) == 3
    pauses = []

    def commit(seconds: float) -> None:
        pauses.append(seconds)
        topic.partitions[0] += [(2, 2), (3, 3)]
        topic.stable = {}

    monkeypatch.setattr("time.sleep", commit)
    assert [message["offset"] for message in islice(reader.follow(), 2)] == [2, 3]
    assert len(pauses) == 1


def test_the_latest_is_where_an_open_transaction_begins() -> None:
    topic = FakeTopic([(0, 0), (1, 1)], ends=[5])
    topic.stable = {0: 2}
    reader = TopicReader(topic, "t", None)  # type: ignore[arg-type]
    assert list(reader.read(ReadStart(is_latest=True))) == []
    topic.partitions[0] += [(2, 2)]
    topic.stable = {}
    assert [message["offset"] for message in islice(reader.follow(), 1)] == [2]
