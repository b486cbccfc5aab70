"""What schedules promise, one claim at a time."""

from __future__ import annotations

from math import inf

import msgspec
import pytest
from tests.unit.schedules.desk import START_MS, Desk, Died

from penstock.config.settings import ScheduleSettings
from penstock.errors import CorruptRecords, InvalidRequest
from penstock.features.schedules.messages import (
    DUE_MS_MAX,
    AddAll,
    AssignScheduleProducer,
    Fire,
    FireAll,
    ScheduleOutcome,
    ScheduleRequest,
    made,
    stands_for,
)
from penstock.features.schedules.records import Fired, ScheduleChange, ScheduledMessage, ScheduleStatus, from_record
from penstock.features.schedules.recurrence import ByCron, Every, Missed
from penstock.features.schedules.wheel import PERIOD_MS
from penstock.records import Record

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
YEAR = 365 * DAY


def test_a_message_comes_when_it_is_due_and_not_before() -> None:
    desk = Desk()
    placed = desk.add("tea", due_ms=START_MS + 5_000)
    assert placed.is_new
    assert placed.id == "sched-3-1"
    desk.wait(4_999)
    assert desk.values() == []
    assert desk.machine.wake_ms <= START_MS + 5_000
    desk.wait(1)
    assert desk.values() == ["tea"]
    assert desk.machine.live == 0
    assert desk.machine.wake_ms == inf


def test_what_is_due_already_comes_at_once() -> None:
    desk = Desk()
    desk.add("now", due_ms=0)
    desk.look()
    assert desk.values() == ["now"]


def test_the_same_id_is_added_once() -> None:
    desk = Desk()
    for due_ms in (START_MS + HOUR, START_MS + YEAR):
        first = desk.add("a", id=f"mine-{due_ms}", due_ms=due_ms)
        again = desk.add("b", id=f"mine-{due_ms}", due_ms=due_ms)
        assert (first.is_new, again.is_new) == (True, False)
        assert desk.read(again.offset).message.value == b"a"
    twice = [ScheduleRequest(message=ScheduledMessage("orders"), id="both", due_ms=START_MS + HOUR)] * 2
    assert [placed.is_new for placed in desk.ask(AddAll(twice))] == [True, False]
    assert desk.machine.live == 3


def test_an_id_stands_for_what_was_added_under_it() -> None:
    """A delay leads to another time whenever it is said; another time given as such, message or rule is another one."""
    message = ScheduledMessage("orders", None, None, b"a")
    once = ScheduleRequest(message=message, id="once", due_ms=START_MS + HOUR, is_exact=True)
    change = msgspec.structs.replace
    stored = made(once, START_MS)
    assert stands_for(stored, once)
    assert stands_for(stored, change(once, due_ms=START_MS + YEAR, is_exact=False))
    assert not stands_for(stored, change(once, due_ms=START_MS + YEAR))
    assert not stands_for(stored, change(once, message=change(message, value=b"b")))
    assert not stands_for(stored, change(once, rule=Every(1_000, 0)))
    assert not stands_for(stored, change(once, missed=Missed.ALL))
    again = ScheduleRequest(message=message, id="again", rule=Every(1_000, 0))
    stored = change(made(again, START_MS), runs=5, due_ms=START_MS + 6_000)
    assert stands_for(stored, again)
    assert not stands_for(stored, change(again, rule=Every(2_000, 0)))
    assert not stands_for(stored, change(again, rule=ByCron("0 7 * * *")))
    assert not stands_for(stored, once)
    both = [once, change(once, message=change(message, value=b"b")), once]
    assert [placed.is_other for placed in Desk().ask(AddAll(both))] == [False, True, False]


def test_an_id_that_was_only_mistaken_for_another_one_is_added() -> None:
    desk = Desk()
    desk.add("a", id="mine", due_ms=START_MS + YEAR)
    placed = desk.add("b", id="mine", due_ms=START_MS + YEAR, others=(0,))
    assert placed.is_new


