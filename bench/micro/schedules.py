"""What schedules and lanes cost without doors, disk or network: memory of a million, and each decision.

    python -m bench.micro.schedules [--quick] [wheel] [near] [far] [snapshot] [lanes]

Each decision about a schedule is encoded as a record and applied, as at a shard's leader; nothing is written. Times are
of the processor, not of the wall, and depend on what else runs on the machine: the first line says how fast plain
Python was.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from penstock.config.settings import ScheduleSettings
from penstock.consensus.queue_config import Lanes, QueueSettings
from penstock.features.queues.core.intervals import Interval, IntervalMap
from penstock.features.queues.core.shares import LabelRun
from penstock.features.queues.core.supply import PlainSupply, SharedSupply, Supply, pool_of
from penstock.features.schedules.machine import ScheduleMachine
from penstock.features.schedules.messages import (
    AddAll,
    AssignScheduleProducer,
    CancelNamed,
    ConfirmFiring,
    Fire,
    NamedSchedule,
    ScheduleRequest,
)
from penstock.features.schedules.records import ScheduleChange, ScheduledMessage, StoredSchedule, from_record, to_record
from penstock.features.schedules.wheel import Wheel
from penstock.machines.messages import Request
from penstock.records import Record

NOW_MS = 1_790_000_000_000
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
BATCH = 500


def resident_mb() -> float:
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def cost(name: str, count: int, work: Callable[[], object]) -> None:
    begin = time.process_time()
    work()
    seconds = time.process_time() - begin
    print(f"{name:<64}{count / seconds / 1e3:>10,.0f} k/s{seconds / count * 1e6:>10.2f} µs each", flush=True)


class Shell:
    """The least that schedules need around them."""

    def __init__(self) -> None:
        self.machine = ScheduleMachine(0, ScheduleSettings())
        self.machine.resume(NOW_MS)
        self.now_ms = NOW_MS
        self.end = 0
        self.answer: Any = None

    def ask(self, request: Request[Any]) -> Any:
        outcome = self.machine.handle(request, self.now_ms, lambda answer: setattr(self, "answer", answer))
        self.write(outcome.changes)
        for reply, what in outcome.replies:
            reply(what)
        return self.answer

    def write(self, changes: list[ScheduleChange]) -> None:
        for change in changes:
            change.offset = self.end
            to_record(change, self.end, self.now_ms)
            self.end += 1
            self.machine.apply(change, self.now_ms, self.now_ms)

    def add(self, count: int, span_ms: int, random: Random) -> None:
        message = ScheduledMessage("orders", 0, b"key", bytes(100))
        for at in range(0, count, BATCH):
            size = min(BATCH, count - at)
            self.ask(
                AddAll(
                    [ScheduleRequest(message=message, due_ms=NOW_MS + random.randrange(span_ms)) for _ in range(size)]
                )
            )


def wheel(count: int) -> None:
    random = Random(1)
    times = [NOW_MS + random.randrange(40 * HOUR_MS) for _ in range(count)]
    before = resident_mb()
    made = Wheel(NOW_MS)
    entries: list[int] = []
    cost("wheel: add", count, lambda: entries.extend(map(made.add, times)))
    print(f"  {(resident_mb() - before) * 1e6 / count:.0f} bytes each, with a list of their numbers")
    random.shuffle(entries)
    cost("wheel: remove", count // 2, lambda: [made.remove(entry) for entry in entries[: count // 2]])

    def drain() -> None:
        now_ms = NOW_MS
        while len(made):
            now_ms += 100_000
            made.advance(now_ms)
            for entry in made.due(count):
                made.remove(entry)

    cost("wheel: time passes, everything becomes due and is removed", count // 2, drain)


def near(count: int) -> None:
    before = resident_mb()
    shell = Shell()
    cost("near: add, 500 a request", count, lambda: shell.add(count, 40 * HOUR_MS, Random(2)))
    print(f"  {count:,} pending in the near days: {resident_mb() - before:.0f} MB")
    names = [f"sched-0-{number}" for number in range(1, count, 10)]
    cost(
        "near: cancel by id, one a request",
        len(names),
        lambda: [shell.ask(CancelNamed([NamedSchedule(name)])) for name in names],
    )
    shell.ask(AssignScheduleProducer(1))
    schedule = StoredSchedule("any", NOW_MS, ScheduledMessage("orders", 0, b"key", bytes(100)))
    left = shell.machine.live

    def fire() -> None:
        while shell.machine.live:
            shell.now_ms += 60_000
            shell.machine.tick(shell.now_ms)
            while due := shell.machine.due(BATCH):
                granted = shell.ask(Fire("orders", b"topic", 0, [(candidate, schedule) for candidate in due]))
                shell.ask(ConfirmFiring(granted.number, {}))

    cost("near: become due, fire and confirm, 500 at most a firing", left, fire)


def far(count: int) -> None:
    before = resident_mb()
    shell = Shell()
    random = Random(3)
    message = ScheduledMessage("orders", 0, b"key", bytes(100))

    def add() -> None:
        for at in range(0, count, BATCH):
            dues = [NOW_MS + 4 * 24 * HOUR_MS + random.randrange(YEAR_MS) for _ in range(min(BATCH, count - at))]
            shell.ask(AddAll([ScheduleRequest(message=message, due_ms=due) for due in dues]))

    cost("far: add, 500 a request", count, add)
    print(f"  {count:,} pending in the next year: {resident_mb() - before:.0f} MB", flush=True)


def snapshot(count: int) -> None:
    shell = Shell()
    shell.add(count, 40 * HOUR_MS, Random(4))
    records: list[Record] = []
    cost(
        "snapshot: pack",
        count,
        lambda: records.extend(to_record(each, shell.end, NOW_MS) for each in shell.machine.snapshot()),
    )
    print(f"  {sum(len(record.value or b'') for record in records) / count:.0f} bytes each")

    def load() -> None:
        machine = ScheduleMachine(0, ScheduleSettings())
        machine.read((0, NOW_MS, from_record(record).event) for record in records)
        machine.resume(NOW_MS)
        assert machine.live == count

    cost("snapshot: load", count, load)
    puts = [to_record(each, 0, NOW_MS) for each in _puts(min(count, 100_000))]
    read = ScheduleMachine(0, ScheduleSettings())
    cost(
        "log without snapshot: decode and take over",
        len(puts),
        lambda: read.read((at, NOW_MS, from_record(put).event) for at, put in enumerate(puts)),
    )
    assert read.live == len(puts)


def _puts(count: int) -> list[ScheduleChange]:
    random = Random(5)
    message = ScheduledMessage("orders", 0, b"key", bytes(100))
    machine = ScheduleMachine(0, ScheduleSettings())
    made = [ScheduleRequest(message=message, due_ms=NOW_MS + random.randrange(40 * HOUR_MS)) for _ in range(count)]
    return machine.handle(AddAll(made), NOW_MS, lambda _: None).changes


def lanes(count: int) -> None:
    wanted = {
        "plain": QueueSettings(),
        "lanes": QueueSettings(lanes=Lanes.ON),
        "fair": QueueSettings(fair_by="key"),
        "lanes and fair": QueueSettings(lanes=Lanes.ON, fair_by="key"),
    }
    for size in (500, 10):
        for name, settings in wanted.items():
            cost(f"{name}: choose and lease, {size} at once", count, partial(_serve, settings, size, count))


def _serve(settings: QueueSettings, size: int, count: int) -> None:
    """Hand out messages that came in batches of 500, each of one of five priorities and seven tenants."""
    rows = IntervalMap("b")
    supply: Supply = PlainSupply(rows)
    if settings.has_shares:
        can_scout = settings.lanes is Lanes.ON
        supply = SharedSupply(
            rows, lambda first, last: (Interval(first, last),), pool_of(settings), can_scout=can_scout
        )
    served = 0
    while served < count:
        while (wanted := supply.unseen(size, 0, count)) is not None:
            firsts = range(wanted.first, wanted.last + 1, BATCH)
            runs = [LabelRun(min(BATCH, wanted.last + 1 - at), at // BATCH % 5, at // BATCH % 7) for at in firsts]
            supply.see(wanted.first, (), runs)
        for first, last in supply.choose(size, 0, count):
            rows.put(first, last, (1,))
            supply.on_leased(first, last)
            served += last - first + 1


def main(words: list[str]) -> None:
    count = 100_000 if "--quick" in words else 1_000_000
    benches = {"wheel": wheel, "near": near, "far": far, "snapshot": snapshot, "lanes": lanes}
    chosen = [word for word in words if not word.startswith("-")] or list(benches)
    if len(chosen) > 1:  # each in a process of its own, whose memory nobody used before
        options = [word for word in words if word.startswith("-")]
        for name in chosen:
            subprocess.run([sys.executable, "-m", "bench.micro.schedules", *options, name], check=True)
        return
    cost("plain Python: add to a dict", count, lambda: {number: number for number in range(count)})
    benches[chosen[0]](count)


if __name__ == "__main__":
    main(sys.argv[1:])
