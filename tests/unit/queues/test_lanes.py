"""Lanes and fairness: shares by weight, nobody starves, everything is handed out once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from penstock.consensus.queue_config import Lanes, QueueSettings
from penstock.features.queues.core.intervals import Interval, IntervalMap
from penstock.features.queues.core.shares import LabelRun
from penstock.features.queues.core.supply import SharedSupply, pool_of
from penstock.priorities import NORMAL, lane_of

FREE, LEASED, DONE = 0, 1, 2
BOOST_MS = 30_000
WEIGHTS = dict(zip(range(5), QueueSettings().lane_weights, strict=True))
KINDS = {
    "lanes": QueueSettings(lanes=Lanes.ON),
    "fair": QueueSettings(fair_by="key"),
    "both": QueueSettings(lanes=Lanes.ON, fair_by="key"),
}


class Desk:
    """A partition whose messages have labels, with rows as a queue keeps them."""

    def __init__(self, kind: str, **options: int) -> None:
        self.rows = IntervalMap("b")
        self.states: list[int] = []
        self.labels: list[int | None] = []
        self.committed = 0
        self.now_ms = 0
        self.kind = kind
        pool = pool_of(KINDS[kind], **{name: options.pop(name) for name in ("sources_max",) if name in options})
        self.supply = SharedSupply(self.rows, self.undone, pool, can_scout=kind != "fair", **options)

    def undone(self, first: int, last: int) -> list[Interval]:
        return [Interval(offset, offset) for offset in range(first, last + 1) if self.states[offset] != DONE]

    def run(self, label: int | None) -> LabelRun:
        """A message's label as the kind has it: its lane, its tenant, or both at once."""
        if self.kind == "fair":
            return LabelRun(1, NORMAL, label)
        lane = NORMAL if label is None else label % 5
        return LabelRun(1, lane, None if self.kind == "lanes" else label)

    def publish(self, labels: Sequence[int | None]) -> None:
        self.labels += labels
        self.states += [FREE] * len(labels)

    def look(self, limit: int = 1) -> None:
        while (wanted := self.supply.unseen(limit, self.committed, len(self.labels))) is not None:
            self.supply.see(wanted.first, (), [self.run(each) for each in self.labels[wanted.first : wanted.last + 1]])

    def choose(self, limit: int) -> list[Interval]:
        self.look(limit)
        self.supply.pool.pass_time(self.now_ms)
        chosen = self.supply.choose(limit, self.committed, len(self.labels))
        assert self.supply.choose(limit, self.committed, len(self.labels)) == chosen, "asking changed something"
        return chosen

    def receive(self, limit: int) -> list[int]:
        """Offsets, each handed out for the only time."""
        offsets: list[int] = []
        for first, last in self.choose(limit):
            assert self.supply.is_free(first, last)
            for offset in range(first, last + 1):
                assert self.states[offset] == FREE, "it was handed out twice"
                self.states[offset] = LEASED
                offsets.append(offset)
            self.rows.put(first, last, (LEASED,))
            self.supply.on_leased(first, last)
        return offsets

    def ack(self, offset: int) -> None:
        self.states[offset] = DONE
        self.rows.put(offset, offset, (DONE,))
        self.supply.on_done(offset, offset)
        while self.committed < len(self.states) and self.states[self.committed] == DONE:
            self.rows.clear(self.committed, self.committed)
            self.committed += 1

    def retry(self, offset: int) -> None:
        self.states[offset] = FREE
        self.supply.on_due(offset, offset)


def plain_supply(rows: IntervalMap, weights: tuple[int, ...] = tuple(WEIGHTS.values())) -> SharedSupply:
    """Lanes over messages of which none is done."""
    pool = pool_of(QueueSettings(lanes=Lanes.ON, lane_weights=weights))
    return SharedSupply(rows, lambda first, last: [Interval(first, last)], pool)


def shares_of(desk: Desk, limits: list[int], messages: int) -> Counter[int | None]:
    served: Counter[int | None] = Counter()
    random = Random(1)
    while sum(served.values()) < messages:
        offsets = desk.receive(random.choice(limits))
        served.update(desk.labels[offset] for offset in offsets)
    return served


