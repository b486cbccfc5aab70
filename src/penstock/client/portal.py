"""An event loop in a thread of its own, for programs that have none or whose own may be blocked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from penstock.errors import ClientClosed

T = TypeVar("T")

# A signal that comes just before a wait, or to another thread, does not interrupt it. Python looks at signals when the
# wait ends, so a wait without an end would leave Ctrl-C unnoticed.
_LOOK_SECONDS: Final = 0.5


class Portal:
    """Runs coroutines in its loop for any other thread. Its thread is a daemon, so it never keeps a process alive."""

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
        """Start a coroutine, and return the future of its result."""
        if not self.is_running:
            work.close()
            raise ClientClosed()
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. Interrupting the wait cancels it."""
        assert threading.current_thread() is not self._thread, "it would wait for itself"
        future = self.submit(work)
        try:
            while True:
                try:
                    return future.result(_LOOK_SECONDS)
                except TimeoutError:
                    if future.done():  # the error is of the work, or the work is just done
                        return future.result()
        except BaseException:
            future.cancel()
            raise

    def next(self, items: AsyncIterator[T]) -> T:
        """The next item; `StopIteration` at the end."""
        found = self.call(_next_of(items))
        if not found:
            raise StopIteration
        return found[0]

    def each(self, pages: AsyncIterator[Sequence[T]]) -> Iterator[T]:
        """The items of all pages; the other thread is asked once for each page."""
        while found := self.call(_next_of(pages)):
            yield from found[0]

    def stop(self) -> None:
        """End the loop and its thread; what still runs in it is cancelled."""
        if self.loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_rest(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _next_of(items: AsyncIterator[T]) -> tuple[T] | None:
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None


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