@pytest.mark.parametrize("due_ms", [START_MS + HOUR, START_MS + YEAR])
def test_what_is_cancelled_does_not_come(due_ms: int) -> None:
    desk = Desk()
    placed = desk.add("a", due_ms=due_ms)
    assert desk.cancel(placed.id) is ScheduleOutcome.DONE
    assert desk.cancel(placed.id) is ScheduleOutcome.NOT_FOUND
    desk.wait(2 * YEAR)
    assert desk.values() == []
    assert desk.machine.live == 0


@pytest.mark.parametrize("first", [1, HOUR, YEAR])
@pytest.mark.parametrize("second", [1, HOUR, YEAR])
def test_what_is_rescheduled_comes_at_its_new_time(first: int, second: int) -> None:
    desk = Desk()
    placed = desk.add("a", due_ms=START_MS + first)
    assert desk.reschedule(placed.id, due_ms=START_MS + second) is ScheduleOutcome.DONE
    desk.wait(second - 1)
    assert desk.values() == []
    desk.wait(10)
    assert desk.values() == ["a"]
    desk.wait(2 * YEAR)
    assert desk.values() == ["a"]


def test_years_ahead_is_not_in_memory_until_it_is_near() -> None:
    desk = Desk(periods_ahead=2)
    desk.add("a", due_ms=START_MS + 5 * YEAR)
    assert (desk.machine.stats.near, desk.machine.stats.far) == (0, 1)
    assert START_MS + 5 * YEAR - 2 * PERIOD_MS <= desk.machine.wake_ms <= START_MS + 5 * YEAR - PERIOD_MS
    desk.now_ms = int(desk.machine.wake_ms)
    desk.look()
    assert (desk.machine.stats.near, desk.machine.stats.far) == (1, 0)
    desk.wait(START_MS + 5 * YEAR - desk.now_ms - 1)
    assert desk.values() == []
    desk.wait(10)
    assert desk.values() == ["a"]


def test_run_now_is_at_once_and_what_comes_again_goes_on_as_planned() -> None:
    desk = Desk()
    once = desk.add("once", due_ms=START_MS + YEAR)
    again = desk.add("again", rule=Every(HOUR, 0))
    desk.wait(MINUTE)
    assert desk.run_now(once.id) is ScheduleOutcome.DONE
    assert desk.run_now(again.id) is ScheduleOutcome.DONE
    desk.look()
    assert sorted(desk.values()) == ["again", "once"]
    desk.wait(HOUR - MINUTE)
    assert sorted(desk.values()) == ["again", "again", "once"]
    assert desk.run_now(once.id) is ScheduleOutcome.NOT_FOUND


def test_cron_and_every() -> None:
    desk = Desk()
    desk.add("cron", rule=ByCron("@hourly", "Asia/Kathmandu"))
    desk.add("every", topic="other", rule=Every(10_000, 0), due_ms=START_MS + 500)
    for _ in range(1_000):
        desk.wait(10_000)
    cron = [at for _, at in desk.topic("orders").messages]
    assert all(at % HOUR - 15 * MINUTE < 10_000 for at in cron)  # Nepal is a quarter of an hour off
    assert len(cron) in (2, 3)
    assert len(desk.values("other")) == 1_000


@pytest.mark.parametrize(("missed", "count"), [(Missed.ONCE, 1), (Missed.ALL, 48), (Missed.SKIP, 0)])
def test_occurrences_that_were_missed(missed: Missed, count: int) -> None:
    desk = Desk()
    desk.add("a", rule=Every(HOUR, 0), missed=missed)
    desk.now_ms += 2 * DAY + 10 * MINUTE
    desk.fail_over()
    desk.look()
    assert len(desk.values()) == count
    desk.wait(50 * MINUTE)
    assert len(desk.values()) == count + 1


def test_what_is_a_little_late_was_not_missed() -> None:
    desk = Desk()
    desk.add("a", rule=Every(1_000, 0), missed=Missed.SKIP)
    desk.wait(10_000)
    assert len(desk.values()) == 10


