"""Lanes: what they cost, whether shares are those of their weights, and how long the last lane waits.

Costs are compared call by call, with and without lanes in turn, over the same messages: what else the machine does
hits both. The picture shows shares over time under overload, with and without boost.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.queues.cost import node_seconds
from bench.queues.loops import Lost
from bench.queues.servers import Server
from penstock import AsyncClient
from penstock.client.leases import AsyncQueueMessage
from penstock.priorities import PRIORITIES

Row = tuple[str, float, str]

SIZE = 1000
BATCH = 500
CALLS = 160
WEIGHTS = dict(zip(PRIORITIES, (50, 25, 15, 7, 3), strict=True))
PICTURE = Path("docs/explanation/lanes.svg")
# In the picture a round takes twenty seconds at this pace, as at a queue whose consumers are slow.
PACE_PER_SECOND = 5
BOOST_SECONDS = 5
COLOURS = ("#c62828", "#ef6c00", "#0f7b8a", "#6a8caf", "#9a9a9a")


async def _fill(client: AsyncClient, topic: str, rounds: int, priorities: Sequence[str] = PRIORITIES) -> None:
    """Batches of each priority in turn, so that every lane has more than anybody takes."""
    values = [os.urandom(SIZE) for _ in range(BATCH)]
    for _ in range(rounds):
        for priority in priorities:
            await client.publish_many(topic, values, priority=priority)


async def cost(server: Server) -> list[Row]:
    """Receiving and acking 500 at a time, with lanes and without them, in processor time and in messages a second."""
    pid = server.process._ps.pid
    kinds: dict[str, tuple[dict[str, str], Sequence[str]]] = {
        "without lanes": ({}, PRIORITIES),
        "lanes, one priority": ({"queue.lanes": "on"}, ["high"] * len(PRIORITIES)),
        "lanes, five priorities": ({"queue.lanes": "on"}, PRIORITIES),
    }
    spent: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    async with AsyncClient(f"http://127.0.0.1:{server.port}") as client:
        queues = {}
        for number, (kind, (configs, priorities)) in enumerate(kinds.items()):
            topic = f"cost-{number}"
            await client.create_topic(topic, partitions=1, **configs)
            await _fill(client, topic, (CALLS + 20) // 3, priorities)
            queues[kind] = client.queue(topic, "bench")
        for call in range(CALLS):
            for kind, queue in queues.items():
                begun = (time.process_time() + node_seconds(pid), time.perf_counter())
                messages = await queue.receive(BATCH)
                for message in messages:
                    _ = message.value
                await _ack(queue, messages)
                if call >= 20:
                    ended = (time.process_time() + node_seconds(pid), time.perf_counter())
                    spent[kind].append((ended[0] - begun[0], ended[1] - begun[1]))
    rows: list[Row] = []
    bare = 0.0
    for kind, each in spent.items():
        work_s = statistics.median(work for work, _ in each)
        bare = bare or work_s
        rows.append((f"receive + ack, {kind}: rate", BATCH / statistics.median(wall for _, wall in each), "messages/s"))
        rows.append((f"receive + ack, {kind}: processor", work_s / BATCH * 1e6, "us a message"))
        if work_s is not bare:
            rows.append((f"{kind}: cost in throughput", (1 - bare / work_s) * 100, "%"))
    return rows


async def _ack(queue: Any, messages: list[AsyncQueueMessage]) -> None:
    if not messages or (refused := await queue.ack(messages)):
        raise Lost(f"nothing came, or {refused if messages else ''} were over")


async def shares(server: Server) -> list[Row]:
    """How far the shares are off under saturation, one message at a time and 500 at a time."""
    rows: list[Row] = []
    async with AsyncClient(f"http://127.0.0.1:{server.port}") as client:
        for most, calls in ((1, 1000), (7, 300), (500, 60)):
            topic = f"shares-{most}"
            await client.create_topic(topic, partitions=1, **{"queue.lanes": "on"})
            await _fill(client, topic, calls * most * WEIGHTS["critical"] // 100 // BATCH + 4)
            queue = client.queue(topic, "bench")
            served: Counter[str] = Counter()
            for _ in range(calls):
                messages = await queue.receive(most)
                served.update(message.priority for message in messages)
                await _ack(queue, messages)
            total = sum(served.values())
            off = max(abs(served[lane] / total * 100 - weight) for lane, weight in WEIGHTS.items())
            rows.append((f"shares off by, {most} at a time", off, "points"))
    return rows


async def over_time(server: Server) -> list[Row]:
    """A slow consumer under overload, with boost and without: the longest wait of each lane, and a picture."""
    rows: list[Row] = []
    told: dict[str, list[tuple[float, str]]] = {}
    async with AsyncClient(f"http://127.0.0.1:{server.port}") as client:
        for kind, boost_ms in (("with boost", BOOST_SECONDS * 1000), ("without boost", 0)):
            topic = f"slow-{boost_ms}"
            configs = {"queue.lanes": "on", "queue.lane.boost.ms": str(boost_ms)}
            await client.create_topic(topic, partitions=1, **configs)
            await _fill(client, topic, 1)
            queue = client.queue(topic, "bench")
            begun = time.perf_counter()
            served = told[kind] = []
            for call in range(40 * PACE_PER_SECOND):
                messages = await queue.receive(1)
                served.append((time.perf_counter() - begun, messages[0].priority))
                await _ack(queue, messages)
                left = begun + (call + 1) / PACE_PER_SECOND - time.perf_counter()
                if left > 0:
                    await asyncio.sleep(left)
            rows.append((f"the last lane waits at most, {kind}", _longest_wait(served, "background"), "s"))
    draw(PICTURE, told)
    return rows


def _longest_wait(served: list[tuple[float, str]], lane: str) -> float:
    moments = [0.0, *(at for at, of in served if of == lane), served[-1][0]]
    return max(after - before for before, after in pairwise(moments))


def draw(path: Path, told: dict[str, list[tuple[float, str]]]) -> None:
    """Messages served so far, by lane, over time; and what each would be by its weight."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "lanes"
    figure, axes = pyplot.subplots(1, len(told), figsize=(11, 4.2), sharey=True, layout="constrained")
    figure.suptitle(f"Five lanes, overloaded, {PACE_PER_SECOND} messages a second (a round takes 20 s)", fontsize=11)
    for axis, (kind, served) in zip(axes, told.items(), strict=True):
        for lane, colour in zip(PRIORITIES, COLOURS, strict=True):
            count, xs, ys = 0, [0.0], [0]
            for at, of in served:
                if of == lane:
                    count += 1
                    xs += [at, at]
                    ys += [count - 1, count]
            axis.plot([*xs, served[-1][0]], [*ys, count], color=colour, label=f"{lane} ({WEIGHTS[lane]} %)")
            axis.plot(
                [0, served[-1][0]], [0, len(served) * WEIGHTS[lane] / 100], color=colour, linewidth=0.7, linestyle=":"
            )
        limit = f"after {BOOST_SECONDS} s" if kind == "with boost" else "never"
        axis.set_title(f"boost {limit}", fontsize=10)
        axis.set_xlabel("seconds", fontsize=9)
        axis.set_yscale("symlog", linthresh=10)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("messages served (dotted: by weight)", fontsize=9)
    axes[0].legend(fontsize=8, loc="upper left")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


LANE_ROWS = (cost, shares, over_time)
