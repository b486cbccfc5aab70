"""The Python client in tests that are plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from penstock import AsyncClient

T = TypeVar("T")


def run(url: str, work: Callable[[AsyncClient], Awaitable[T]], **options: Any) -> T:
    """What the work with a client comes to."""

    async def main() -> T:
        async with AsyncClient(url, **options) as client:
            return await asyncio.wait_for(work(client), 120)

    return asyncio.run(main())


async def texts(client: AsyncClient, topic: str, partitions: int = 1) -> list[str]:
    """All values of a topic, partition by partition."""
    return [message.text for index in range(partitions) async for message in client.read(topic, index)]
