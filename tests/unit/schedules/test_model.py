"""Random requests, clocks, deaths and refusals, and a twin that keeps a dict for each schedule.

No schedule is lost, none comes early, none comes twice; and at any time the log, read from its beginning or from the
last snapshot, tells the same story as memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.unit.schedules.desk import START_MS, Desk, Died

from penstock.features.schedules.messages import ScheduleOutcome
from penstock.features.schedules.recurrence import Every, Missed
from penstock.features.schedules.wheel import PERIOD_MS, TICK_MS

HOUR, DAY = 3_600_000, 86_400_000

spans = st.one_of(
    st.integers(-100, 100),
    st.integers(0, 5_000),
    st.sampled_from([PERIOD_MS - 1, PERIOD_MS, 2 * PERIOD_MS, DAY, 30 * DAY]),
    st.integers(0, 3 * DAY),
)
deaths = st.one_of(st.just(-1), st.just(-1), st.integers(1, 12))
picks = st.integers(0, 1_000)


class ScheduleMachine(RuleBasedStateMachine):
    @initialize(ahead=st.sampled_from([2, 16]), refuses=st.booleans())
    def start(self, ahead: int, refuses: bool) -> None:
        self.desk = Desk(periods_ahead=ahead, tries=3)
        self.refuses = refuses
        self.twin: dict[str, dict[str, Any]] = {}  # by value, which is an id and nothing else has it
        self.count = 0
        self.setbacks = 0  # how far clocks went back

    def attempt(self, dies_in: int, act: Callable[[], Any]) -> Any:
        """What comes of doing something; None if the node died over it, and then another one leads."""
        self.desk.dies_in = dies_in
        try:
            return act()
        except Died:
            self.desk.fail_over()
            return None
        finally:
            self.desk.dies_in = -1

    def being_fired(self) -> set[str]:
        """What is to come, and may have come, whatever happens."""
        entries = [entry for firing in self.desk.machine.unfinished() for entry in firing.entries]
        return {(self.desk.read(offset).message.value or b"").decode() for _, offset, _ in entries}

    def pick(self, number: int) -> dict[str, Any] | None:
        found = list(self.twin.values())
        return found[number % len(found)] if found else None

    # -- requests -----------------------------------------------------------------------------------------------------

    @rule(span=spans, dies=deaths, of_client=st.booleans(), partition=st.integers(0, 1))
    def add_once(self, span: int, dies: int, of_client: bool, partition: int) -> None:
        self.count += 1
        value, due = f"once-{self.count}", max(0, self.desk.now_ms + span)
        facts: dict[str, Any] = {"id": value} if of_client else {}
        placed = self.attempt(dies, lambda: self.desk.add(value, due_ms=due, partition=partition, **facts))
        if placed is not None:
            self.note(placed.id, value, due, None)

    @rule(every=st.sampled_from([100, 1_000, 60_000, HOUR, 5 * DAY]), dies=deaths, missed=st.sampled_from(Missed))
    def add_again(self, every: int, dies: int, missed: Missed) -> None:
        if sum(known["every"] is not None for known in self.twin.values()) >= 2:
            return  # they make many messages
        self.count += 1
        value, due = f"again-{self.count}", self.desk.now_ms + every
        placed = self.attempt(dies, lambda: self.desk.add(value, rule=Every(every, 0), missed=missed))
        if placed is not None:
            assert placed.due_ms == due
            self.note(placed.id, value, due, every)

    def note(self, name: str, value: str, due: int, every: int | None) -> None:
        self.twin[value] = {
            "id": name,
            "value": value,
            "due": due,
            "every": every,
            "is_live": True,
            "runs": 0,  # that somebody asked for
            "earliest": due,
            "most": None,  # how often it may come, once it was cancelled
        }

    @rule(number=picks, dies=deaths)
    def add_twice(self, number: int, dies: int) -> None:
        known = self.pick(number)
        if known is not None and not known["id"].startswith("sched-"):
            was_there = self.desk.find(known["id"]) is not None
            if was_there:
                placed = self.attempt(dies, lambda: self.desk.add("another", id=known["id"], due_ms=0))
                assert placed is None or not placed.is_new

    @rule(number=picks, dies=deaths)
    def cancel(self, number: int, dies: int) -> None:
        known = self.pick(number)
        if known is None:
            return
        is_firing = bool(self.desk.machine.unfinished())
        fate = self.attempt(dies, lambda: self.desk.cancel(known["id"]))
        if fate is ScheduleOutcome.DONE:
            assert known["is_live"]
            known["is_live"] = False
            # One that is being fired may come yet, or has come and that is not written down.
            known["most"] = len(self.came().get(known["value"], ())) + (known["every"] is not None and is_firing)
        elif fate is ScheduleOutcome.NOT_FOUND:
            assert not known["is_live"] or known["value"] in self.came()

    @rule(number=picks, span=spans, dies=deaths)
    def reschedule(self, number: int, span: int, dies: int) -> None:
        known = self.pick(number)
        if known is None or known["every"] is not None:
            return
        due = max(0, self.desk.now_ms + span)
        fate = self.attempt(dies, lambda: self.desk.reschedule(known["id"], due_ms=due))
        if fate is ScheduleOutcome.DONE:
            known["due"] = known["earliest"] = due
        elif fate is ScheduleOutcome.NOT_FOUND:
            assert not known["is_live"] or known["value"] in self.came()

    @rule(number=picks, dies=deaths)
    def run_now(self, number: int, dies: int) -> None:
        known = self.pick(number)
        if known is None:
            return
        if self.attempt(dies, lambda: self.desk.run_now(known["id"])) is ScheduleOutcome.DONE:
            known["runs"] += 1
            known["earliest"] = min(known["earliest"], self.desk.now_ms)
            if known["every"] is None:
                known["due"] = self.desk.now_ms

    # -- time and faults ----------------------------------------------------------------------------------------------

    @rule(span=spans, dies=deaths)
    def wait(self, span: int, dies: int) -> None:
        if any(known["every"] in (100, 1_000) and known["is_live"] for known in self.twin.values()):
            span = min(span, 3_000)
        self.desk.now_ms += max(0, span)
        self.attempt(dies, self.desk.look)

    @rule()
    def wait_until_woken(self) -> None:
        wake = self.desk.machine.wake_ms
        if self.desk.now_ms < wake < START_MS + 10_000 * DAY:
            self.desk.now_ms = int(wake)
        self.desk.look()

    @rule(back=st.sampled_from([0, 0, 1_000, HOUR, 3 * DAY]))
    def fail_over(self, back: int) -> None:
        self.setbacks += back
        self.desk.fail_over(max(0, self.desk.now_ms - back))
        for value in self.being_fired():  # it was due by the clock that said so, and comes by this one
            self.twin[value]["earliest"] = min(self.twin[value]["earliest"], self.desk.now_ms)

    @rule(dies=deaths)
    def snapshot(self, dies: int) -> None:
        self.attempt(dies, self.desk.snapshot)

    @rule(span=spans, dies=st.integers(2, 5), snapshots=st.booleans(), cancels=st.booleans())
    def die_while_firing(self, span: int, dies: int, snapshots: bool, cancels: bool) -> None:
        self.wait(span, dies)
        if cancels:
            for known in [known for known in self.twin.values() if known["every"] is not None and known["is_live"]]:
                self.cancel(list(self.twin.values()).index(known), -1)
        if snapshots:
            self.desk.snapshot()
            self.desk.fail_over()
        self.the_log_tells_the_same_story()

    @rule(limit=st.integers(1, 50))
    def carry(self, limit: int) -> None:
        self.desk.carry(limit)

    @rule(number=picks)
    def toggle_refusal(self, number: int) -> None:
        known = self.pick(number)
        if self.refuses and known is not None:
            for index in (0, 1):
                self.desk.topic("orders", index).refuses ^= {known["value"].encode()}

    # -- what always holds --------------------------------------------------------------------------------------------

    def came(self) -> dict[str, list[int]]:
        """When each message came."""
        found: dict[str, list[int]] = {}
        for index in (0, 1):
            for value, at in self.desk.topic("orders", index).messages:
                found.setdefault(value.decode(), []).append(at)
        return found

    @invariant()
    def none_comes_early_and_none_twice(self) -> None:
        if not getattr(self, "desk", None):
            return
        for value, times in self.came().items():
            known = self.twin[value]
            assert min(times) >= known["earliest"], "it came early"
            assert known["most"] is None or len(times) <= known["most"], "it came though it was cancelled"
            if known["every"] is None:
                assert len(times) == 1, "it came twice"
            elif not self.setbacks:
                points = (self.desk.now_ms - known["due"]) // known["every"] + 1
                assert len(times) <= max(0, points) + known["runs"], "it came too often"

    @rule()
    def the_log_tells_the_same_story(self) -> None:
        expected = self.desk.machine._state.dump()
        assert self.desk.replayed(0)._state.dump() == expected
        assert self.desk.replayed()._state.dump() == expected

    @rule()
    def none_is_lost(self) -> None:
        self.desk.look()
        came = self.came()
        for value, known in self.twin.items():
            if known["is_live"] and (known["every"] is not None or value not in came):
                found = self.desk.find(known["id"])
                assert found is not None, "it is lost"
                if not self.refuses and known["every"] is None:
                    assert -(-known["due"] // TICK_MS) > self.desk.now_ms // TICK_MS, "it is late"
                    assert found[1].due_ms == known["due"]
        stats = self.desk.machine.stats
        assert stats.firing == 0
        assert stats.near + stats.far + stats.failed == self.desk.machine.live

    def teardown(self) -> None:
        if not getattr(self, "desk", None):
            return
        for known in self.twin.values():
            if known["every"] is not None and known["is_live"]:
                assert self.desk.cancel(known["id"]) is ScheduleOutcome.DONE
        for _ in range(12):
            self.desk.wait(20 * DAY)
        came = self.came()
        failed = {self.desk.read(offset).message.value for offset in self.desk.machine.failed()}
        for value, known in self.twin.items():
            if known["every"] is None and known["is_live"]:
                assert (value in came) != (value.encode() in failed), "it neither came nor failed, or both"
        assert self.desk.machine.live == len(failed)
        assert self.refuses or not failed


def checked(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        ScheduleMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_schedules_do_as_their_twin() -> None:
    checked(20, 30)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_schedules_do_as_their_twin_for_long() -> None:
    checked(600, 150)
