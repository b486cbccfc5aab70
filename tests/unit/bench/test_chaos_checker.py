"""The checker finds each kind of anomaly in a hand-made history, and none in a history that is in order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from bench.chaos.checker import CHECKS, check
from bench.chaos.history import (
    Assigned,
    Committed,
    Drained,
    End,
    Ended,
    Event,
    Finished,
    Intent,
    Isolation,
    Outcome,
    Polled,
    Send,
    Sent,
)

TOPIC = "t"


def sent(
    message_id: str,
    offset: int,
    *,
    at: float = 1.0,
    outcome: Outcome = "ok",
    transaction: str = "",
    partition: int = 0,
    topic: str = TOPIC,
) -> list[Event]:
    return [Send(message_id, topic, partition, at, transaction), Sent(message_id, outcome, at + 0.1, offset)]


def ended(transaction: str, intent: Intent, outcome: Outcome = "ok", at: float = 5.0) -> list[Event]:
    return [End(transaction, intent, at), Ended(transaction, intent, outcome, at + 0.1)]


def polled(session: str, *rows: tuple[int, str], at: float = 9.0, isolation: Isolation = "uncommitted") -> Polled:
    return Polled(session, isolation, at, [(TOPIC, 0, offset, message_id) for offset, message_id in rows])


def final(
    *rows: tuple[int, str],
    partition: int = 0,
    isolation: Isolation = "uncommitted",
    end: int | None = None,
    replica: str = "",
    is_complete: bool = True,
    topic: str = TOPIC,
) -> Drained:
    stop = end if end is not None else max([offset for offset, _ in rows], default=-1) + 1
    return Drained(topic, partition, isolation, stop, is_complete, list(rows), replica)


def both(*rows: tuple[int, str], **where: int) -> list[Event]:
    return [final(*rows, **where), final(*rows, isolation="committed", **where)]  # type: ignore[arg-type]


def kinds(events: Sequence[Event]) -> set[str]:
    return {anomaly.kind for anomaly in check(events)}


def test_a_history_in_order_has_no_anomaly() -> None:
    events = [
        *sent("p.0-0", 0),
        *sent("p.0-1", 1),
        *sent("p.0-2", -1, outcome="info"),
        *sent("w.0-0", 3, transaction="w.0:0"),
        *ended("w.0:0", "commit"),
        Assigned("c:0", TOPIC, 0, 0, 0.5),
        polled("c:0", (0, "p.0-0"), (1, "p.0-1")),
        polled("c:0", (3, "w.0-0"), at=10.0),
        *both((0, "p.0-0"), (1, "p.0-1"), (3, "w.0-0")),
        final((0, "p.0-0"), (1, "p.0-1"), (3, "w.0-0"), replica="node 2"),
    ]
    assert check(events) == []


def test_an_acknowledged_write_that_later_offsets_overtook_is_lost() -> None:
    events = [*sent("p.0-0", 0), *sent("p.0-1", 1), *both((1, "p.0-1"))]
    assert kinds(events) == {"lost-write"}


def test_an_acknowledged_write_on_top_of_a_log_that_was_cut_is_lost_if_a_reader_saw_it() -> None:
    events = [*sent("p.0-0", 0), *sent("p.0-1", 1), polled("c", (0, "p.0-0"), (1, "p.0-1")), *both((0, "p.0-0"))]
    assert kinds(events) == {"lost-write"}


def test_an_acknowledged_write_beyond_the_end_is_unseen() -> None:
    assert kinds([*sent("p.0-0", 0), *sent("p.0-1", 1), *both((0, "p.0-0"))]) == {"unseen"}


def test_a_partition_that_could_not_be_read_at_the_end_is_no_success() -> None:
    assert kinds([*sent("p.0-0", 0)]) == {"unseen"}


def test_an_acknowledged_write_that_one_replica_lacks_is_lost() -> None:
    rows = [(0, "p.0-0"), (1, "p.0-1")]
    events = [*sent("p.0-0", 0), *sent("p.0-1", 1), *both(*rows), final(rows[1], replica="node 3")]
    assert kinds(events) == {"lost-write"}


@pytest.mark.parametrize("outcome", ["info", "fail"])
def test_a_write_that_was_not_acknowledged_may_be_absent(outcome: Outcome) -> None:
    assert kinds([*sent("p.0-0", -1, outcome=outcome), *sent("p.0-1", 0), *both((0, "p.0-1"))]) == set()


def test_a_write_without_any_answer_may_be_there_or_not() -> None:
    unanswered = [Send("p.0-0", TOPIC, 0, 1.0)]
    assert kinds([*unanswered, *both((0, "p.0-0"))]) == set()
    assert kinds([*unanswered, *both()]) == set()


def test_a_write_that_failed_for_certain_must_not_be_there() -> None:
    assert kinds([*sent("p.0-0", -1, outcome="fail"), *both((0, "p.0-0"))]) == {"phantom"}


def test_a_message_that_nobody_sent_is_a_phantom() -> None:
    assert kinds([*sent("p.0-0", 0), *both((0, "p.0-0"), (1, "damaged-1234"))]) == {"phantom"}


def test_one_message_at_two_offsets_is_a_duplicate() -> None:
    assert kinds([*sent("p.0-0", 0), *both((0, "p.0-0"), (1, "p.0-0"))]) == {"duplicate"}


def test_an_answer_with_another_offset_than_the_log_is_a_duplicate() -> None:
    assert kinds([*sent("p.0-0", 7), *both((0, "p.0-0"))]) == {"duplicate"}


def test_an_offset_that_two_readers_saw_differently_is_inconsistent() -> None:
    events = [
        *sent("p.0-0", -1, outcome="info"),
        *sent("q.0-0", 0),
        polled("c", (0, "p.0-0")),
        *both((0, "q.0-0")),
    ]
    assert kinds(events) == {"inconsistent-offsets"}


def test_replicas_that_differ_are_inconsistent() -> None:
    events = [
        *sent("p.0-0", -1, outcome="info"),
        *sent("p.0-1", -1, outcome="info"),
        *both((0, "p.0-0")),
        final((0, "p.0-1"), replica="node 2"),
    ]
    assert kinds(events) == {"inconsistent-offsets"}


def test_a_producers_messages_in_another_order_are_non_monotonic() -> None:
    events = [*sent("p.0-0", 1, at=1), *sent("p.0-1", 0, at=2), *both((0, "p.0-1"), (1, "p.0-0"))]
    assert kinds(events) == {"non-monotonic-send"}


def test_messages_of_different_producers_or_incarnations_have_no_order() -> None:
    events = [*sent("p.0-0", 1, at=1), *sent("p.1-0", 0, at=2), *both((0, "p.1-0"), (1, "p.0-0"))]
    assert kinds(events) == set()


def test_a_reader_that_goes_back_by_itself_is_non_monotonic() -> None:
    log = [(0, "p.0-0"), (1, "p.0-1")]
    events = [*sent("p.0-0", 0), *sent("p.0-1", 1), polled("c", *log), polled("c", *log), *both(*log)]
    assert kinds(events) == {"non-monotonic-poll"}


def test_a_reader_that_seeks_has_a_new_session() -> None:
    log = [(0, "p.0-0"), (1, "p.0-1")]
    events = [*sent("p.0-0", 0), *sent("p.0-1", 1), polled("c:0", *log), polled("c:1", *log), *both(*log)]
    assert kinds(events) == set()


def test_a_reader_that_is_led_past_a_record_skips() -> None:
    log = [(0, "p.0-0"), (1, "p.0-1"), (2, "p.0-2")]
    events = [*(e for offset, name in log for e in sent(name, offset)), polled("c", log[0], log[2]), *both(*log)]
    assert kinds(events) == {"poll-skip"}


def test_a_reader_whose_first_record_is_not_its_start_skips() -> None:
    log = [(0, "p.0-0"), (1, "p.0-1")]
    events = [*sent("p.0-0", 0), *sent("p.0-1", 1), Assigned("c", TOPIC, 0, 0, 0.5), polled("c", log[1]), *both(*log)]
    assert kinds(events) == {"poll-skip"}


def test_a_reader_of_committed_messages_may_pass_over_aborted_ones() -> None:
    events = [
        *sent("w.0-0", 0, transaction="w.0:0"),
        *ended("w.0:0", "abort"),
        *sent("w.0-1", 2, transaction="w.0:1"),
        *ended("w.0:1", "commit"),
        Assigned("c", TOPIC, 0, 0, 0.5),
        polled("c", (2, "w.0-1"), isolation="committed"),
        final((0, "w.0-0"), (2, "w.0-1")),
        final((2, "w.0-1"), isolation="committed"),
    ]
    assert kinds(events) == set()


def test_a_message_of_an_aborted_transaction_must_not_be_read() -> None:
    aborted = [*sent("w.0-0", 0, transaction="w.0:0"), *ended("w.0:0", "abort")]
    assert kinds([*aborted, final((0, "w.0-0"))]) == set(), "whoever reads uncommitted messages may see it"
    assert kinds([*aborted, *both((0, "w.0-0"))]) == {"aborted-read"}
    seen = polled("c", (0, "w.0-0"), isolation="committed")
    assert kinds([*aborted, seen, final(isolation="committed")]) == {"aborted-read"}


def test_a_message_of_a_transaction_that_was_never_to_commit_must_not_be_read() -> None:
    assert kinds([*sent("w.0-0", 0, transaction="w.0:0"), *both((0, "w.0-0"))]) == {"aborted-read"}


def test_a_commit_that_failed_and_was_then_aborted_is_aborted() -> None:
    events = [
        *sent("w.0-0", 0, transaction="w.0:0"),
        *ended("w.0:0", "commit", "fail"),
        *ended("w.0:0", "abort", at=6.0),
        *both((0, "w.0-0")),
    ]
    assert kinds(events) == {"aborted-read"}


def test_a_commit_that_nobody_knows_of_may_show_all_or_nothing_but_not_half() -> None:
    events = [
        *sent("w.0-0", 0, transaction="w.0:0"),
        *sent("w.0-1", 0, transaction="w.0:0", partition=1),
        End("w.0:0", "commit", 5.0),
    ]
    assert kinds([*events, *both(), *both(partition=1)]) == set()
    assert kinds([*events, *both((0, "w.0-0")), *both((0, "w.0-1"), partition=1)]) == set()
    assert kinds([*events, *both((0, "w.0-0")), *both(partition=1)]) == {"half-visible"}


def test_a_committed_transaction_that_is_gone_is_lost() -> None:
    events = [*sent("w.0-0", 0, transaction="w.0:0"), *ended("w.0:0", "commit"), *sent("p.0-0", 1), *both((1, "p.0-0"))]
    assert kinds(events) == {"lost-write"}


def test_a_message_must_not_be_read_as_committed_before_the_commit_is_asked_for() -> None:
    events = [*sent("w.0-0", 0, transaction="w.0:0"), *ended("w.0:0", "commit", at=5.0), *both((0, "w.0-0"))]
    assert kinds([*events, polled("c", (0, "w.0-0"), at=4.9, isolation="committed")]) == {"precommitted-read"}
    assert kinds([*events, polled("c", (0, "w.0-0"), at=5.01, isolation="committed")]) == set()
    assert kinds([*events, polled("c", (0, "w.0-0"), at=4.9)]) == set(), "uncommitted readers may"


def derived(*results: str) -> list[Event]:
    """Two source records, and results of them in a sink."""
    rows = list(enumerate(results))
    sources = [*sent("p.0-0", 0), *sent("p.0-1", 1), *both((0, "p.0-0"), (1, "p.0-1"))]
    writes = [event for n, name in rows for event in sent(name, n, transaction=f"x.0:{n}", topic=f"{TOPIC}.derived")]
    ends = [event for n, _ in rows for event in ended(f"x.0:{n}", "commit")]
    return [*sources, *writes, *ends, final(*rows, topic=f"{TOPIC}.derived", isolation="committed")]


def test_each_source_record_has_one_effect() -> None:
    assert kinds(derived("x.0-0/0.0", "x.0-1/0.1")) == set()
    assert kinds(derived("x.0-0/0.0")) == set(), "the rest is yet to come"
    assert kinds(derived("x.0-0/0.0", "x.0-1/0.0")) == {"effect-duplicate"}
    assert kinds(derived("x.0-0/0.1")) == {"effect-lost"}


def test_a_group_that_is_sent_back_before_its_commit_lost_it() -> None:
    log = [(0, "p.0-0"), (1, "p.0-1")]
    events = [*sent("p.0-0", 0), *sent("p.0-1", 1), *both(*log), Committed("g", TOPIC, 0, 2, "ok", 3.0)]
    assert kinds([*events, Assigned("m", TOPIC, 0, 1, 3.1, "g")]) == {"lost-commit"}
    assert kinds([*events, Assigned("m", TOPIC, 0, -1, 3.1, "g")]) == {"lost-commit"}, "none is before any"
    assert kinds([*events, Assigned("m", TOPIC, 0, 1, 2.9, "g")]) == set(), "it asked before the answer was known"
    assert kinds([*events, Assigned("m", TOPIC, 0, 1, 3.1, "h")]) == set(), "another group"
    unknown = Committed("g", TOPIC, 0, 9, "info", 3.0)
    assert kinds([*events, unknown, Assigned("m", TOPIC, 0, 2, 3.1, "g")]) == set()


def test_a_group_that_is_done_has_seen_everything() -> None:
    log = [(0, "p.0-0"), (1, "p.0-1")]
    events = [*sent("p.0-0", 0), *sent("p.0-1", 1), *both(*log)]
    half = Polled("m", "uncommitted", 2.0, [(TOPIC, 0, 0, "p.0-0")], "g")
    assert kinds([*events, half, Finished("m", True, 9.0, "g")]) == {"unseen-by-group"}
    assert kinds([*events, half, Finished("m", False, 9.0, "g")]) == {"never-caught-up"}
    rest = Polled("n", "uncommitted", 2.0, [(TOPIC, 0, 1, "p.0-1")], "g")
    assert kinds([*events, half, rest, Finished("m", False, 9.0, "g"), Finished("n", True, 9.0, "g")]) == set()


def test_the_order_of_diaries_does_not_matter() -> None:
    events = [*sent("p.0-0", 0), *sent("p.0-1", 1), *both((1, "p.0-1"))]
    answers_first = sorted(events, key=lambda event: isinstance(event, Send))
    assert kinds(answers_first) == {"lost-write"}


def test_every_anomaly_is_named_by_its_check() -> None:
    lost = [*sent("p.0-0", 0), *sent("p.0-1", 1), *both((1, "p.0-1"))]
    assert {anomaly.kind for anomaly in check(lost)} <= set(CHECKS)
