"""The checker of the acceptance tests finds what it is there to find."""

from __future__ import annotations

import pytest
from tests.support.group import Got, Story, check_at_least_once

ALL = frozenset({0})
SENT = {"0:0", "0:1"}


def story(given_at: float, *offsets: int, committed: tuple[float, int] | None = None) -> Story:
    got = [Got(given_at + 1 + at, 0, offset, f"0:{offset}") for at, offset in enumerate(offsets)]
    commits = [] if committed is None else [(committed[0], 0, committed[1])]
    return Story(got=got, assigned=[(given_at, ALL)], committed=commits)


def test_what_was_not_committed_may_come_again() -> None:
    assert check_at_least_once(SENT, [story(0, 0, 1, committed=(5, 1)), story(10, 1)]) == 1


def test_a_commit_that_was_answered_too_late_does_not_count() -> None:
    assert check_at_least_once(SENT, [story(0, 0, 1, committed=(11, 2)), story(10, 0, 1)]) == 2


def test_what_was_committed_must_not_come_again() -> None:
    with pytest.raises(AssertionError, match="came again"):
        check_at_least_once(SENT, [story(0, 0, 1, committed=(5, 2)), story(10, 1)])


def test_nothing_may_be_skipped() -> None:
    with pytest.raises(AssertionError, match="skipped"):
        check_at_least_once(SENT, [story(0, 0)])


def test_a_partition_is_read_in_order() -> None:
    with pytest.raises(AssertionError, match="out of order"):
        check_at_least_once(SENT, [story(0, 1, 0)])
