"""The two loops that are timed: publish until the time is over, then receive and acknowledge what is there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.queues.clients import Client

WARM_UP_S = 0.5


class Lost(Exception):
    """Fewer messages came out than went in."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages a second, in and out."""

    published: float
    received: float
    messages: int


async def in_and_out(client: Client, queue: str, batch: int, size: int, seconds: float) -> Rates:
    """Publish for so long, in calls of ``batch`` messages; then receive and acknowledge, for as long at most.

    Both are warmed up on the same queue first. Whatever cannot be received in time is left; receiving ends early only
    when all there is has come out, and it is an error if that is not all.
    """
    await client.make(queue)
    values = [os.urandom(size) for _ in range(batch)]
    warm = await _publish(client, values, WARM_UP_S)
    begun = time.perf_counter()
    count = await _publish(client, values, seconds)
    published = count / (time.perf_counter() - begun)
    await _receive(client, batch, lambda taken, _: taken >= warm)
    begun = time.perf_counter()
    taken = await _receive(client, batch, lambda _, elapsed: elapsed >= seconds)
    elapsed = time.perf_counter() - begun
    if elapsed < seconds and taken < count - batch:
        raise Lost(f"{queue}: {count:,} went in and {taken:,} came out")
    return Rates(published, taken / elapsed, count)


async def _publish(client: Client, values: Sequence[bytes], seconds: float) -> int:
    count = 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        await client.publish(values)
        count += len(values)
    return count


async def _receive(client: Client, batch: int, is_over: Callable[[int, float], bool]) -> int:
    taken = 0
    begun = time.perf_counter()
    while not is_over(taken, time.perf_counter() - begun):
        messages = await client.take(batch)
        if not messages:
            break
        await client.done(messages)
        taken += len(messages)
    await client.finish()
    return taken
