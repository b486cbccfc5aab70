"""Work that another thread's event loop does for a caller who may press Ctrl-C meanwhile."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from penstock.client.portal import Portal


@pytest.fixture
def portal() -> Iterator[Portal]:
    made = Portal()
    yield made
    made.stop()


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """The signal as from a terminal, also where the tests are a background job and ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def is_main_thread_waiting() -> bool:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return (frame.f_code.co_filename, frame.f_code.co_name) == (threading.__file__, "wait")


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_is_noticed_though_the_signal_does_not_interrupt_the_wait(portal: Portal) -> None:
    """As when it comes between Python's last look at signals and its wait, or is delivered to another thread."""
    ended: list[str] = []

    async def work() -> None:
        while not is_main_thread_waiting():  # noqa: ASYNC110  # which is another thread's doing
            await asyncio.sleep(0.001)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        try:
            await asyncio.sleep(20)
            ended.append("by itself")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with pytest.raises(KeyboardInterrupt):
        portal.call(work())
    portal.stop()
    assert ended == ["cancelled"]


def test_an_error_of_the_work_is_raised_even_if_it_is_a_timeout(portal: Portal) -> None:
    async def work() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        portal.call(work())
