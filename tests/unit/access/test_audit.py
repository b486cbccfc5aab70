"""What an audit event holds, and which events a search takes."""

from __future__ import annotations

import pytest

from penstock.access.principal import Principal
from penstock.features.access.audit import DENIED_LINES_PER_SECOND, AuditEvent, AuditLog
from penstock.features.access.audit_topic import AuditFilter

ALICE = Principal("alice")


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


def test_an_event_has_who_where_what_and_when() -> None:
    kept: list[AuditEvent] = []
    AuditLog(HandClock(), 3, kept.append).changed(ALICE, "10.0.0.1", "create_topic", "topic 'a'", "r-1")
    assert kept == [
        AuditEvent(
            time_ms=100_000,
            node_id=3,
            decision="allowed",
            principal="User:alice",
            host="10.0.0.1",
            operation="create_topic",
            resource="topic 'a'",
            request_id="r-1",
        )
    ]


def test_refusals_are_sampled_changes_are_not_and_the_next_event_counts_what_was_left_out() -> None:
    kept: list[AuditEvent] = []
    clock = HandClock()
    audit = AuditLog(clock, 1, kept.append)
    for _ in range(DENIED_LINES_PER_SECOND + 7):
        audit.login_failed("10.0.0.1", "http", "credentials")
    assert len(kept) == DENIED_LINES_PER_SECOND
    audit.changed(ALICE, "", "set_user", "", "")
    assert (kept[-1].decision, kept[-1].left_out) == ("allowed", 7)
    clock.now_s += 1
    audit.denied(ALICE, "", "read", "", "")
    assert (kept[-1].decision, kept[-1].left_out) == ("denied", 0)


def test_texts_of_clients_are_cut_and_cannot_break_lines() -> None:
    kept: list[AuditEvent] = []
    AuditLog(HandClock(), 1, kept.append).denied(ALICE, "", "read", "x" * 1_000, "a\nforged")
    assert len(kept[0].resource) == 257
    assert kept[0].request_id == "a?forged"


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (AuditFilter(), True),
        (AuditFilter(principal="User:alice", decision="denied", since_ms=5), True),
        (AuditFilter(principal="User:bob"), False),
        (AuditFilter(decision="allowed"), False),
        (AuditFilter(since_ms=6), False),
    ],
)
def test_a_filter_takes_what_fits_all_of_it(wanted: AuditFilter, fits: bool) -> None:
    event = AuditEvent(time_ms=5, node_id=1, decision="denied", principal="User:alice")
    assert wanted.fits(event) is fits
