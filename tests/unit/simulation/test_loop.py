"""Virtual time: seconds cost nothing, order is fixed, and the dead do nothing."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from penstock.testing.loop import Life, SimulatedLoop, SimulationHung, SimulationRanAway, simulated_loop


def run(program, seed: int = 1):
    with simulated_loop(Random(seed)) as loop:
        return loop.run_until_complete(program(loop))


def test_an_hour_passes_at_once_and_timeouts_come_on_time():
    async def program(loop: SimulatedLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return loop.time()

    assert run(program) == 3600


def test_locks_gather_and_threads_work_in_the_same_order_every_time():
    async def program(loop: SimulatedLoop) -> list[int]:
        lock, done = asyncio.Lock(), []

        async def work(number: int) -> None:
            await asyncio.to_thread(lambda: None)
            async with lock:
                await asyncio.sleep(0.001)
                done.append(number)

        await asyncio.gather(*(work(number) for number in range(8)))
        return done

    assert run(program, seed=4) == run(program, seed=4)
    assert len({tuple(run(program, seed=seed)) for seed in range(5)}) > 1


def test_what_is_raised_in_a_thread_is_raised_to_who_waits():
    async def program(loop: SimulatedLoop) -> None:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)

    run(program)


def test_waiting_for_what_never_comes_is_told():
    async def program(loop: SimulatedLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationHung):
        run(program)


def test_a_loop_that_never_lets_time_pass_is_told():
    async def program(loop: SimulatedLoop) -> None:
        def again() -> None:
            loop.call_soon(again)

        again()
        await asyncio.sleep(1)

    with pytest.raises(SimulationRanAway):
        run(program)


def test_a_killed_process_does_nothing_more_and_its_finally_blocks_do_not_run():
    done: list[str] = []

    async def process() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                done.append("tick")
        finally:
            done.append("finally")

    async def program(loop: SimulatedLoop) -> list[str]:
        life = Life("one")
        life.run(loop.create_task, process())
        await asyncio.sleep(2.5)
        life.end()
        await asyncio.sleep(10)
        return list(done)

    assert run(program) == ["tick", "tick"]


def test_what_goes_wrong_in_a_callback_is_noted():
    async def program(loop: SimulatedLoop) -> list[str]:
        loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)
        return [repr(error) for _, _, error in loop.failures]

    assert run(program) == ["ZeroDivisionError('integer division or modulo by zero')"]
