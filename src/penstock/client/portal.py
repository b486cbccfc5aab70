"""An event loop in a thread of its own, for callers that have none or whose own may be held up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.errors import ClientClosed

T = TypeVar("T")


class Portal:
    """Runs coroutines in its loop for any other thread. The thread ends with the process if nobody stops it."""

    def __init__(self, name: str = "penstock-client") -> None:
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive() and not self.loop.is_closed()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start something, and get a future of it."""
        if not self.is_running:
            work.close()
            raise ClientClosed()
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something and return its result. Whoever is interrupted while waiting stops it."""
        assert threading.current_thread() is not self._thread, "it would wait for itself"
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def soon(self, work: Callable[[], object]) -> None:
        """Have a function called in the loop."""
        self.loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        """End the loop and its thread; what still runs in it is cancelled."""
        if self.loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_rest(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _cancel_rest() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
