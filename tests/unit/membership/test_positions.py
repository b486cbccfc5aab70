"""Where a member is: positions move with answers, and go back with answers that were lost."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import InvalidRequest
from penstock.features.groups.hosted.member import Position, Positions

ORDERS, OTHERS = ("orders", 0), ("orders", 1)


def begun() -> Positions:
    positions = Positions()
    positions.begin(ORDERS, Position(10, "id"), is_committed=True)
    positions.begin(OTHERS, Position(0, "id"), is_committed=False)
    return positions


def offsets(positions: Positions) -> dict[tuple[str, int], int]:
    return {where: positions[where].offset for where in positions.places()}


def test_an_answer_moves_positions_and_is_numbered() -> None:
    positions = begun()
    assert positions.number == 0
    assert positions.answer({ORDERS: 15}) == 1
    assert offsets(positions) == {ORDERS: 15, OTHERS: 0}


@pytest.mark.parametrize("last_number", [None, 2])
def test_an_answer_that_arrived_is_gone_on_from(last_number: int | None) -> None:
    positions = begun()
    positions.answer({ORDERS: 15})
    positions.answer({ORDERS: 20})
    positions.confirm(last_number)
    assert offsets(positions)[ORDERS] == 20


def test_an_answer_that_did_not_arrive_is_told_again_under_its_number() -> None:
    positions = begun()
    positions.answer({ORDERS: 15})
    positions.answer({ORDERS: 20, OTHERS: 3})
    positions.confirm(1)
    assert offsets(positions) == {ORDERS: 15, OTHERS: 0}
    assert positions.answer({ORDERS: 20}) == 2


@pytest.mark.parametrize("wrong", [0, 3, 99])
def test_an_answer_that_is_not_known_is_an_error_and_moves_nothing(wrong: int) -> None:
    positions = begun()
    positions.answer({ORDERS: 15})
    positions.answer({ORDERS: 20})
    with pytest.raises(InvalidRequest):
        positions.confirm(wrong)
    assert offsets(positions)[ORDERS] == 20


def test_a_partition_that_went_and_came_back_does_not_go_back_with_a_lost_answer() -> None:
    positions = begun()
    positions.answer({ORDERS: 15, OTHERS: 5})
    positions.keep_only([OTHERS])
    positions.begin(ORDERS, Position(40, "id"), is_committed=True)
    positions.confirm(0)
    assert offsets(positions) == {ORDERS: 40, OTHERS: 0}


def test_what_is_committed_is_everything_that_moved() -> None:
    positions = begun()
    assert positions.uncommitted() == {OTHERS: Position(0, "id")}, "where nothing is committed, the beginning is news"
    positions.committed(positions.uncommitted())
    positions.answer({ORDERS: 15})
    assert positions.uncommitted(0) == {}, "the answer was not seen"
    assert positions.uncommitted() == {ORDERS: Position(15, "id")}
    positions.committed(positions.uncommitted())
    assert positions.uncommitted() == {}


class Delivery(RuleBasedStateMachine):
    """A client that may miss answers, and says what it saw last: it gets every message once, in order."""

    @initialize()
    def begin(self) -> None:
        self.positions = Positions()
        self.positions.begin(ORDERS, Position(0, "id"), is_committed=False)
        self.got: list[int] = []
        self.last_poll = 0

    @rule(count=st.integers(1, 5), arrives=st.booleans())
    def poll(self, count: int, arrives: bool) -> None:
        self.positions.confirm(self.last_poll)
        start = self.positions[ORDERS].offset
        number = self.positions.answer({ORDERS: start + count})
        if arrives:
            self.got += range(start, start + count)
            self.last_poll = number

    @rule()
    def notice_that_the_client_is_gone(self) -> None:
        if self.positions.number != self.last_poll:
            self.positions.take_back(self.positions.number)

    @precondition(lambda self: self.got)
    @rule()
    def commit(self) -> None:
        wanted = self.positions.uncommitted(self.last_poll)
        assert all(position.offset <= len(self.got) for position in wanted.values())
        self.positions.committed(wanted)

    @invariant()
    def nothing_is_missed_or_doubled(self) -> None:
        assert self.got == list(range(len(self.got)))


TestDelivery = Delivery.TestCase
