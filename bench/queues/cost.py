"""What a message costs in processor time, in the client and in the node: `python -m bench.queues.cost`.

Rates depend on whatever else the machine does; the time that two processes spend on a message hardly does. The loops
are those of the bench, with a fixed number of calls.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from bench.queues.penstock import PenstockQueues, penstock_software

SIZE = 1000


def node_seconds(pid: int) -> float:
    """Processor time so far of the thread that serves, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


class Meter:
    """Processor time of calls. A tenth of them took no more than the figures shown first: what others on the machine
    do makes calls dearer, never cheaper.
    """

    def __init__(self, pid: int, row: str, batch: int) -> None:
        self._pid, self._row, self._batch = pid, row, batch
        self._costs: list[tuple[float, float, float]] = []

    def __enter__(self) -> None:
        self._begun = (time.process_time(), node_seconds(self._pid), time.perf_counter())

    def __exit__(self, *exc: object) -> None:
        ended = (time.process_time(), node_seconds(self._pid), time.perf_counter())
        client, node, wall = (after - before for after, before in zip(ended, self._begun, strict=True))
        self._costs.append((client, node, wall))

    def show(self) -> None:
        count = len(self._costs)
        client, node, wall = (sorted(values) for values in zip(*self._costs, strict=True))
        told = [
            f"client {client[at] / self._batch * 1e6:7.2f} us a message, node {node[at] * 1e3:6.3f} ms a call, "
            f"wall {wall[at] * 1e3:7.3f} ms"
            for at in (count // 10, count // 2)
        ]
        print(f"{self._row:22} {count:4} calls of {self._batch:3}: {told[0]}; medians {told[1]}", flush=True)


async def measure(port: int, pid: int, batch: int, calls: int) -> None:
    client = PenstockQueues()
    await client.open(port)
    await client.make(f"cost-{batch}")
    values = [os.urandom(SIZE) for _ in range(batch)]
    for _ in range(20):
        await client.publish(values)
    for _ in range(20):
        await client.done(await client.take(batch))
        await client.finish()
    publishing, receiving, acking, both = (
        Meter(pid, row, batch) for row in ("publish", "receive, values read", "acknowledge", "receive with acks")
    )
    for _ in range(calls):
        with publishing:
            await client.publish(values)
    for _ in range(calls // 2):
        with receiving:
            messages = await client.take(batch)
        with acking:
            await client.done(messages)
            await client.finish()
    for _ in range(calls // 2):
        with both:
            await client.done(await client.take(batch))
    for meter in (publishing, receiving, acking, both):
        meter.show()
    await client.close()


def _run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="of each kind (200)")
    parser.add_argument("--batch", type=int, action="append", help="messages a call (500 and 1)")
    parser.add_argument("--port", type=int, help="of a node that runs already, with --pid")
    parser.add_argument("--pid", type=int)
    options = parser.parse_args()
    batches = options.batch or [500, 1]
    if options.port:
        for batch in batches:
            _run(measure(options.port, options.pid, batch, options.calls))
        return
    directory = Path(tempfile.mkdtemp(prefix="penstock-cost-"))
    server = penstock_software()[0].start(directory)
    try:
        for batch in batches:
            _run(measure(server.port, server.process._ps.pid, batch, options.calls))
    finally:
        server.process.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
