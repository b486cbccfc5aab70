"""What planners asked of schedules and were told, and what nodes do about it in the moment in which they do it.

Judged when a node is about to append the message of a schedule:

- *no schedule fires early*: by the clock of the node that decided to, as it shows or has shown a moment ago. Who takes
  over a decision repeats it, whatever its own clock shows, so that is held only to what any clock has ever shown;
- *cancelled schedules stay away*: once a planner was told that one is cancelled, whoever leads decides on it no more.

The rest is judged by the logs at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final

from penstock.broker.broker import Broker
from penstock.features.schedules.leading.firing import FiringDelivery
from penstock.model import SCHEDULES_TOPIC

if TYPE_CHECKING:
    from sim.cluster.simulation import BrokerNode, Simulation

_DECIDED_S: Final = 10.0  # so long ago a firing may have been decided that is appended now


@dataclass(slots=True)
class Plan:
    """One schedule, as its planner knows it. Its value is like no other's."""

    value: bytes
    id: str = ""
    is_given: bool = False  # by the planner; otherwise it is known with the answer
    comes_again: bool = False
    may_skip: bool = False
    is_acked: bool = False
    is_unsure: bool = False  # something was asked and not answered: it may be done at any time
    is_changed: bool = False  # it was given another time, or somebody tried to
    is_cancel_asked: bool = False
    cancelled_s: float = inf
    dues: list[int] = field(default_factory=list)  # when it may be due; empty if nobody can tell
    first_ms: int | None = None  # when it comes for the first time, if it comes again

    @property
    def due_ms(self) -> int | None:
        """By when it has come, at least once; None if nobody can tell."""
        if self.comes_again:
            return None if self.is_changed else self.first_ms
        return max(self.dues) if self.dues else None

    @property
    def has_to_come(self) -> bool:
        return self.is_acked and not self.is_cancel_asked and not self.may_skip


class Agenda:
    """All plans by their values."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._history = simulation.history
        self.plans: dict[bytes, Plan] = {}
        self.on_send: Callable[[BrokerNode, FiringDelivery], None] = lambda *_: None  # hears of every attempt before it

    def now_s(self) -> float:
        return self._simulation.loop.time()

    def watch(self, node: BrokerNode, broker: Broker) -> None:
        """A broker was made: hear of everything that it fires."""
        appender = broker.schedules.coordinator.appender
        send = appender.send

        def watched(delivery: FiringDelivery) -> None:
            if delivery.shard.is_ready and not delivery.attempts:
                self._judge(node, delivery)
            self.on_send(node, delivery)
            if node.broker is broker:
                send(delivery)

        appender.send = watched  # type: ignore[method-assign]

    def _judge(self, node: BrokerNode, delivery: FiringDelivery) -> None:
        is_repeated = delivery.is_doubtful
        if is_repeated:
            latest_ms = max(each.clock.latest_ms() for each in self._simulation.nodes.values())
        else:
            latest_ms = node.clock.latest_ms(_DECIDED_S)
        assigned = self._simulation.oracles.find_assigned((SCHEDULES_TOPIC, delivery.shard.number))
        is_leader = assigned is not None and assigned.leader == node.id
        for schedule in delivery.schedules:
            told = f"{schedule.id} with {schedule.message.value!r}, due at {schedule.due_ms},"
            if schedule.due_ms > latest_ms:
                self._history.violate(
                    "no schedule fires early", f"{told} is fired on node {node.id} at {node.clock.now_ms()}"
                )
            plan = self.plans.get(schedule.message.value or b"")
            if plan is not None and is_leader and not is_repeated and self.now_s() > plan.cancelled_s:
                self._history.violate(
                    "cancelled schedules stay away", f"{told} was cancelled at {plan.cancelled_s:.3f} s"
                )