def test_a_topic_that_is_gone_makes_a_schedule_fail_after_some_tries() -> None:
    desk = Desk(tries=3)
    desk.topic("orders").is_gone = True
    placed = desk.add("a", due_ms=START_MS)
    for _ in range(3):
        assert desk.machine.stats.failed == 0
        desk.wait(MINUTE)
    assert desk.machine.stats.failed == 1
    (offset,) = desk.machine.failed()
    failed = desk.read(offset)
    assert (failed.id, failed.state, failed.reason) == (placed.id, ScheduleStatus.FAILED, "There is no such topic.")
    desk.fail_over()
    assert desk.machine.failed() == [offset]
    desk.topic("orders").is_gone = False
    assert desk.run_now(placed.id) is ScheduleOutcome.DONE
    desk.look()
    assert desk.values() == ["a"]


def test_what_a_topic_refuses_fails_and_the_others_come() -> None:
    desk = Desk(tries=2)
    desk.topic("orders").refuses = {b"b"}
    for value in "abc":
        desk.add(value, due_ms=START_MS + 1_000)
    for _ in range(5):
        desk.wait(MINUTE)
    assert sorted(desk.values()) == ["a", "c"]
    assert desk.machine.stats.failed == 1
    desk.add("d", due_ms=0)
    desk.look()
    assert desk.values()[-1] == "d"


@pytest.mark.parametrize("dies_in", range(1, 5))
def test_whenever_a_node_dies_a_message_comes_once(dies_in: int) -> None:
    desk = Desk()
    desk.add("once", due_ms=START_MS + 10)
    desk.add("again", rule=Every(HOUR, 0), due_ms=START_MS + 10)
    desk.look()
    desk.dies_in = dies_in
    try:
        desk.wait(10)
    except Died:
        desk.fail_over()
    desk.look()
    assert sorted(desk.values()) == ["again", "once"]
    desk.wait(HOUR)
    assert sorted(desk.values()) == ["again", "again", "once"]


def test_it_is_too_late_to_cancel_what_is_being_fired_but_it_does_not_come_again() -> None:
    desk = Desk()
    once = desk.add("once", due_ms=START_MS + 10)
    again = desk.add("again", rule=Every(HOUR, 0), due_ms=START_MS + 10)
    desk.look()
    desk.dies_in = 2
    with pytest.raises(Died):
        desk.wait(10)
    desk.fail_over()
    assert desk.machine.stats.firing == 2
    assert desk.cancel(once.id) is ScheduleOutcome.TOO_LATE
    assert desk.reschedule(once.id, due_ms=0) is ScheduleOutcome.TOO_LATE
    assert desk.cancel(again.id) is ScheduleOutcome.DONE
    assert desk.cancel(again.id) is ScheduleOutcome.NOT_FOUND
    desk.snapshot()
    desk.fail_over()
    desk.wait(HOUR)
    assert sorted(desk.values()) == ["again", "once"]
    assert desk.machine.live == 0


def test_nothing_is_early_by_the_clock_of_a_new_leader() -> None:
    desk = Desk(periods_ahead=2)
    desk.add("soon", due_ms=START_MS + HOUR)
    desk.add("later", due_ms=START_MS + DAY + PERIOD_MS)
    desk.now_ms += DAY - 1
    desk.add("other", due_ms=START_MS + 10 * DAY)  # whoever reads this sees the old leader's clock
    desk.fail_over(START_MS)
    desk.look()
    assert desk.values() == []
    desk.wait(HOUR)
    assert desk.values() == ["soon"]
    desk.wait(2 * DAY)
    assert desk.values() == ["soon", "later"]


def test_what_was_due_by_one_leaders_clock_comes_also_where_the_next_ones_is_behind() -> None:
    desk = Desk()
    desk.add("tea", due_ms=START_MS + HOUR)
    desk.dies_in = 3  # a producer was assigned, the firing is written, the message is not
    with pytest.raises(Died):
        desk.wait(HOUR)
    assert desk.values() == []
    desk.fail_over(START_MS - DAY)
    desk.look()
    assert desk.values() == ["tea"]
    desk.wait(2 * DAY)
    assert desk.values() == ["tea"]


