"""``./dev sim``: seeded histories of the quorum and of whole clusters on virtual time, with faults and oracles.

Three kinds: *raft* is the quorum's core alone, *quorum* its real driver and store, *cluster* whole nodes.

Every seed is one history, the same every time. A violation prints its seed; ``--seed S`` lives through exactly that
history again and prints all of it. ``--stories`` tells the scripted ones, ``--mutants`` plants known bugs one at a
time, which must all be found. Exit code 1 on a violation, or a bug that was not found.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from bench.histories import KINDS, MUTANTS, SUBJECTS, Summary, Workers, is_about, replay_command, run_seed, stories_of

_SEEDS = 200
_MUTANT_SEEDS = 100
_VIOLATIONS_MAX = 10
_SAY_EVERY_S = 15.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds",
        type=_positive,
        help=f"how many histories of each kind ({_SEEDS}, or as time allows); with --mutants: so many look for each "
        f"bug even if a story finds it (without: {_MUTANT_SEEDS} where no story does)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seed", type=int, help="live through one history again, and print it")
    what.add_argument("--stories", action="store_true", help="tell the scripted ones")
    what.add_argument("--mutants", action="store_true", help="plant every known bug in turn; all must be found")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first seed (0)")
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="all", help="what is simulated (all)")
    parser.add_argument(
        "--with", dest="subject", choices=SUBJECTS, help="only clusters with these: other seeds are passed over"
    )
    parser.add_argument("--jobs", type=_positive, default=2, help="processes (2)")
    parser.add_argument("--minutes", type=float, help="begin nothing more after so long")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="how the outcome is told")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


class Telling:
    """A bar on a terminal, a line now and then elsewhere; on the error stream, so that the outcome stands alone."""

    def __init__(self, what: str, total: int | None) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._what, self._total, self._done = what, total, 0
        self._task = self._bar.add_task(what, total=total)
        self._said = time.monotonic()

    def __enter__(self) -> Telling:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def step(self) -> None:
        self._done += 1
        self._bar.advance(self._task)
        if not self._console.is_terminal and time.monotonic() - self._said > _SAY_EVERY_S:
            self._said = time.monotonic()
            self.say(f"{self._done}{'' if self._total is None else f' of {self._total}'} {self._what}")

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _kinds(options: argparse.Namespace) -> tuple[str, ...]:
    if options.subject is not None:
        return ("cluster",)
    return KINDS if options.kind == "all" else (options.kind,)


# -- seeds -------------------------------------------------------------------------------------------------------------


def run_seeds(options: argparse.Namespace) -> int:
    kinds = _kinds(options)
    seeds = options.seeds or (None if options.minutes else _SEEDS)
    began = time.monotonic()
    summary = Summary()

    def work() -> Iterator[tuple[str, int]]:
        numbers = (seed for seed in count(options.first) if options.subject is None or is_about(options.subject, seed))
        for done, number in enumerate(numbers):
            is_late = options.minutes is not None and time.monotonic() - began > options.minutes * 60
            if is_late or done == seeds or len(summary.violations) >= _VIOLATIONS_MAX:
                return
            yield from ((kind, number) for kind in kinds)

    total = None if seeds is None else seeds * len(kinds)
    share = 4 if kinds == ("raft",) else 1
    with Telling("histories", total) as telling, Workers(options.jobs) as workers:
        try:
            for result in workers.seeds(work(), share):
                summary.add(result)
                telling.step()
                if result.violation is not None:
                    telling.say(f"VIOLATION in {result.kind} seed {result.seed}: {result.violation}")
                    telling.say(f"  again: {replay_command(result)}")
        except KeyboardInterrupt:
            telling.say("Interrupted; this is what there is so far.")
    summary.seconds = time.monotonic() - began
    _tell_summary(summary, options.output)
    return 1 if summary.violations or not summary.seeds else 0


def _tell_summary(summary: Summary, output: str) -> None:
    if output == "json":
        print(json.dumps(summary.to_json(), indent=2))
        return
    rows = [(f"histories ({kind})", f"{seeds:,}") for kind, seeds in summary.seeds.items()]
    rows += [
        ("events", f"{summary.events:,}"),
        ("operations answered", f"{summary.operations:,}"),
        ("virtual time", f"{summary.virtual_s / 3600:,.1f} h in {summary.seconds:,.0f} s"),
        *((what, f"{times:,}") for what, times in sorted(summary.counts.items())),
        *((f"fault: {kind}", f"{times:,}") for kind, times in summary.faults.most_common()),
        ("violations", f"{len(summary.violations):,}"),
    ]
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    for bad in summary.violations:
        print(f"VIOLATION in {bad.kind} seed {bad.seed}: {bad.violation}\n  again: {replay_command(bad)}")


def replay(options: argparse.Namespace) -> int:
    results = [run_seed(kind, options.seed, is_kept=True) for kind in _kinds(options)]
    if options.output == "json":
        print(json.dumps([result.to_json() for result in results], indent=2))
    else:
        for result in results:
            print("\n".join(result.history))
            print(
                f"{result.kind} seed {result.seed}: {result.violation or 'no violation'}; trace {result.trace}, "
                f"{result.events:,} events, {result.operations:,} operations, faults {dict(result.faults)}"
            )
    return 1 if any(result.violation for result in results) else 0


# -- stories and mutants -----------------------------------------------------------------------------------------------


def run_stories(options: argparse.Namespace) -> int:
    outcome: dict[str, str | None] = {}
    for name, tell in (pair for kind in _kinds(options) for pair in stories_of(kind).items()):
        try:
            tell()
            outcome[name] = None
        except Exception as error:  # whatever goes wrong in a story, it did not end as it should
            outcome[name] = f"{type(error).__name__}: {error}"
    if options.output == "json":
        print(json.dumps(outcome, indent=2))
    else:
        for name, failure in outcome.items():
            print(f"{'ok  ' if failure is None else 'FAIL'} {name}{'' if failure is None else f': {failure}'}")
    return 1 if any(outcome.values()) else 0


def run_mutants(options: argparse.Namespace) -> int:
    kinds = _kinds(options)
    total = sum(len(MUTANTS[kind]) for kind in kinds)
    with Telling("mutants", total) as telling, Workers(options.jobs) as workers:
        catches = []
        for catch in workers.mutants(kinds, options.seeds or _MUTANT_SEEDS, is_first_enough=options.seeds is None):
            telling.step()
            catches.append(catch)
    missed = [catch for catch in catches if not catch.is_caught]
    if options.output == "json":
        outcome = {
            "caught": len(catches) - len(missed),
            "missed": [catch.mutant for catch in missed],
            "mutants": [catch._asdict() for catch in catches],
        }
        print(json.dumps(outcome, indent=2))
    else:
        table = Table("mutant", "caught by the story", "by the seed", "seeds tried")
        for catch in catches:
            seed = "–" if catch.seed is None else str(catch.seed)
            table.add_row(
                catch.mutant, catch.story or ("–" if catch.is_caught else "NOT CAUGHT"), seed, str(catch.seeds)
            )
        Console().print(table)
        for catch in missed:
            print(f"NOT CAUGHT: {catch.mutant}{'' if catch.proof is None else f' ({catch.proof})'}")
        print(f"{'FAILED' if missed else 'PASSED'}: {len(catches) - len(missed)} of {len(catches)} mutants caught")
    return 1 if missed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    logging.disable(logging.CRITICAL)  # nodes that complain of what is done to them
    if options.stories:
        return run_stories(options)
    if options.mutants:
        return run_mutants(options)
    if options.seed is not None:
        return replay(options)
    return run_seeds(options)


if __name__ == "__main__":
    sys.exit(main())
