"""Plans read every message once, within limits, and tell what is lost."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.reading.plan import (
    PartitionReach,
    ReadSpan,
    StreamPosition,
    TopicPosition,
    TopicReach,
    advance,
    losses,
    position_of,
    share,
    spans,
    split,
    tasks,
)

counts = st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), st.integers(0, 10**12), max_size=8)


@settings(deadline=None)
@given(counts, st.integers(1, 10**12))
def test_shares_add_up_and_nobody_gets_more_than_waits(waiting: dict[tuple[str, int], int], limit: int) -> None:
    shares = share(waiting, limit)
    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    assert all(0 <= shares[at] <= waiting[at] for at in waiting)


def reach(*ends: int, topic_id: str = "id", start: int = 0) -> TopicReach:
    return TopicReach(topic_id, {at: PartitionReach(start, end, end, end * 100) for at, end in enumerate(ends)})


def position(*offsets: int, topic_id: str = "id") -> StreamPosition:
    return StreamPosition("g", {"t": TopicPosition(topic_id, dict(enumerate(offsets)))})


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=4),
    st.integers(1, 70),
    st.integers(1, 9),
    st.none() | st.integers(1, 3_000),
)
def test_step_by_step_everything_is_read_once(
    ends: list[int], limit: int, min_partitions: int, max_bytes: int | None
) -> None:
    reaches = {"t": reach(*ends)}
    at = position(*(0 for _ in ends))
    seen: list[tuple[int, int]] = []
    while True:
        then = advance(at, reaches, max_records=limit, max_bytes=max_bytes)
        planned = split(spans(at, then, reaches), min_partitions)
        shared = tasks(planned, min_partitions)
        assert [span for some in shared for span in some] == planned
        assert len(shared) >= min(min_partitions, len(planned))
        if not planned:
            break
        size = sum(span.end - span.begin for span in planned)
        assert size <= limit
        assert len(planned) >= min(min_partitions, size)
        seen += [(span.partition, offset) for span in planned for offset in range(span.begin, span.end)]
        at = position_of(json.loads(json.dumps(then.form())))
    assert sorted(seen) == [(index, offset) for index, end in enumerate(ends) for offset in range(end)]


def span(partition: int, messages: int, message_bytes: float = 100.0) -> ReadSpan:
    return ReadSpan("t", "id", partition, 0, messages, message_bytes)


def test_small_partitions_share_a_task() -> None:
    small = [span(at, 1) for at in range(50)]
    assert [len(some) for some in tasks(small)] == [32, 18]
    assert len(tasks(small, 50)) == 50, "who wants more tasks gets them"
    assert [len(some) for some in tasks(small, 49)] == [2] + [1] * 48
    large = [span(at, 100_000) for at in range(3)]
    assert [len(some) for some in tasks(large)] == [1, 1, 1]
    assert [len(some) for some in tasks([*small[:2], *large[:1], *small[:2]])] == [2, 1, 2]
    assert len(tasks([span(at, 1, 0.0) for at in range(3)])) == 3, "it is not known how large they are"
    assert tasks([]) == []


def test_a_watermark_that_is_not_known_yet_loses_nothing() -> None:
    behind = TopicReach("id", {0: PartitionReach(0, 3, 10, 1000)})
    assert list(losses(position(7), {"t": behind})) == []
    assert dict(advance(position(7), {"t": behind}).items()) == {("t", 0): 7}


def test_losses_are_told() -> None:
    assert list(losses(position(5), {})) == ["Topic 't' is gone or no longer meant by the query."]
    (told,) = losses(position(5), {"t": reach(5, topic_id="other")})
    assert "made anew" in told
    (told,) = losses(position(5, 0), {"t": reach(5)})
    assert told == "Partition t-1 is gone or no longer assigned."
    (told,) = losses(position(5), {"t": reach(9, start=7)})
    assert told == "Offsets 5 to 6 of t-0 were deleted before they were read."
    (told,) = losses(position(5), {"t": reach(4)})
    assert "ends at offset 4, before 5" in told
    (told,) = losses(
        position(8), {"t": TopicReach("id", {0: PartitionReach(0, 8, 8, 1), 1: PartitionReach(3, 9, 9, 1)})}
    )
    assert told == "Offsets 0 to 2 of the new partition t-1 were deleted unread."
    assert list(losses(position(5), {"t": reach(5, 9), "new": reach(4)})) == []
