"""What is measured: many messages that wait, a server that is killed meanwhile, and many that are due all the time."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.queues.loops import Lost
from bench.queues.servers import Server
from bench.schedules.servers import Later, kill, size_on_disk, unreachable, values_for

Row = tuple[str, float, str]
BATCH = 500
ADDERS = 4

_HOUR_MS = 3_600_000
_NEAR_MS = (2 * _HOUR_MS, 40 * _HOUR_MS)
_FAR_MS = (30 * 24 * _HOUR_MS, 300 * 24 * _HOUR_MS)
_TICK_MS = 10
_BACK_S = 300.0


@dataclass(slots=True)
class Lateness:
    """How late messages came, in milliseconds."""

    rate: int
    late_ms: list[float] = field(default_factory=list)
    processor_s: float = 0.0  # of the server

    def at(self, share: float) -> float:
        return self.late_ms[min(int(len(self.late_ms) * share), len(self.late_ms) - 1)]

    def rows(self) -> list[Row]:
        named = (("median", 0.5), ("99th percentile", 0.99), ("worst", 1.0))
        rows = [(f"{self.rate:,} due a second: late, {name}", self.at(share), "ms") for name, share in named]
        work_us = self.processor_s / len(self.late_ms) * 1e6
        return [*rows, (f"{self.rate:,} due a second: processor time", work_us, "us a message")]


class Bench:
    """One kind of server through all rows."""

    def __init__(self, software: Any, make: Callable[[], Later], directory: Path) -> None:
        self._software = software
        self._make = make
        self._directory = directory

    def _start(self) -> Server:
        server: Server = self._software.start(self._directory)
        return server

    @asynccontextmanager
    async def _client(self, server: Server) -> AsyncIterator[Later]:
        client = self._make()
        await client.open(server)
        try:
            yield client
        finally:
            await client.close()

    def _clear(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)

    # -- many that wait -----------------------------------------------------------------------------------------------

    async def pending(self, count: int, far: int = 0) -> list[Row]:
        """So many wait, the last ``far`` of them for months; then the server is killed and has to know them again."""
        self._clear()
        server = self._start()
        told = f"{count + far:,} pending"
        try:
            async with self._client(server) as client:
                await client.make()
                await client.add(
                    values_for(_soon(_NEAR_MS), 1), _soon(_NEAR_MS)
                )  # what the first one costs is not counted
                await asyncio.sleep(2.0)
                before = server.process.memory()
                begun = time.perf_counter()
                await _fill(client, count - 1, _NEAR_MS)
                await _fill(client, far, _FAR_MS)
                rate = (count + far - 1) / (time.perf_counter() - begun)
                if (found := await client.pending()) != count + far:
                    raise Lost(f"{found:,} of {count + far:,} are pending")
                await asyncio.sleep(3.0)  # a snapshot may be under way
                after = server.process.memory()
            rows = [
                (f"{told}: added", rate, "messages/s"),
                (f"{told}: memory", after.anon_mb - before.anon_mb, "MB"),
                (f"{told}: on disk", size_on_disk(self._directory), "MB"),
            ]
            kill(server)
            server = self._start()
            return [*rows, *await self._recovery(server, count + far, told)]
        finally:
            server.process.stop()

    async def _recovery(self, server: Server, count: int, told: str) -> list[Row]:
        """From the start of the process until it knows all of them."""
        async with self._client(server) as client:
            until = time.monotonic() + _BACK_S
            found = -1
            while found < count:
                if time.monotonic() > until:
                    raise Lost(f"{found:,} of {count:,} are pending {_BACK_S:.0f} s after a kill")
                try:
                    found = await client.pending()
                except unreachable():
                    await asyncio.sleep(0.02)
            back_s = time.monotonic() - server.process.started_at
            return [
                (f"{told}: known again after kill -9", back_s, "s"),
                (f"{told}: memory after that", server.process.memory().anon_mb, "MB in all"),
            ]

    # -- many that are due --------------------------------------------------------------------------------------------

    async def lateness(self, rate: int, seconds: float) -> Lateness:
        """So many are due each second; how late they are where somebody reads them."""
        self._clear()
        os.sync()  # what was written before must not be in the way
        server = self._start()
        found = Lateness(rate)
        try:
            async with self._client(server) as client:
                await client.make()
                count = await self._schedule(client, rate, seconds)
                begun_s = server.process.cpu_seconds()
                everything = asyncio.Event()

                def on_message(due_ms: int, now_ms: float) -> None:
                    found.late_ms.append(now_ms - due_ms)
                    if len(found.late_ms) == count:
                        everything.set()

                following = asyncio.ensure_future(client.follow(on_message))
                try:
                    async with asyncio.timeout(seconds + 120):
                        await everything.wait()
                except TimeoutError:
                    raise Lost(f"{len(found.late_ms):,} of {count:,} came") from None
                finally:
                    found.processor_s = server.process.cpu_seconds() - begun_s
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
        finally:
            server.process.stop()
        found.late_ms.sort()
        if found.late_ms[0] < -1:
            raise Lost(f"a message came {-found.late_ms[0]:.0f} ms early")
        return found

    async def _schedule(self, client: Later, rate: int, seconds: float) -> int:
        """Have everything there before the first is due. How fast that goes is found out by the first few."""
        each = rate * _TICK_MS // 1000
        ticks = int(seconds * 1000 / _TICK_MS)
        begun = time.perf_counter()
        for _ in range(20):
            await client.add(values_for(_soon(_NEAR_MS), each), _soon(_NEAR_MS))
        needed_s = 1.5 * (time.perf_counter() - begun) / 20 * ticks + 5
        first_ms = int((time.time() + needed_s) * 1000)
        dues = iter(range(first_ms, first_ms + ticks * _TICK_MS, _TICK_MS))

        async def work() -> None:
            for due_ms in dues:
                await client.add(values_for(due_ms, each), due_ms)

        await asyncio.gather(*(work() for _ in range(ADDERS)))
        if time.time() * 1000 > first_ms - 1_000:
            raise Lost(f"adding took longer than {needed_s:.0f} s: the machine is busy, try again")
        return each * ticks


def _soon(span_ms: tuple[int, int]) -> int:
    return int(time.time() * 1000) + random.randint(*span_ms)


async def _fill(client: Later, count: int, span_ms: tuple[int, int]) -> None:
    sizes = iter([BATCH] * (count // BATCH) + ([count % BATCH] if count % BATCH else []))

    async def work() -> None:
        for size in sizes:
            due_ms = _soon(span_ms)
            await client.add(values_for(due_ms, size), due_ms)

    await asyncio.gather(*(work() for _ in range(ADDERS)))
