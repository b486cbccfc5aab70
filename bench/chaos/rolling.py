"""Rolling restart under load: every node is restarted in good order, twice, and no operation of a client may fail."""

from __future__ import annotations

import time

from bench.chaos.checker import check
from bench.chaos.clients.client import TOPICS
from bench.chaos.cluster import ClusterError
from bench.chaos.display import Display
from bench.chaos.drain import drain_leaders
from bench.chaos.faults import Arena
from bench.chaos.faults.processes import restart_in_good_order
from bench.chaos.figures import Figures, longest_silence
from bench.chaos.history import Diary, now, read_all
from bench.chaos.order import Order
from bench.chaos.run import standing
from bench.chaos.workload import DERIVING, EVERYBODY, PRODUCERS, READERS, WRITERS, Workload
from bench.report import Grid

ROUNDS = 2
QUIET_S = 5.0


def play(order: Order) -> int:
    restarts: list[tuple[float, float]] = []
    troubles: list[str] = []
    with standing(order) as (cluster, watch), Display(order.console, ROUNDS * order.nodes) as display:
        workload = Workload(order.directory / "clients", cluster.bootstrap, EVERYBODY, order.load, cluster.login)
        arena = Arena(cluster, watch, workload.tend)
        try:
            workload.tend()
            time.sleep(QUIET_S)
            for node in list(cluster.nodes.values()) * ROUNDS:
                began_at = now()
                restart_in_good_order(arena, node)
                restarts.append((began_at, now()))
                display.say(f"{node} restarted in {now() - began_at:.1f} s")
                display.update(len(restarts), str(node))
                time.sleep(1.0)
            for names in (PRODUCERS | WRITERS, DERIVING, READERS):
                troubles += [f"{name} did not finish" for name in workload.finish(names)]
            diary = Diary(order.directory / "final.diary")
            drain_leaders(cluster, TOPICS, diary)
            diary.close()
        except ClusterError as error:
            troubles.append(str(error))
        finally:
            workload.close()
    return tell(order, workload, restarts, troubles)


def tell(order: Order, workload: Workload, restarts: list[tuple[float, float]], troubles: list[str]) -> int:
    events = list(read_all([*workload.diaries, *order.directory.glob("final.diary")]))
    figures, anomalies = Figures.of(events), check(events)
    failed = sum(counts["fail"] + counts["info"] for counts in figures.outcomes.values())
    asked_until = restarts[-1][1] if restarts else 0.0
    silence = max((longest_silence(figures.acked_at, *span, asked_until) for span in restarts), default=0.0)
    lines = [
        ["restarts", str(len(restarts))],
        ["operations", f"{sum(sum(counts.values()) for counts in figures.outcomes.values()):,}"],
        ["failed operations", str(failed)],
        ["clients that gave up", str(workload.restarts)],
        ["longest time without an ack (s)", f"{silence:.2f}"],
        ["anomalies", str(len(anomalies))],
    ]
    lines += [
        [f"{name}: {outcome}", str(n)] for name, counts in figures.outcomes.items() for outcome, n in counts.items()
    ]
    grid = Grid(f"Rolling restart of {order.software.name}, {order.nodes} nodes, under load", ["", "count"], lines)
    order.console.print(grid.as_table())
    (order.directory / "report.md").write_text(grid.as_markdown())
    for line in [*troubles, *map(str, anomalies[:20])]:
        order.console.print(f"! {line}", markup=False, highlight=False, soft_wrap=True)
    is_good = not failed and not anomalies and not troubles and not workload.restarts and bool(restarts)
    order.console.print(f"goal: no failed operation: {'reached' if is_good else 'MISSED'}")
    return 0 if is_good else 1
