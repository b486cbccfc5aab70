"""A meter's pauses hold the average to the rate, whatever the pattern of use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.features.quotas.meter import Meter


def test_what_fits_the_rate_is_never_paused() -> None:
    meter = Meter(100, now=0)
    assert [meter.use(10, now=0.1 * turn) for turn in range(1, 100)] == [0] * 99


def test_a_first_request_above_the_rate_gets_through_and_is_paid_for_after_it() -> None:
    meter = Meter(100, now=0)
    assert meter.use(500, now=0) == pytest.approx(4)
    assert meter.use(0, now=4) == 0


def test_a_debt_ends_after_half_a_minute() -> None:
    meter = Meter(1, now=0)
    meter.use(1_000_000, now=0)
    assert meter.use(0, now=31) == 0


@given(st.lists(st.floats(0, 300), min_size=1, max_size=200))
def test_a_client_that_pauses_as_told_uses_no_more_than_its_rate(amounts: list[float]) -> None:
    rate, now, used = 100.0, 0.0, 0.0
    meter = Meter(rate, now)
    for amount in amounts:
        used += amount
        now += meter.use(amount, now)
        assert used <= rate * (now + 1) + 1e-6  # one second's worth was saved up


def test_an_idle_meter_is_as_good_as_a_new_one() -> None:
    meter = Meter(10, now=0)
    assert meter.is_idle(0)
    meter.use(5, now=0)
    assert not meter.is_idle(0.1)
    assert meter.is_idle(0.6)


def test_asking_for_a_debt_costs_nothing_and_time_pays_it() -> None:
    meter = Meter(10.0, 0.0)
    assert meter.debt_s(0.0) == 0.0
    meter.use(30.0, 0.0)
    assert [meter.debt_s(0.0), meter.debt_s(0.0), meter.debt_s(1.5)] == [2.0, 2.0, 0.5]
    assert meter.debt_s(2.0) == 0.0
