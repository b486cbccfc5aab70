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
from pathlib import Path

from bench.queues.penstock import PenstockQueues, penstock_software

SIZE = 1000


def node_seconds(pid: int) -> float:
    """Processor time of all threads of a process so far, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue
    return total / 1e9


class Meter:
    """Processor and wall time of one stretch of calls."""

    def __init__(self, pid: int, row: str, calls: int, batch: int) -> None:
        self._pid, self._row, self._calls, self._batch = pid, row, calls, batch

    def __enter__(self) -> None:
        self._begun = (time.process_time(), node_seconds(self._pid), time.perf_counter())

    def __exit__(self, *exc: object) -> None:
        ended = (time.process_time(), node_seconds(self._pid), time.perf_counter())
        client, node, wall = (after - before for after, before in zip(ended, self._begun, strict=True))
        messages = self._calls * self._batch
        print(
            f"{self._row:28} {self._calls:6} calls of {self._batch:3}:"
            f" client {client / messages * 1e6:8.2f} us a message, node {node / self._calls * 1e3:7.3f} ms a call,"
            f" wall {wall / self._calls * 1e3:7.3f} ms a call",
            flush=True,
        )


async def measure(port: int, pid: int, batch: int, calls: int) -> None:
    client = PenstockQueues()
    await client.open(port)
    await client.make(f"cost-{batch}")
    values = [os.urandom(SIZE) for _ in range(batch)]
    for _ in range(20):
        await client.publish(values)
    for _ in range(20):
        await client.done(await client.take(batch))
    with Meter(pid, "publish", calls, batch):
        for _ in range(calls):
            await client.publish(values)
    taken = []
    with Meter(pid, "receive, values read", calls, batch):
        for _ in range(calls):
            taken.append(await client.take(batch))
    with Meter(pid, "ack", calls, batch):
        for messages in taken:
            await client.done(messages)
    del taken
    for _ in range(calls):
        await client.publish(values)
    with Meter(pid, "receive, values read, and ack", calls, batch):
        for _ in range(calls):
            await client.done(await client.take(batch))
    await client.close()


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
            asyncio.run(measure(options.port, options.pid, batch, options.calls))
        return
    directory = Path(tempfile.mkdtemp(prefix="penstock-cost-"))
    server = penstock_software()[0].start(directory)
    try:
        for batch in batches:
            asyncio.run(measure(server.port, server.process._ps.pid, batch, options.calls))
    finally:
        server.process.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
