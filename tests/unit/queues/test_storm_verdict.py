"""The judge of the storms (tests/support/queue_storm.py) finds what must not happen, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.support.queue_storm import Verdict

LEASE_S = 5.0
PLACE = (0, 7)


def got(at: float, count: int = 1, receipt: str = "", value: str = "job") -> dict[str, Any]:
    """A delivery whose lease began when it came."""
    receipt = receipt or f"receipt {count}"
    return {"what": "got", "at": at, "place": list(PLACE), "value": value, "receipt": receipt, "count": count,
            "until": at + LEASE_S}  # fmt: skip


def told(what: str, at: float, count: int = 1) -> dict[str, Any]:
    return {"what": what, "at": at, "receipt": f"receipt {count}"}


def faults(
    *events: dict[str, Any], value: str = "job", dead: tuple[str, ...] = (), confirmed: tuple[str, ...] = ("job",)
) -> list[str]:
    verdict = Verdict(LEASE_S)
    for event in events:
        verdict.hear("somebody", event)
    verdict.judge({PLACE: value}, Counter(dead), {"sdk": list(confirmed)})
    return verdict.faults


def test_a_message_that_is_done_once_is_fine() -> None:
    assert faults(got(0), told("did", 1), told("acked", 1)) == []


def test_a_message_whose_lease_ran_out_may_come_again() -> None:
    assert faults(got(0), got(5.1, 2), told("did", 6, 2), told("acked by me", 6, 2)) == []


def test_an_ack_that_came_late_may_be_told_that_another_was_first() -> None:
    events = got(0), told("did", 5.0), got(5.1, 2), told("did", 5.2, 2), told("acked by me", 5.2, 2)
    assert faults(*events, told("acked", 5.3)) == []


def test_a_dead_letter_is_fine_if_it_is_poison() -> None:
    assert faults(got(0, value="poison-1"), value="poison-1", dead=("poison-1",), confirmed=("poison-1",)) == []


@pytest.mark.parametrize(
    ("events", "told_of"),
    [
        ([], "never processed"),
        ([got(0)], "never processed"),
        ([got(0), told("did", 1), told("acked by me", 1), got(6, 2)], "came again after its ack"),
        ([got(0), told("did", 1), told("acked", 1), got(6, 2)], "came again after its ack"),
        ([got(0), told("did", 1), got(4, 2), told("did", 4, 2)], "two live leases"),
        ([got(0), told("did", 1), got(6, 1, "other")], "delivered twice as number 1"),
    ],
)
def test_what_must_not_happen_is_told(events: list[dict[str, Any]], told_of: str) -> None:
    assert any(told_of in fault for fault in faults(*events))


def test_what_is_not_where_it_should_be_is_told() -> None:
    done = got(0), told("did", 1), told("acked", 1)
    assert "confirmed and lost: other" in faults(*done, confirmed=("job", "other"))
    assert any("too many Counter({'job': 1})" in fault for fault in faults(*done, dead=("job",)))
    poison = got(0, value="poison-1")
    assert any("missing Counter" in fault for fault in faults(poison, value="poison-1", confirmed=("poison-1",)))
