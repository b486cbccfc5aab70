"""A few seconds of the fuzzer, with fixed seeds; ``./dev fuzz`` goes on where this ends."""

from __future__ import annotations

import threading

import pytest
from bench.fuzzing.costs import Costs
from bench.fuzzing.dispatch import Dispatch
from bench.fuzzing.frames import Frames
from bench.fuzzing.part import Finding, memory_limit, time_limit


@pytest.mark.parametrize("seed", range(3))
def test_no_frame_makes_a_decoder_do_anything_but_read_or_refuse_it(seed: int) -> None:
    assert Frames().run(seed) > 0


@pytest.mark.parametrize("seed", range(4))
def test_no_frame_makes_a_handler_do_anything_but_answer_or_close(seed: int) -> None:
    assert Dispatch().run(seed) > 0


def test_no_small_request_costs_much() -> None:
    assert Costs().run(0) > 0


def test_a_hang_is_a_finding() -> None:
    def hang() -> None:
        with time_limit(0.05, "nothing"):
            threading.Event().wait()

    with pytest.raises(Finding):
        hang()


def test_memory_beyond_the_limit_is_refused() -> None:
    with pytest.raises(MemoryError), memory_limit():
        bytearray(1 << 40)