@pytest.mark.parametrize("limits", [[1], [7], [500], [1, 10, 100, 333]])
def test_lanes_get_their_weights_under_saturation(limits: list[int]) -> None:
    desk = Desk("lanes")
    desk.publish([offset % 5 for offset in range(40_000)])
    served = shares_of(desk, limits, 4_000)
    total = sum(served.values())
    for lane, weight in WEIGHTS.items():
        assert abs(served[lane] / total - weight / 100) < 0.02, served


def test_weights_can_be_chosen() -> None:
    rows = IntervalMap("b")
    supply = plain_supply(rows, (1, 1, 1, 1, 6))
    supply.see(0, (), [LabelRun(1_000, lane) for lane in range(5)])
    sizes = [interval.size for interval in supply.choose(50, 0, 5_000)]
    assert sizes == [5, 5, 5, 5, 30]


def test_critical_comes_first_in_each_round() -> None:
    desk = Desk("lanes")
    desk.publish([4, 3, 2, 1, 0] * 100)
    lanes = [desk.labels[offset] for offset in desk.receive(100)]
    assert lanes == sorted(lanes, key=lambda lane: lane or 0)
    assert Counter(lanes) == {0: 50, 1: 25, 2: 15, 3: 7, 4: 3}


def test_an_urgent_message_need_not_wait_for_the_round_to_end() -> None:
    desk = Desk("lanes")
    desk.publish([4] * 1_000)
    desk.receive(1)
    desk.publish([0])
    assert desk.labels[desk.receive(1)[0]] == 0


def test_a_lane_that_trickles_gets_no_more_than_its_share() -> None:
    """Having nothing for a moment does not renew what was spent."""
    desk = Desk("lanes")
    desk.publish([2] * 20_000)
    served: Counter[int | None] = Counter()
    for _ in range(3_000):
        if desk.supply.pool.shares.amount_of(4) == 0:
            desk.publish([4])
        served.update(desk.labels[offset] for offset in desk.receive(1))
    assert 0.04 < served[4] / 3_000 < 3 / 18 + 0.02, served


def test_a_few_kept_rows_hold_a_long_lane() -> None:
    supply = plain_supply(IntervalMap("b"))
    for batch in range(1_000):
        supply.see(batch * 1_000, (), [LabelRun(1_000, 2)])
    assert len(supply.pool) == 1


def test_looking_ends_when_there_are_too_many_intervals_and_goes_on_later() -> None:
    desk = Desk("lanes", intervals_max=100, scouted_max=1)
    desk.publish([offset % 2 for offset in range(15_000)])
    desk.look()
    assert len(desk.supply.pool) <= 10_100
    assert desk.supply._seen_to < 15_000
    count = 0
    while offsets := desk.receive(500):
        count += len(offsets)
        for offset in offsets:
            desk.ack(offset)
    assert count == 15_000


@pytest.mark.parametrize(
    ("priority", "lane"),
    [
        (None, 2),
        (b"", 2),
        (b"critical", 0),
        (b"High", 1),
        (b"LOW", 3),
        (b"background", 4),
        (b"\xff", 2),
        (b"urgent", 2),
    ],
)
def test_what_is_no_priority_is_normal(priority: bytes | None, lane: int) -> None:
    assert lane_of(priority) == lane


@pytest.mark.parametrize("every_ms", [1_000, 5_000, 20_000])
def test_no_lane_waits_longer_than_its_boost_time(every_ms: int) -> None:
    """Even if so little is handed out that rounds take minutes."""
    desk = Desk("lanes")
    desk.publish([offset % 5 for offset in range(10_000)])
    waits = dict.fromkeys(range(5), 0)
    worst = 0
    for _ in range(400):
        desk.now_ms += every_ms
        for offset in desk.receive(2):
            waits[desk.labels[offset] or 0] = desk.now_ms
        worst = max(worst, max(desk.now_ms - at for at in waits.values()))
    # Two can be handed out each time, so of those whose time is over at once some wait for the next.
    assert worst <= BOOST_MS + 3 * every_ms


