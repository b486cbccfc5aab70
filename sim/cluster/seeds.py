"""One seed, one history: the same every time, in every process."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from penstock.errors import PenstockError
from penstock.testing.files import Crash
from penstock.testing.loop import SimulatedLoop, SimulationHung, SimulationRanAway, simulated_loop
from sim.cluster.entropy import seeded_entropy
from sim.cluster.history import History, Violation
from sim.cluster.limits import small_limits
from sim.cluster.simulation import Shape, Simulation
from sim.cluster.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a seed."""

    seed: int
    events: int
    operations: int
    acked: int
    reads: int
    messages: int
    virtual_s: float
    cpu_s: float
    faults: dict[str, int]
    counts: dict[str, int]
    violations: tuple[Violation, ...]
    trace: str
    lines: tuple[str, ...] = ()

    @property
    def violation(self) -> str | None:
        """The first one, which the others may follow from."""
        return str(self.violations[0]) if self.violations else None

    def __str__(self) -> str:
        figures = (
            f"{self.virtual_s:.1f} s, {self.events} events, {self.operations} operations, {self.acked} acknowledged"
        )
        faults = sum(self.faults.values())
        return f"seed {self.seed}: {self.violation or 'no violation'} ({figures}, {faults} faults, trace {self.trace})"


def run_cluster_seed(
    seed: int, *, shape: Shape | None = None, kinds: Sequence[str] | None = None, is_told: bool = False
) -> Result:
    """Live through the history of a cluster, with faults of these kinds only, or of those that the seed draws.

    ``is_told`` keeps a line for everything that happened.
    """

    def make(loop: SimulatedLoop) -> Simulation:
        simulation = Simulation(seed, loop, shape=shape, is_told=is_told)
        if kinds is not None:
            simulation.faults.kinds = list(kinds)
        return simulation

    return live_through(seed, make)


def live_through(seed: int, make: Callable[[SimulatedLoop], World]) -> Result:
    """Run a world on a loop of its own, with all chance from the seed."""
    began = time.process_time()
    was_collecting = gc.isenabled()
    gc.disable()  # or a collection would end the remains of dead processes, at a moment that nobody can repeat
    try:
        with seeded_entropy(seed), small_limits(), simulated_loop(Random(f"loop {seed}")) as loop:
            world = make(loop)
            with _bugs_noted(world.history):
                try:
                    loop.run_until_complete(world.run())
                except (SimulationHung, SimulationRanAway) as error:
                    world.history.violate("the cluster heals", str(error))
    finally:
        if was_collecting:
            gc.enable()
    history = world.history
    return Result(
        seed=seed,
        events=loop.events_run,
        operations=history.operations,
        acked=history.acked,
        reads=history.reads,
        messages=world.network.messages,
        virtual_s=loop.time(),
        cpu_s=time.process_time() - began,
        faults=history.faults,
        counts=history.counts,
        violations=tuple(history.violations),
        trace=f"{history.trace:08x}",
        lines=tuple(history.lines or ()),
    )


class _BugHandler(logging.Handler):
    """Takes what nodes log as bugs for what they are."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, (PenstockError, Crash)):
            self._history.violate("no bug is met", f"{record.getMessage()}: {error!r}")


@contextmanager
def _bugs_noted(history: History) -> Iterator[None]:
    logger = logging.getLogger("penstock")
    level, propagates, disabled = logger.level, logger.propagate, logging.root.manager.disable
    logging.disable(logging.NOTSET)
    handler = _BugHandler(history)
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
        logging.disable(disabled)
