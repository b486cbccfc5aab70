"""`./dev bench`: Penstock next to Apache Kafka on this machine, in one run. See docs/reference/benchmark.md."""

from __future__ import annotations

import argparse
import fnmatch
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from rich.console import Console

from bench.ballast import Ballast
from bench.chart import draw
from bench.client import LoadError, build_generator
from bench.clusters import kafka_clusters, penstock_clusters
from bench.install import InstallError
from bench.kafka import kafka_targets
from bench.machine import machine_facts
from bench.process import BrokerError
from bench.progress import Progress
from bench.report import Report
from bench.runner import BYTES_MAX, Bounds
from bench.session import Plan, run_plan
from bench.targets import CACHE, Target, penstock_targets
from bench.workloads import Workload, all_workloads

FAMILIES = ("penstock", "kafka")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows, one round: about six minutes")
    parser.add_argument("--only", metavar="PATTERN", action="append", help="rows whose id matches (glob or part of it)")
    parser.add_argument("--targets", type=families, default=list(FAMILIES), help="penstock,kafka or one of them")
    parser.add_argument("--seconds", type=positive, help="length of a throughput run (2.5; quick: 2)")
    parser.add_argument("--rounds", type=int, help="how often everything is repeated (3; quick: 1)")
    parser.add_argument("--kafka-version", help="a release on Maven Central, or 'newest' to look again")
    parser.add_argument("--no-variants", action="store_true", help="leave out the other fsync settings")
    parser.add_argument("--no-ballast", action="store_true", help="do not keep memory warm between runs")
    parser.add_argument("--data-dir", type=Path, default=CACHE, help="where the brokers keep their data meanwhile")
    parser.add_argument(
        "--out", type=Path, default=Path("bench/out"), help="where results.json, report.md, chart.png go"
    )
    parser.add_argument("--list", action="store_true", help="say which rows there are, and stop")
    return parser.parse_args(arguments)


def families(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in FAMILIES]:
        raise argparse.ArgumentTypeError(f"unknown target {unknown[0]!r}; there are {' and '.join(FAMILIES)}")
    return names


def positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return value


def choose(workloads: Sequence[Workload], *, quick: bool, only: Sequence[str] | None) -> list[Workload]:
    """The workloads to run; a pattern chooses among all of them, whether or not they are quick."""
    if not only:
        return [work for work in workloads if work.quick or not quick]
    return [work for work in workloads if any(matches(row.id, only) for row in work.rows())]


def matches(row_id: str, patterns: Sequence[str]) -> bool:
    return any(pattern in row_id or fnmatch.fnmatch(row_id, pattern) for pattern in patterns)


def make_plan(options: argparse.Namespace, targets: Sequence[Target]) -> Plan:
    rounds = options.rounds or (1 if options.quick else 3)
    seconds = options.seconds or (2.0 if options.quick else 2.5)
    return Plan(
        targets=targets,
        workloads=choose(all_workloads(), quick=options.quick, only=options.only),
        rounds=rounds,
        bounds=Bounds(seconds=seconds, latency_s=5 if options.quick else 7, steady_s=12),
        directory=options.data_dir.resolve() / "penstock-bench",  # it is deleted afterwards: never the user's own
        limit_repeats=3 if rounds < 3 else 1,
    )


def prepare(options: argparse.Namespace, console: Console) -> tuple[list[Target], dict[str, str]]:
    """The targets that can run here, and their versions; a target that cannot is said aloud and left out."""
    candidates: list[Target] = []
    if "penstock" in options.targets:
        candidates += [*penstock_targets(), *penstock_clusters()]
    if "kafka" in options.targets:
        candidates += [*kafka_targets(options.kafka_version), *kafka_clusters(options.kafka_version)]
    ready: list[Target] = []
    versions: dict[str, str] = {}
    for target in candidates:
        if options.no_variants and "+" in target.name:
            continue
        try:
            versions[target.name] = target.prepare()
            ready.append(target)
        except (BrokerError, InstallError) as error:
            console.print(f"{target.name} is left out: {error}", markup=False)
    return ready, versions


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["queues"]:
        from bench.queues.run import main as bench_queues  # its own servers and clients, needed by nobody else

        return bench_queues(given[1:])
    if given[:1] == ["schedules"]:
        from bench.schedules.run import main as bench_schedules

        return bench_schedules(given[1:])
    if given[:1] == ["spark"]:
        from bench.spark.run import main as bench_spark

        return bench_spark(given[1:])
    if given[:1] == ["security"]:
        from bench.security import main as bench_security

        return bench_security(given[1:])
    options = parse(given)
    console = Console(width=None if sys.stdout.isatty() else 140)
    if options.list:
        for work in choose(all_workloads(), quick=options.quick, only=options.only):
            console.print(work.id, "→", ", ".join(row.id for row in work.rows()), highlight=False, soft_wrap=True)
        return 0
    try:
        generator = build_generator()
    except (LoadError, InstallError) as error:
        console.print(f"no load generator: {error}", markup=False)
        return 1
    targets, versions = prepare(options, console)
    plan = make_plan(options, targets)
    if not targets or not plan.workloads:
        console.print("nothing to run: see --list and --targets")
        return 2
    facts = {**machine_facts(options.data_dir), **versions, "rounds": plan.rounds, "seconds": plan.bounds.seconds}
    ballast = Ballast(0 if options.no_ballast else ballast_bytes())
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop the broker and report, as for Ctrl-C
    with Progress(console, plan.steps()) as progress:
        results = run_plan(plan, generator, ballast, progress)
    facts["minutes"] = round((time.monotonic() - started) / 60, 1)
    report = Report(plan, results, facts)
    report.print(console)
    report.write(options.out)
    names = ", ".join(f"{name} {version}" for name, version in versions.items() if "+" not in name)
    subtitle = f"{names}; {facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['file_system']}"
    draw(options.out / "chart.png", plan.rows(), report.figures, report.limits, subtitle)
    console.print(f"{facts['minutes']} minutes. results.json, report.md and chart.png are in {options.out}")
    return 0


def ballast_bytes() -> int:
    """As much as a run may write and a client may buffer, if the machine has three times that."""
    wanted = BYTES_MAX + 300_000_000
    return wanted if psutil.virtual_memory().available > 3 * wanted else 0


if __name__ == "__main__":
    sys.exit(main())