def test_nothing_is_boosted_for_having_been_looked_at_before_the_first_receive() -> None:
    """The time of a new leader begins with its first receive, whatever the clock shows by then."""
    desk = Desk("lanes")
    desk.now_ms = 1_800_000_000_000
    desk.publish([4] * 100 + [0] * 100)
    assert {desk.labels[offset] for offset in desk.receive(10)} == {0}


def test_many_at_once_are_whole_batches_and_shares_hold() -> None:
    """An answer is one lane's batch rather than a bit of each; who got more waits for the others."""
    desk = Desk("lanes")
    desk.publish([batch % 5 for batch in range(250) for _ in range(100)])
    served: Counter[int | None] = Counter()
    for _ in range(100):
        offsets = desk.receive(100)
        assert offsets == list(range(offsets[0], offsets[0] + 100)), "a batch was cut"
        served.update(desk.labels[offset] for offset in offsets)
    for lane, weight in WEIGHTS.items():
        assert abs(served[lane] / 10_000 - weight / 100) <= 0.01, served


def test_urgent_messages_are_found_beyond_what_is_remembered() -> None:
    """Memory is bounded, and still a critical message does not wait behind all that cannot be remembered."""
    desk = Desk("lanes", intervals_max=1_000, scouted_max=20_000)
    desk.publish([3, 4] * 6_000 + [0] + [3, 4] * 10)
    desk.look()
    assert len(desk.supply.pool) < 12_000
    assert desk.labels[desk.receive(1)[0]] == 0
    count = 1
    while offsets := desk.receive(500):
        count += len(offsets)
        for offset in offsets:
            desk.ack(offset)
    assert count == 12_021, "what was passed over is handed out later, once"


def test_one_noisy_tenant_does_not_starve_the_others() -> None:
    desk = Desk("fair")
    desk.publish([7] * 100_000 + [1, 2, 3] * 10)
    desk.receive(1)
    served = Counter(desk.labels[offset] for offset in desk.receive(100))
    assert served[1] == served[2] == served[3] == 10


@pytest.mark.parametrize("limit", [1, 10, 500])
def test_tenants_get_equal_shares_under_saturation(limit: int) -> None:
    desk = Desk("fair")
    random = Random(2)
    desk.publish([random.choice([1, 1, 1, 1, 1, 1, 2, 2, 3, 4]) for _ in range(60_000)])
    served = shares_of(desk, [limit], 3_000)
    for tenant in (1, 2, 3, 4):
        assert abs(served[tenant] / sum(served.values()) - 0.25) < 0.02, served


def test_a_crowd_of_newcomers_does_not_starve_a_tenant() -> None:
    desk = Desk("fair")
    desk.publish([-1] * 1_000)
    served: Counter[bool] = Counter()
    for tenant in range(2_000):
        desk.publish([tenant] * (tenant % 2))
        served.update(desk.labels[offset] == -1 for offset in desk.receive(1))
    assert served[True] > 900


def test_memory_of_tenants_is_bounded_and_goes_with_them() -> None:
    desk = Desk("fair", sources_max=50)
    desk.publish(list(range(5_000)))
    desk.look()
    assert len(desk.supply.pool._known) <= 50 + 256
    while offsets := desk.receive(100):
        for offset in offsets:
            desk.ack(offset)
    assert desk.committed == 5_000
    assert not desk.supply.pool._known
    assert not desk.supply.pool._free
    assert len(desk.supply.pool) == 0


# -- against a twin ----------------------------------------------------------------------------------------------------


