"""``./dev fuzz``: bad input for the frame decoders, the handlers, what requests may cost, recovery, and a real node.

Time is shared evenly between the parts. Every batch has a seed of its own; when one finds something, its part and seed
are printed, and ``--part P --seed S --batches 1`` runs exactly that batch again. Exit code 1 if anything was found.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.fuzzing.costs import Costs
from bench.fuzzing.dispatch import Dispatch
from bench.fuzzing.frames import Frames
from bench.fuzzing.live import Live
from bench.fuzzing.part import Finding, Part
from bench.fuzzing.recovery import Recovery

PARTS: dict[str, Callable[[], Part]] = {
    Frames.name: Frames,
    Dispatch.name: Dispatch,
    Costs.name: Costs,
    Recovery.name: Recovery,
    Live.name: Live,
}
_FINDINGS_MAX = 5
_PROGRESS_EVERY_S = 15.0


@dataclass(slots=True)
class Tally:
    """How far one part came."""

    part: Part
    next_seed: int
    batches: int = 0
    cases: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def run_batch(self) -> None:
        seed, self.next_seed = self.next_seed, self.next_seed + 1
        began = time.monotonic()
        try:
            self.cases += self.part.run(seed)
        except Finding as finding:
            self.findings.append(f"{self.part.name}, seed {seed}: {finding}")
            print(f"FOUND in {self.findings[-1]}", flush=True)
        self.batches += 1
        self.seconds += time.monotonic() - began

    def __str__(self) -> str:
        rate = self.cases / self.seconds if self.seconds else 0.0
        return f"{self.part.name:<9} {self.cases:>10,} cases {rate:>8,.0f}/s {len(self.findings):>3} findings"


def fuzz(names: list[str], seed: int, seconds: float, batches: int | None = None) -> list[Tally]:
    """Run the named parts for so long, or for so many batches each."""
    tallies = [Tally(PARTS[name](), seed) for name in names]
    try:
        _run(tallies, time.monotonic() + seconds, batches)
    finally:
        for tally in tallies:
            tally.part.close()
    return tallies


def _run(tallies: list[Tally], deadline: float, batches: int | None) -> None:
    shown = time.monotonic()
    while sum(len(tally.findings) for tally in tallies) < _FINDINGS_MAX:
        left = [tally for tally in tallies if batches is None or tally.batches < batches]
        if not left or (batches is None and time.monotonic() > deadline):
            return
        min(left, key=lambda tally: tally.seconds).run_batch()
        if time.monotonic() - shown > _PROGRESS_EVERY_S:
            shown = time.monotonic()
            print("; ".join(str(tally) for tally in tallies), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long in all (1)")
    parser.add_argument("--seed", type=int, help="the first batch's seed; random by default, and always printed")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be repeated")
    parser.add_argument("--batches", type=int, help="so many batches of each part, instead of a time")
    options = parser.parse_args()
    seed = random.randrange(1 << 31) if options.seed is None else options.seed
    logging.disable(logging.CRITICAL)  # thousands of refusals are what we ask for
    print(f"seed {seed}", flush=True)
    tallies = fuzz(options.part or list(PARTS), seed, options.minutes * 60, options.batches)
    for tally in tallies:
        print(tally)
    findings = sum(len(tally.findings) for tally in tallies)
    print(
        f"{'FAILED' if findings else 'PASSED'}: {findings} findings in {sum(tally.cases for tally in tallies):,} cases"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
