"""A run of chaos: form the cluster, let clients work, let faults happen, heal, read everything, judge."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator

from bench.chaos.checker import check
from bench.chaos.clients.client import TOPICS
from bench.chaos.cluster import Cluster, ClusterError
from bench.chaos.conductor import Conductor, Trouble
from bench.chaos.display import Display
from bench.chaos.drain import drain_leaders, drain_replicas
from bench.chaos.faults import KINDS, Arena
from bench.chaos.figures import Figures
from bench.chaos.history import Diary, now, read_all
from bench.chaos.order import Order
from bench.chaos.report import Report
from bench.chaos.schedule import make_schedule
from bench.chaos.scrub import HEALED_LIMIT_S, scrub_all
from bench.chaos.timeline import draw
from bench.chaos.watch import Watch
from bench.chaos.workload import DERIVING, EVERYBODY, PRODUCERS, READERS, WRITERS, Workload
from bench.targets import REPO


def play(order: Order) -> int:
    """The whole run; the exit code."""
    console = order.console
    kinds = possible(order)
    schedule = make_schedule(order.seed, order.minutes, kinds, order.rate_per_minute)
    console.print(
        f"seed {order.seed}: {len(schedule)} faults of {len(kinds)} kinds in {order.minutes:g} minutes, "
        f"{order.nodes} nodes of {order.software.name}",
        highlight=False,
    )
    with standing(order) as (cluster, watch), Display(console, order.minutes * 60) as display:
        workload = Workload(order.directory / "clients", cluster.bootstrap, EVERYBODY, order.load, cluster.login)
        conductor = Conductor(Arena(cluster, watch, workload.tend), workload.tend, display.say, display.update)
        began_at = asked_until = now()
        watch.start()
        try:
            conductor.play(schedule, order.minutes * 60)
            asked_until = now()
            finish(cluster, watch, workload, conductor, order, display)
        except KeyboardInterrupt:
            conductor.troubles.append(Trouble(now(), "interrupted"))
        finally:
            workload.close()
            watch.stop()
    report = judge(order, conductor, workload, began_at, asked_until)
    report.print(console)
    console.print(f"report.md, report.json and timeline.png are in {order.directory}")
    return 0 if report.is_good else 1


def possible(order: Order) -> dict[str, tuple[float, float]]:
    """The kinds of fault that can happen here; the others are named with the reason."""
    machine = order.machine
    lacking = {
        "network": not machine.has_network,
        "disks": not machine.has_disks,
        "fake time": not machine.has_fake_time,
        "cluster commands": order.software.name != "penstock" or not has_cluster_commands(),
    }
    found: dict[str, tuple[float, float]] = {}
    for name in order.faults:
        kind = KINDS[name]
        if lacking.get(kind.needs, False):
            reason = machine.left_out.get(kind.needs, "there is no such thing here")
            order.console.print(f"left out: {name}, which needs {kind.needs}: {reason}", highlight=False)
        else:
            found[name] = kind.hold_s
    return found


def has_cluster_commands() -> bool:
    command = [str(REPO / ".venv/bin/penstock"), "cluster", "--help"]
    return subprocess.run(command, capture_output=True).returncode == 0


@contextlib.contextmanager
def standing(order: Order) -> Iterator[tuple[Cluster, Watch]]:
    """A cluster that stands, with its topics."""
    with Cluster(order.software, order.machine, order.directory) as cluster:
        cluster.form(order.nodes)
        watch = Watch(cluster, TOPICS)
        watch.create_topics()
        yield cluster, watch


def finish(
    cluster: Cluster, watch: Watch, workload: Workload, conductor: Conductor, order: Order, display: Display
) -> None:
    """Clients finish, those who write before those who read; then all nodes look for damage a last time, and everything
    is read, by wire and off the disks.
    """
    for names in (PRODUCERS | WRITERS, DERIVING, READERS):
        display.say(f"finishing: {', '.join(names)}")
        for name in workload.finish(names):
            conductor.troubles.append(Trouble(now(), f"{name} did not finish and was killed"))
    display.say("scrubbing")
    conductor.troubles += [Trouble(now(), text) for text in scrub_all(cluster)]
    if not watch.wait_until_whole(HEALED_LIMIT_S):
        conductor.troubles.append(Trouble(now(), "what the last scrub found was not copied anew"))
    display.say("reading everything")
    diary = Diary(order.directory / "final.diary")
    drain_leaders(cluster, TOPICS, diary)
    view = watch.view()
    conductor.troubles += [Trouble(now(), text) for text in stop_all(cluster)]
    if view is None:
        conductor.troubles.append(Trouble(now(), "nobody answered at the end"))
    else:
        drain_replicas(cluster, view.in_sync, diary)
    diary.close()


def idle_parts(figures: Figures) -> list[str]:
    """Kinds of operation that never succeeded: a run without them proves nothing."""
    wanted = ("send", "commit", "abort", "poll", "commit offsets")
    return [f"no {name} ever succeeded" for name in wanted if not figures.outcomes[name]["ok"]]


def stop_all(cluster: Cluster) -> list[str]:
    """SIGTERM to all nodes at once; who did not end in time. Kafka's cannot once the quorum is gone."""
    stubborn: list[str] = []
    for node in cluster.running:
        os.kill(node.pid, signal.SIGTERM)
    is_kafka = cluster.software.name == "kafka"
    for node in cluster.running:
        try:
            node.terminate(5.0 if is_kafka else 40.0)
        except ClusterError as error:
            stubborn.append(str(error))
    return [] if is_kafka else stubborn


def judge(order: Order, conductor: Conductor, workload: Workload, began_at: float, asked_until: float) -> Report:
    began = time.monotonic()
    final = order.directory / "final.diary"
    events = list(read_all([*workload.diaries, *([final] if final.exists() else [])]))
    figures = Figures.of(events)
    anomalies = check(events)
    conductor.troubles += [Trouble(now(), text) for text in [*workload.crashes, *idle_parts(figures)]]
    facts: dict[str, object] = {
        "seed": order.seed,
        "minutes": order.minutes,
        "software": order.software.name,
        "nodes": order.nodes,
        "mode": "namespaces and disk images" if order.machine.has_network else "plain processes",
        "clients started again": workload.restarts,
        "records read": figures.records_read,
        "checked in (s)": round(time.monotonic() - began, 1),
    }
    report = Report(facts, conductor.happenings, conductor.troubles, figures, anomalies, began_at, asked_until)
    report.write(order.directory)
    title = f"{order.software.name}, seed {order.seed}: {report.verdict()}"
    last = max([*figures.acked_at[-1:], *figures.ended_at[-1:], began_at + 1])
    draw(
        order.directory / "timeline.png",
        conductor.happenings,
        conductor.troubles,
        figures,
        began_at,
        last - began_at,
        title,
    )
    return report