class LaneMachine(RuleBasedStateMachine):
    """Publishing, receiving, acking, failing and looking in any order."""

    @initialize(kind=st.sampled_from(list(KINDS)), is_tight=st.booleans())
    def start(self, kind: str, is_tight: bool) -> None:
        options = {"intervals_max": 3, "scouted_max": 2} if is_tight else {}
        self.desk = Desk(kind, **options)
        self.is_tight = is_tight
        self.waiting: list[int] = []
        self.leased: list[int] = []

    @rule(labels=st.lists(st.sampled_from([None, 0, 1, 2, 3, 4]), max_size=30), run=st.integers(1, 20))
    def publish(self, labels: list[int | None], run: int) -> None:
        self.desk.publish([label for label in labels for _ in range(run)])

    @rule(limit=st.integers(1, 200), by_ms=st.sampled_from([0, 10, 31_000]))
    def receive(self, limit: int, by_ms: int) -> None:
        self.desk.now_ms += by_ms
        free = self.desk.states.count(FREE) - len(self.waiting)
        offsets = self.desk.receive(limit)
        if self.is_tight:  # there may be more than what was looked at
            assert bool(offsets) == bool(free)
        else:
            assert len(offsets) == min(limit, free), "there was more to hand out"
        assert not set(offsets) & set(self.waiting)
        self.leased += offsets
        # Within a source the oldest goes first.
        for label in {self.desk.labels[offset] for offset in offsets}:
            mine = [offset for offset in offsets if self.desk.labels[offset] == label]
            others = [
                offset
                for offset, state in enumerate(self.desk.states)
                if state == FREE and self.desk.labels[offset] == label and offset not in self.waiting
            ]
            assert mine == sorted(mine)
            assert not others or label is None or label == 2 or max(mine) < min(others)

    @rule(limit=st.integers(1, 50))
    def ask_only(self, limit: int) -> None:
        self.desk.choose(limit)

    @rule(count=st.integers(1, 100), seed=st.integers(0, 1_000))
    def ack(self, count: int, seed: int) -> None:
        Random(seed).shuffle(self.leased)
        for _ in range(min(count, len(self.leased))):
            self.desk.ack(self.leased.pop())

    @rule(count=st.integers(1, 20))
    def fail(self, count: int) -> None:
        for _ in range(min(count, len(self.leased))):
            offset = self.leased.pop()
            self.desk.states[offset] = FREE
            self.waiting.append(offset)

    @rule()
    def become_due(self) -> None:
        for offset in self.waiting:
            self.desk.retry(offset)
        self.waiting.clear()

    @rule()
    def take_over(self) -> None:
        """A new supply over the same rows hears of what is due, and then looks."""
        desk = self.desk
        desk.supply.reset()
        for offset, state in enumerate(desk.states):
            if state == FREE and desk.rows.has_any(offset, offset) and offset not in self.waiting:
                desk.supply.on_due(offset, offset)

    @invariant()
    def counts_agree(self) -> None:
        if getattr(self, "desk", None):
            supply = self.desk.supply
            free = supply.pool._free
            assert supply.pool.shares.total == sum(high - low + 1 for each in free.values() for low, high, _ in each)
            assert all(supply.pool.shares.amount_of(source) > 0 for source in free)

    def teardown(self) -> None:
        if not getattr(self, "desk", None):
            return
        self.become_due()
        while offsets := self.desk.receive(100):
            self.leased += offsets
        for offset in self.leased:
            self.desk.ack(offset)
        assert self.desk.committed == len(self.desk.states), "something was not handed out"
        assert len(self.desk.supply.pool) == 0
        assert not self.desk.supply.pool._free


def test_lanes_do_as_their_twin() -> None:
    run_state_machine_as_test(
        LaneMachine,
        settings=settings(
            max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@settings(max_examples=15, deadline=None)
@given(
    weights=st.lists(st.integers(1, 60), min_size=5, max_size=5),
    limits=st.lists(st.integers(1, 300), min_size=1, max_size=5),
)
def test_any_weights_are_kept_to(weights: list[int], limits: list[int]) -> None:
    rows = IntervalMap("b")
    supply = plain_supply(rows, tuple(weights))
    supply.see(0, (), [LabelRun(1_000_000, lane) for lane in range(5)])
    served = [0] * 5
    for number in range(600):
        for first, last in supply.choose(limits[number % len(limits)], 0, 5_000_000):
            served[first // 1_000_000] += last - first + 1
            rows.put(first, last, (LEASED,))
            supply.on_leased(first, last)
        if sum(served) > 300 * sum(weights):
            break
    rounds = sum(served) / sum(weights)
    for lane in range(5):
        # Never off by more than what is handed out in one round or one answer.
        assert abs(served[lane] - rounds * weights[lane]) <= weights[lane] + max(limits)