def test_pages_are_by_time() -> None:
    desk = Desk()
    for number in range(50):
        desk.add(str(number), due_ms=START_MS + number * 7_919 % 100_000)
    seen: list[int] = []
    page = desk.machine.page(7)
    while True:
        seen += [at for at, _ in page.entries]
        assert all(desk.read(offset).due_ms == at for at, offset in page.entries)
        if page.after is None:
            break
        page = desk.machine.page(7, page.after)
    assert seen == sorted(seen)
    assert len(seen) == 50


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"due_ms": -1},
        {"due_ms": DUE_MS_MAX + 1},
        {"due_ms": 1, "id": "sched-1-1"},
        {"due_ms": 1, "id": "a b"},
        {"due_ms": 1, "id": "a" * 201},
        {"rule": Every(1, 0)},
        {"rule": ByCron("nonsense")},
    ],
)
def test_what_makes_no_sense_is_refused(facts: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Desk().add("a", **facts)


def test_a_record_of_somebody_else_is_told_apart() -> None:
    with pytest.raises(CorruptRecords):
        from_record(Record(0, 0, None, b"nonsense", ()))


def test_half_a_snapshot_changes_nothing() -> None:
    desk = Desk()
    for number in range(10):
        desk.add(str(number), due_ms=START_MS + number * 20 * DAY)
    desk.write(desk.machine.snapshot()[:2])  # and then the node died
    desk.fail_over()
    assert desk.machine.live == 10
    desk.snapshot()
    desk.fail_over()
    desk.wait(YEAR)
    assert len(desk.values()) == 10


def test_what_is_read_many_at_once_is_as_what_is_applied_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.features.schedules.state._ADDED_AT_ONCE", 7)
    desk = Desk(periods_ahead=2)
    for number in range(40):
        desk.now_ms += number * 50
        due_ms = desk.now_ms + (number * 7 % 11) * PERIOD_MS // 3
        placed = desk.add(str(number), due_ms=due_ms, **({"id": f"id-{number}"} if number % 3 else {}))
        if number % 13 == 5:
            desk.cancel(placed.id)
        if number % 17 == 5:
            desk.reschedule(placed.id, due_ms=due_ms + PERIOD_MS)
    one_by_one, at_once = desk.replayed(0), desk.replayed()
    assert at_once._state.dump() == one_by_one._state.dump() == desk.machine._state.dump()
    assert at_once.stats == one_by_one.stats
    assert at_once.stats.far
    assert at_once.take_tally() == one_by_one.take_tally()
    assert at_once.page(100) == one_by_one.page(100)
    desk.fail_over()
    desk.wait(30 * PERIOD_MS)
    assert sorted(map(int, desk.values())) == [number for number in range(40) if number % 13 != 5]


def test_a_snapshot_of_somebody_who_looked_further_ahead_is_sorted_by_who_reads_it() -> None:
    desk = Desk(periods_ahead=16)
    for number in range(20):
        desk.add(str(number), due_ms=START_MS + number * PERIOD_MS // 2)
    before = desk.machine.stats
    desk.snapshot()
    desk.settings = ScheduleSettings(periods_ahead=3)
    desk.fail_over()
    stats = desk.machine.stats
    assert stats.near < before.near
    assert stats.far == 20 - stats.near
    desk.wait(20 * PERIOD_MS)
    assert sorted(map(int, desk.values())) == list(range(20))


def test_room_of_what_was_there_once_is_not_taken_over_with_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.features.schedules.near._ROWS_SPARE", 10)
    desk = Desk(tries=1)
    placed = [desk.add(str(number), due_ms=START_MS + DAY + number) for number in range(100)]
    for each in placed[5:]:
        desk.cancel(each.id)
    desk.topic("gone").is_gone = True
    desk.add("failing", topic="gone", due_ms=START_MS)
    desk.look()
    again, once = desk.add("again", rule=Every(1_000, 0)), desk.add("once", due_ms=START_MS)
    desk.dies_in = 2
    with pytest.raises(Died):
        desk.wait(1_000)
    desk.dies_in = -1
    assert desk.cancel(again.id) is ScheduleOutcome.DONE
    assert desk.cancel(once.id) is ScheduleOutcome.TOO_LATE
    desk.snapshot()
    expected, rows = desk.machine._state.dump(), desk.machine._state.near.rows
    desk.fail_over()
    assert desk.machine._state.dump() == expected
    assert desk.machine.stats.firing == 2
    assert desk.machine._state.near.rows == 8 < rows
    assert len(desk.machine.failed()) == 1
    assert desk.cancel(again.id) is ScheduleOutcome.NOT_FOUND
    desk.wait(2 * DAY)
    assert sorted(desk.values()) == ["0", "1", "2", "3", "4", "again", "once"]


def test_a_log_can_be_cut_after_what_is_needed_was_carried_on() -> None:
    desk = Desk()
    placed = [desk.add(str(number), due_ms=START_MS + number * DAY) for number in range(20)]
    desk.look()
    desk.cancel(placed[3].id)
    desk.snapshot()
    desk.carry(1_000)
    assert desk.start == desk.anchor
    desk.snapshot()
    desk.fail_over()
    desk.wait(40 * DAY)
    assert sorted(map(int, desk.values())) == [n for n in range(20) if n != 3]


def test_several_partitions_are_fired_at_once_with_a_number_each() -> None:
    desk = Desk()
    for at in range(4):
        desk.add(str(at), due_ms=START_MS, partition=at % 2)
    desk.machine.tick(desk.now_ms)
    desk.ask(AssignScheduleProducer(7))
    taken = desk.machine.take(10)
    assert desk.machine.due(10) == []
    groups = [[(each, desk.read(each.offset)) for each in taken[at::2]] for at in range(2)]
    answers = desk.ask(FireAll([Fire("orders", b"orders", at, group) for at, group in enumerate(groups)]))
    assert [answer.number for answer in answers] == [1, 2]
    assert [event.partition for event in desk.machine.unfinished()] == [0, 1]
    assert desk.ask(FireAll([Fire("orders", b"orders", 0, groups[0])])) == (None,), "it is busy"
    for firing in desk.machine.unfinished():
        desk.finish(firing)
    assert sorted(desk.values(index=0) + desk.values(index=1)) == ["0", "1", "2", "3"]


def test_what_was_taken_and_let_go_is_due_again_and_what_was_cancelled_is_not() -> None:
    desk = Desk()
    placed = [desk.add(str(at), due_ms=START_MS) for at in range(3)]
    desk.machine.tick(desk.now_ms)
    taken = desk.machine.take(10)
    assert desk.cancel(placed[0].id) is ScheduleOutcome.DONE
    desk.machine.let_go(taken)
    assert desk.machine.due(10) == taken[1:]
    desk.look()
    assert desk.values() == ["1", "2"]


def test_a_clock_that_is_set_back_while_it_leads_has_everything_sorted_anew() -> None:
    desk = Desk()
    desk.add("a", due_ms=START_MS + HOUR)
    desk.machine.tick(START_MS + 2 * HOUR)
    taken = desk.machine.take(10)
    desk.machine.tick(START_MS)
    assert desk.machine.due(10) == []
    desk.machine.let_go(taken)
    assert desk.machine.due(10) == []
    desk.machine.tick(START_MS + HOUR)
    assert desk.machine.due(10) == taken


def test_the_end_of_a_firing_that_is_told_twice_counts_once() -> None:
    desk = Desk()
    desk.add("a", due_ms=START_MS)
    desk.look()
    desk.write([ScheduleChange(Fired(1, 1))])
    assert desk.replayed().live == 0
