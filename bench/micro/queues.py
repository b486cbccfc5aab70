"""How fast the queue core decides, and what a million messages in flight cost, without doors, disk or network.

    python -m bench.micro.queues [--quick] [speed] [expiry] [memory]

Each decision is encoded as a record and applied, as at a partition's leader; nothing is written. Times are of the
processor, not of the wall, and still depend on what else runs on the machine: the first line says how fast plain Python
was at that moment.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from penstock.consensus.queue_config import Order, QueueSettings
from penstock.features.queues.core.messages import AckDeliveries, BeginQueue, GrantLease, Receipt, parse_receipt
from penstock.features.queues.core.queue import Queue
from penstock.features.queues.core.records import QueueChange, to_record
from penstock.machines.messages import Request

BACKLOG = 10_000_000
IN_FLIGHT = 1_000_000


class Shell:
    """The least that a queue needs around it."""

    def __init__(self, order: Order = Order.NONE) -> None:
        limits = QueueSettings(order=order, in_flight_consumer_max=2 * IN_FLIGHT, in_flight_group_max=2 * IN_FLIGHT)
        self.queue = Queue("group", "orders", 0, limits)
        self.now_ms = 1_000_000
        self.bytes = 0
        self.answer: Any = None
        self.ask(BeginQueue(0, bytes(16)))

    def ask(self, request: Request[Any]) -> Any:
        outcome = self.queue.handle(request, self.now_ms, self._keep)
        self.write(outcome.changes)
        for reply, what in outcome.replies:
            reply(what)
        return self.answer

    def _keep(self, answer: Any) -> None:
        self.answer = answer

    def write(self, changes: list[QueueChange]) -> None:
        for change in changes:
            self.bytes += len(to_record(change, 0, self.now_ms).value or b"")
            self.queue.apply(change, self.now_ms, self.now_ms)
            if self.queue.is_snapshot_due:
                self.write([self.queue.snapshot()])

    def receive(self, limit: int, consumer: str = "worker", timeout_ms: int | None = None) -> list[Receipt]:
        offered = self.queue.offer(consumer, limit, BACKLOG, self.now_ms)
        granted = self.ask(GrantLease(consumer=consumer, offered=offered, visibility_timeout_ms=timeout_ms))
        return [Receipt("orders", 0, *each, granted.nonce) for each in granted.deliveries]


def singles(receipts: list[Receipt]) -> list[str]:
    return [str(each._replace(first=at, last=at)) for each in receipts for at in range(each.first, each.last + 1)]


def rate(name: str, messages: int, work: Callable[[], None]) -> None:
    begin = time.process_time()
    work()
    seconds = time.process_time() - begin
    print(f"{name:<64}{messages / seconds / 1e3:>10,.0f} k msg/s{seconds / messages * 1e6:>10.2f} µs each")


def in_ranges(shell: Shell, calls: int, size: int) -> None:
    for _ in range(calls):
        shell.ask(AckDeliveries(shell.receive(size)))


def by_message(shell: Shell, calls: int, size: int) -> None:
    """As a JSON door would: every receipt made, sent, parsed."""
    for _ in range(calls):
        texts = singles(shell.receive(size))
        parsed = [receipt for text in texts if (receipt := parse_receipt(text)) is not None]
        shell.ask(AckDeliveries(parsed))


def scattered(shell: Shell, calls: int, size: int) -> None:
    """Every other message is acked, the rest a call later."""
    left: list[Receipt] = []
    for _ in range(calls):
        whole = shell.receive(size)
        each = [part._replace(first=at, last=at) for part in whole for at in range(part.first, part.last + 1)]
        shell.ask(AckDeliveries(each[::2] + left))
        left = each[1::2]


def in_key_order(shell: Shell, calls: int, size: int) -> None:
    for _ in range(calls):
        while (wanted := shell.queue.unseen(size, BACKLOG)) is not None:
            shell.queue.see(wanted.first, [at % 10_007 for at in range(wanted.first, wanted.last + 1)])
        shell.ask(AckDeliveries(shell.receive(size)))


def speed(scale: int) -> None:
    rate("receive + ack, 500 at a time, in ranges", scale * 500, lambda: in_ranges(Shell(), scale, 500))
    rate("receive + ack, 500 at a time, a text receipt each", scale * 100, lambda: by_message(Shell(), scale // 5, 500))
    rate(
        "receive + ack, 500 at a time, every other one later", scale * 50, lambda: scattered(Shell(), scale // 10, 500)
    )
    rate("receive + ack, one by one", scale, lambda: in_ranges(Shell(), scale, 1))
    busy = Shell()
    for _ in range(20 * scale):
        busy.receive(1)
    rate(f"receive + ack, one by one, {20 * scale:,} others in flight", scale, lambda: in_ranges(busy, scale, 1))
    keyed = Shell(Order.KEY)
    rate("receive + ack, 500 at a time, in key order", scale * 50, lambda: in_key_order(keyed, scale // 10, 500))


def expiry(leases: int, spread_ms: int = 0) -> None:
    """Leases of one message each end, at one moment or each at its own, in no order."""
    shell = Shell()
    chance = Random(5)
    for _ in range(leases):
        shell.receive(1, timeout_ms=30_000 + chance.randrange(spread_ms + 1))
    shell.now_ms += 30_000
    until_ms = shell.now_ms + spread_ms
    longest = 0.0
    ticks = 0

    def end_all() -> None:
        nonlocal longest, ticks
        while shell.now_ms <= until_ms:
            while shell.queue.wake_ms <= shell.now_ms:
                begin = time.process_time()
                shell.write(shell.queue.tick(shell.now_ms).changes)
                longest = max(longest, time.process_time() - begin)
                ticks += 1
            shell.now_ms += 1

    when = f"over {spread_ms // 1000} s" if spread_ms else "at once"
    rate(f"{leases:,} leases of one message end {when}", leases, end_all)
    print(f"    in {ticks} ticks, the longest {longest * 1e3:.1f} ms; {shell.queue.row_count} rows are left")


def resident_bytes() -> int:
    """The memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def apart(work: Callable[[], None]) -> None:
    """Do something in a process of its own, which has no memory left over from before."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        work()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)


def memory(name: str, size: int, in_flight: int, change: Callable[[Shell], None] = lambda _: None) -> None:
    gc.collect()
    before = resident_bytes()
    shell = Shell()
    for number in range(in_flight // size):
        shell.now_ms += number % 2
        shell.receive(size, f"worker {number % 100}")
    change(shell)
    gc.collect()
    used = resident_bytes() - before
    snapshot = len(to_record(shell.queue.snapshot(), 0, 0).value or b"")
    print(f"{name:<64}{used / 2**20:>10.1f} MiB, {shell.queue.row_count:,} rows, snapshot {snapshot / 2**20:.1f} MiB")


def ack_every_other(shell: Shell) -> None:
    """The worst that can be done to intervals: half of them acked, none next to another."""
    state = shell.queue._deliveries
    for row in [row for row in state.within(0, BACKLOG) if row.size > 1]:
        for offset in range(row.first + 1, row.last, 2):
            state.finish(offset, offset)


def calibrate() -> None:
    begin = time.process_time()
    total = 0
    for number in range(500_000):
        total += number * number
    each_ns = (time.process_time() - begin) / 500_000 * 1e9
    print(f"a turn of a plain loop took {each_ns:.0f} ns")


def main() -> None:
    is_quick = "--quick" in sys.argv
    parts = set(sys.argv[1:]) - {"--quick"} or {"speed", "expiry", "memory"}
    calibrate()
    if "speed" in parts:
        speed(500 if is_quick else 5_000)
    if "expiry" in parts:
        leases = 10_000 if is_quick else 100_000
        expiry(leases)
        expiry(leases, spread_ms=leases)
    if "memory" in parts:
        in_flight = IN_FLIGHT // 10 if is_quick else IN_FLIGHT
        apart(lambda: memory(f"{in_flight:,} in flight in leases of 500", 500, in_flight))
        apart(lambda: memory(f"{in_flight:,} in flight in leases of 1", 1, in_flight))
        worst = f"{in_flight:,} delivered by 500, every other one acked"
        apart(lambda: memory(worst, 500, in_flight, ack_every_other))


if __name__ == "__main__":
    main()
