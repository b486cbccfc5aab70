"""The timing wheel against a list that is searched through."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from penstock.features.schedules.wheel import PERIOD_MS, PERIODS_MAX, TICK_MS, Wheel

SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000

# Times near the borders of buckets and levels, and anywhere else.
spans = st.one_of(
    st.integers(0, 30),
    st.sampled_from([2_550, 2_560, 2_570, 163_830, 163_840, PERIOD_MS - 10, PERIOD_MS, PERIOD_MS + 10]),
    st.integers(0, 10 * SECOND),
    st.integers(0, HOUR),
    st.integers(0, 9 * DAY),
)


class WheelMachine(RuleBasedStateMachine):
    @initialize(
        now=st.integers(0, 40 * DAY),
        ahead=st.sampled_from([1, 2, 16, PERIODS_MAX]),
        lead=st.sampled_from([0, 1, 255, 2_080, 2_000_000]),
    )
    def start(self, now: int, ahead: int, lead: int) -> None:
        self.now, self.ahead, self.lead = now, ahead, lead
        self.wheel = Wheel(now, ahead, lead)
        self.twin: dict[int, int] = {}  # the time of each entry
        self.unlinked: list[int] = []

    def pick(self, number: int) -> int | None:
        entries = sorted(self.twin)
        return entries[number % len(entries)] if entries else None

    @rule(span=spans, is_past=st.booleans())
    def add(self, span: int, is_past: bool) -> None:
        at = max(0, self.now - span // 1_000) if is_past else self.now + span
        period, present = ((due_at(each) + self.lead * TICK_MS) // PERIOD_MS for each in (at, self.now // 10 * 10))
        assert self.wheel.holds(at) == (period < present + self.ahead)
        assert self.wheel.period_of(at) == period
        if self.wheel.holds(at):
            entry = self.wheel.add(at)
            assert entry not in self.twin
            assert entry not in self.unlinked
            assert entry < self.wheel.slots
            self.twin[entry] = at

    @rule(several=st.lists(spans, max_size=12), past=st.integers(0, 5_000))
    def fill(self, several: list[int], past: int) -> None:
        times = sorted(at for span in several if self.wheel.holds(at := max(0, self.now + span - past)))
        slots = self.wheel.slots
        assert self.wheel.fill(times) == slots
        self.twin.update(enumerate(times, slots))

    @rule(number=st.integers(0, 1_000))
    def remove(self, number: int) -> None:
        entry = self.pick(number)
        if entry is not None:
            self.wheel.remove(entry)
            del self.twin[entry]

    @rule(number=st.integers(0, 1_000), span=spans)
    def move(self, number: int, span: int) -> None:
        entry = self.pick(number)
        if entry is not None and self.wheel.holds(self.now + span):
            self.wheel.move(entry, self.now + span)
            self.twin[entry] = self.now + span

    @rule(number=st.integers(0, 1_000))
    def unlink(self, number: int) -> None:
        entry = self.pick(number)
        if entry is not None:
            self.wheel.unlink(entry)
            del self.twin[entry]
            assert not self.wheel.is_linked(entry)
            self.unlinked.append(entry)

    @rule(span=spans)
    def link_or_release(self, span: int) -> None:
        if self.unlinked:
            entry = self.unlinked.pop()
            if self.wheel.holds(self.now + span):
                self.wheel.link(entry, self.now + span)
                self.twin[entry] = self.now + span
            else:
                self.wheel.release(entry)

    @rule(span=spans, takes=st.booleans())
    def advance(self, span: int, takes: bool) -> None:
        self.now += span
        self.wheel.advance(self.now)
        if takes:
            for entry in self.wheel.due(10_000):
                self.wheel.remove(entry)
                del self.twin[entry]

    @rule()
    def sleep(self) -> None:
        """Whoever sleeps until it is woken misses nothing."""
        wake = self.wheel.next_ms
        waiting = [at for at in self.twin.values() if due_at(at) > self.now]
        assert self.now < wake <= min(map(due_at, waiting), default=inf)
        if wake < inf:
            self.now = int(wake)
            self.wheel.advance(self.now)

    @rule()
    def copy(self) -> None:
        self.wheel = copied(self.wheel, self.ahead, self.lead)

    @rule(span=spans)
    def restart(self, span: int) -> None:
        self.now = max(0, self.now - span)
        for entry in self.wheel.restart(self.now):
            assert not self.wheel.holds(self.twin.pop(entry))
            self.wheel.release(entry)

    @invariant()
    def the_twin_agrees(self) -> None:
        if not getattr(self, "wheel", None):
            return
        assert len(self.wheel) == len(self.twin)
        assert self.wheel.due_count == sum(due_at(at) <= self.now for at in self.twin.values())
        assert sorted(self.wheel.due(10_000)) == sorted(e for e, at in self.twin.items() if due_at(at) <= self.now)
        assert all(self.wheel.time_of(entry) == at for entry, at in self.twin.items())
        last = -inf
        seen: list[int] = []
        for end, entries in self.wheel.buckets():
            times = [due_at(self.twin[entry]) for entry in entries]
            assert last < min(times)
            assert max(times) <= end
            last = end
            seen += entries
        assert sorted(seen) == sorted(self.twin)


def copied(wheel: Wheel, ahead: int, lead: int) -> Wheel:
    """Another one that takes over everything, as from a snapshot."""
    copy = Wheel(0, ahead, lead)
    middle = wheel.slots - wheel.slots // 3
    first, second = wheel.pack(0, middle), wheel.pack(middle, wheel.slots)
    copy.unpack(wheel.marks, *(one + other for one, other in zip(first, second, strict=True)))
    return copy


def due_at(at: int) -> int:
    return -(-at // TICK_MS) * TICK_MS


def test_a_wheel_does_as_its_twin() -> None:
    run_state_machine_as_test(
        WheelMachine,
        settings=settings(
            max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_wheel_does_as_its_twin_for_long() -> None:
    run_state_machine_as_test(
        WheelMachine,
        settings=settings(
            max_examples=800, stateful_step_count=200, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 32))
def test_entries_come_in_the_order_of_a_heap(seed: int) -> None:
    """Hundreds of entries, jumps of any size: what comes out, and when, is what a sorted list gives."""
    random = Random(seed)
    now = random.randrange(40 * DAY)
    wheel = Wheel(now, PERIODS_MAX)
    waiting: dict[int, int] = {}
    for _ in range(300):
        for _ in range(random.randrange(6)):
            at = now + random.choice([random.randrange(100), random.randrange(HOUR), random.randrange(7 * DAY)])
            waiting[wheel.add(at)] = at
        now += random.choice([0, 1, 9, 10, random.randrange(3_000), random.randrange(DAY // 4)])
        wheel.advance(now)
        expected = sorted((e for e in waiting if due_at(waiting[e]) <= now), key=lambda e: due_at(waiting[e]))
        came = list(drain(wheel))
        assert sorted(came) == sorted(expected)
        ticks = [due_at(waiting.pop(entry)) for entry in came]
        assert all(tick <= now for tick in ticks)


def drain(wheel: Wheel) -> Iterator[int]:
    for entry in wheel.due(10_000):
        wheel.remove(entry)
        yield entry


def test_numbers_of_entries_are_used_again() -> None:
    wheel = Wheel()
    entries = [wheel.add(at) for at in range(100)]
    for entry in entries:
        wheel.remove(entry)
    assert sorted(wheel.add(at) for at in range(100)) == entries


def test_an_entry_cannot_be_taken_out_twice() -> None:
    wheel = Wheel()
    entry = wheel.add(50)
    wheel.remove(entry)
    with pytest.raises(AssertionError):
        wheel.remove(entry)


def test_what_is_behind_the_horizon_is_refused() -> None:
    wheel = Wheel(0, 2)
    assert wheel.horizon == 2
    assert wheel.horizon_ms == 2 * PERIOD_MS
    assert not wheel.holds(wheel.horizon_ms)
    assert wheel.holds(wheel.horizon_ms - TICK_MS)
    with pytest.raises(AssertionError):
        wheel.add(wheel.horizon_ms)
    wheel.advance(PERIOD_MS)
    wheel.add(2 * PERIOD_MS)


def test_what_is_held_is_not_told_again_until_it_is_moved() -> None:
    wheel = Wheel(0, 4)
    entries = [wheel.add(at_ms) for at_ms in (10, 20, 30)]
    wheel.advance(100)
    assert wheel.take(0) == []
    assert wheel.take(2) == entries[:2]
    assert wheel.due(5) == entries[2:]
    assert (wheel.due_count, len(wheel)) == (3, 3)
    assert [each for _, bucket in wheel.buckets() for each in bucket] == entries
    assert wheel.take(5) == entries[2:]
    assert not wheel.is_due
    assert wheel.take(5) == []
    assert [each for _, bucket in wheel.buckets() for each in bucket] == entries
    wheel.move(entries[1], wheel.time_of(entries[1]))
    assert wheel.due(5) == [entries[1]]
    wheel.remove(entries[0])
    assert (wheel.due_count, len(wheel)) == (2, 2)
    assert wheel.restart(25) == []
    assert wheel.due(5) == [entries[1]], "whoever had it in hand finds it where its time says"
    wheel.advance(30)
    assert set(wheel.due(5)) == {entries[1], entries[2]}


def test_what_somebody_had_in_hand_is_due_in_a_copy() -> None:
    wheel = Wheel(0, 4)
    entries = [wheel.add(at_ms) for at_ms in (10, 20, 30, 500)]
    wheel.advance(100)
    assert wheel.take(2) == entries[:2]
    wheel.move(entries[0], 10)
    copy = copied(wheel, 4, 0)
    assert copy.due(5) == [entries[1], entries[2], entries[0]]
    assert (copy.due_count, len(copy), copy.next_ms) == (3, 4, wheel.next_ms)


def test_a_bucket_with_entries_of_many_times_falls_apart_by_time() -> None:
    wheel = Wheel(0, 4)
    times = [3_000 + (37 * at) % 2_000 for at in range(400)]
    entries = {wheel.add(at_ms): at_ms for at_ms in times}
    removed = list(entries)[::7]
    told: list[int] = []
    for now_ms in range(0, 6_000, TICK_MS):
        wheel.advance(now_ms)
        if now_ms == 3_500:
            for entry in [each for each in removed if each not in told]:
                wheel.remove(entry)
        for entry in wheel.take(1_000):
            assert now_ms - TICK_MS < entries[entry] <= now_ms
            told.append(entry)
    assert len(set(told)) == len(told)
    assert set(entries) - set(told) <= set(removed)
    assert [entries[entry] for entry in told] == sorted(entries[entry] for entry in told)
