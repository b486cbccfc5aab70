"""The ends of partitions, waited for: whoever reads many partitions asks once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.broker.reach import led_here
from penstock.broker.remote import Where

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


async def await_any(broker: Broker, positions: Mapping[Where, int], wait_ms: int) -> None:
    """Return once there is more to read in some partition than up to these offsets, or after ``wait_ms``.

    Cancelling it leaves nothing behind.
    """
    moved = asyncio.Event()
    here = {partition: offset for at, offset in positions.items() if (partition := led_here(broker, *at)) is not None}
    elsewhere = {at: offset for at, offset in positions.items() if led_here(broker, *at) is None}
    asking: asyncio.Future[None] | None = None
    for partition in here:
        partition.watch(moved.set)
    try:
        if elsewhere:
            asking = asyncio.ensure_future(broker.remote.await_more(elsewhere, wait_ms))
            asking.add_done_callback(lambda _: moved.set())
        async with asyncio.timeout(wait_ms / 1000):
            while all(at.is_leader and at.last_stable_offset <= offset for at, offset in here.items()):
                await moved.wait()
                moved.clear()
                if asking is not None and asking.done():
                    return
    except TimeoutError:
        return
    finally:
        for partition in here:
            partition.unwatch(moved.set)
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
