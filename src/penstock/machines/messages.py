"""What callers and the machines that decide say to each other, whatever it is about.

Each request names the type of its answer, so that the caller gets it typed. An answer may come at once or much later;
until then the machine keeps the `Reply` that came with the request, and it is used exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.errors import PenstockError

AnswerT = TypeVar("AnswerT")
ChangeT = TypeVar("ChangeT")


class Request(Generic[AnswerT]):
    """Something to ask of a machine, and what the answer is."""

    __slots__ = ()


class Rejected(NamedTuple):
    """The request is refused, now or after a wait."""

    error: PenstockError


Reply = Callable[[Any], None]  # called with the request's answer or with `Rejected`


class ProducerIdentity(NamedTuple):
    """A producer in one of its lives."""

    producer_id: int
    epoch: int


@dataclass(slots=True)
class Outcome(Generic[ChangeT]):
    """What a decision leads to: changes to persist and apply first, replies to send after that.

    Changes with a producer are part of its transaction: they take effect once that is committed.
    """

    changes: list[ChangeT] = field(default_factory=list)
    replies: list[tuple[Reply, object]] = field(default_factory=list)
    producer: ProducerIdentity | None = None

    def reply(self, to: Reply, what: object) -> None:
        self.replies.append((to, what))
