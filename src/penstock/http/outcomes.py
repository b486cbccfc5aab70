"""What became of a request for many partitions, told one by one."""

from __future__ import annotations

import msgspec

from penstock import errors
from penstock.cluster.commands import Outcome, Outcomes
from penstock.errors import PenstockError
from penstock.http.exchange import Reply, reply
from penstock.http.problems import Problem, problem_of

_PARTLY = 207


class OutcomeView(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: as it is now where it was granted, else the error that kept it from being."""

    topic: str
    partition: int
    leader: int | None
    replicas: list[int] | None
    adding: list[int] | None
    removing: list[int] | None
    error: Problem | None


class OutcomeList(msgspec.Struct, frozen=True, kw_only=True):
    outcomes: list[OutcomeView]


def outcomes_of(answer: Outcomes, path: str, *, hides_needless: bool = False) -> OutcomeList | Reply:
    """200 when all was granted, 207 when some was, else the first one's problem.

    ``hides_needless`` leaves out the partitions of which nothing was wanted in particular, and that need nothing.
    """
    told = [(outcome, error_of(outcome)) for outcome in answer.outcomes]
    if hides_needless:
        told = [(outcome, error) for outcome, error in told if not isinstance(error, errors.ElectionNotNeeded)]
    refusals = [error for _, error in told if error is not None]
    if refusals and len(refusals) == len(told):
        raise refusals[0]
    views = OutcomeList(outcomes=[_view(outcome, error, path) for outcome, error in told])
    return reply(views, _PARTLY) if refusals else views


def error_of(outcome: Outcome) -> PenstockError | None:
    """The error that an outcome names."""
    if outcome.error is None:
        return None
    kind: type[PenstockError] = getattr(errors, outcome.error, PenstockError)
    return kind(outcome.message)


def _view(outcome: Outcome, error: PenstockError | None, path: str) -> OutcomeView:
    assigned = outcome.assigned
    return OutcomeView(
        topic=outcome.topic,
        partition=outcome.partition,
        leader=None if assigned is None else assigned.leader,
        replicas=None if assigned is None else list(assigned.replicas),
        adding=None if assigned is None else list(assigned.adding),
        removing=None if assigned is None else list(assigned.removing),
        error=None if error is None else problem_of(error, path),
    )
