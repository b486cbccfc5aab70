"""One member's way to its target: every cell of the tables, and what holds for any of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.features.groups.consumer.reconciliation import (
    NEXT,
    STABLE,
    STEPS,
    UNRELEASED,
    UNREVOKED,
    Current,
    MemberState,
    MemberStep,
    Situation,
    TargetGap,
    reconcile,
    situation_of,
)

A, B, C, D = (("t", index) for index in range(4))
HAS = Current(epoch=3, previous_epoch=2, assigned={A: 1, B: 3})
GIVES_UP = replace(HAS, state=UNREVOKED, assigned={A: 1}, revoking={B: 3})
WAITS = replace(HAS, state=UNRELEASED)


@pytest.mark.parametrize(
    ("current", "epoch", "owned", "situation", "step"),
    [
        (HAS, 3, None, Situation.LEVEL, MemberStep.STAY),
        (HAS, 4, None, Situation.BEHIND, MemberStep.ADVANCE),
        (GIVES_UP, 4, None, Situation.HOLDING, MemberStep.STAY),
        (GIVES_UP, 4, {A, B}, Situation.HOLDING, MemberStep.STAY),
        (GIVES_UP, 4, {A}, Situation.RELEASED, MemberStep.ADVANCE),
        (WAITS, 3, None, Situation.WAITING, MemberStep.ADVANCE),
    ],
)
def test_every_cell(current, epoch, owned, situation, step) -> None:
    assert situation_of(current, epoch, owned) is situation
    assert STEPS[current.state][situation] is step


def test_the_tables_are_whole() -> None:
    assert set(STEPS) == set(MemberState)
    assert {situation for row in STEPS.values() for situation in row} == set(Situation)
    assert set(NEXT) == set(TargetGap)
    assert set(NEXT.values()) == set(MemberState)


def test_it_lets_go_first_and_stays_in_its_epoch() -> None:
    after = reconcile(HAS, frozenset({A, C}), 4, None, lambda _: True)
    assert after == replace(HAS, state=UNREVOKED, assigned={A: 1}, revoking={B: 3})


def test_then_it_takes_what_is_free_and_the_epoch_and_keeps_when_it_got_what_it_kept() -> None:
    after = reconcile(GIVES_UP, frozenset({A, C, D}), 4, {A}, lambda place: place != D)
    assert after == Current(epoch=4, previous_epoch=3, state=UNRELEASED, assigned={A: 1, C: 4})
    last = reconcile(after, frozenset({A, C, D}), 4, None, lambda _: True)
    assert last == Current(epoch=4, previous_epoch=3, state=STABLE, assigned={A: 1, C: 4, D: 4})


def test_it_need_not_be_told_to_let_go_of_what_it_does_not_have_any_more() -> None:
    """As a classic member that gave up everything before it joined again."""
    assert reconcile(HAS, frozenset({C}), 4, set(), lambda _: True).assigned == {C: 4}


places = st.frozensets(st.sampled_from([A, B, C, D]))


@given(
    state=st.sampled_from(MemberState),
    assigned=places,
    revoking=places,
    target=places,
    owned=st.none() | places,
    free=places,
    ahead=st.integers(0, 2),
)
def test_what_stays_in_the_target_is_never_touched(state, assigned, revoking, target, owned, free, ahead) -> None:
    revoking = revoking - assigned if state is UNREVOKED else frozenset()
    current = Current(
        epoch=3,
        previous_epoch=2,
        state=state,
        assigned=dict.fromkeys(assigned, 2),
        revoking=dict.fromkeys(revoking, 1),
    )
    after = reconcile(current, target, 3 + ahead, owned, lambda place: place in free)
    assert set(after.assigned) >= assigned & target
    assert all(after.assigned[place] == 2 for place in assigned & target)
    assert after.epoch in (3, 3 + ahead)
    gained = after.assigned.keys() - assigned
    assert gained <= target & free, "nothing is taken from others"
    has_let_go = owned is not None
    assert has_let_go or (assigned | revoking) <= after.assigned.keys() | after.revoking.keys(), (
        "nothing is free before its owner said so"
    )
    if after.state is STABLE and after is not current:
        assert after.assigned.keys() == target
