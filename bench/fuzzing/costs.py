"""Small requests that might cost much: every one has a budget of processor time, memory and answer for its bytes.

Kafka: a request of any API that only asks is made large in one of its arrays, with the same thing named again and again
or with names that are not known, and sent to the real dispatcher in this process. HTTP, WebSocket and gRPC: see
`bench.fuzzing.doors`. Where a request takes more than its bytes are worth, that is a finding. Processor time is counted
in units of this machine's speed.
"""

from __future__ import annotations

import asyncio
import random
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.fuzzing.asking import ask, node
from bench.fuzzing.doors import Case, door_cases, doors
from bench.fuzzing.part import Finding, memory_limit, scratch_directory, time_limit
from bench.fuzzing.requests import TOPICS, make_message
from penstock.doors.kafka.dispatch import KafkaDispatcher
from penstock.doors.kafka.limits import READ_ONLY
from penstock.doors.kafka.protocol.apis import FETCH
from penstock.doors.kafka.protocol.headers import encode_request
from penstock.doors.kafka.protocol.messages import MESSAGES
from penstock.doors.kafka.protocol.schema import ApiMessage

_BATCH_LIMIT_S = 300.0
_ANSWER_LIMIT_S = 120.0
_PARTITIONS = 100
_REQUEST_BYTES_MIN, _REQUEST_BYTES_MAX = 4 * 1024, 256 * 1024

# The budget: so much for any request, and so much for each of its bytes.
_CPU_MS, _CPU_US_A_BYTE = 60.0, 3.0
_ANSWER_BYTES, _ANSWER_BYTES_A_BYTE = 1 << 20, 30
_MEMORY_BYTES, _MEMORY_BYTES_A_BYTE = 8 << 20, 200

_MEASUREMENTS = 4  # at most, of one request; the cheapest counts

_UNIT_TURNS = 200_000
_UNIT_MS = 6.0  # which those turns take on the machine that the budget was made on


class Costs:
    """Every door, asked for much in few bytes."""

    name = "costs"

    def run(self, seed: int) -> int:
        with scratch_directory() as directory, memory_limit(), time_limit(_BATCH_LIMIT_S, "a batch of large requests"):
            return asyncio.run(_Batch(seed, directory).run())

    def close(self) -> None:
        """Nothing is kept."""


class _Batch:
    def __init__(self, seed: int, directory: Path) -> None:
        self._rng = random.Random(seed)
        self._directory = directory

    async def run(self) -> int:
        async with node(self._directory, _PARTITIONS) as broker:
            slowness = _slowness()
            cases = [*self._kafka_cases(KafkaDispatcher(broker, lambda _: None))]
            async with doors(broker) as (http_port, grpc_port):
                cases += door_cases(self._rng, http_port, grpc_port)
                for case in cases:
                    await _try(case, slowness)
        return len(cases)

    def _kafka_cases(self, dispatcher: KafkaDispatcher) -> Iterator[Case]:
        for api in (*sorted(READ_ONLY, key=lambda api: api.key), FETCH):
            for is_same in (True, False):
                request, version, frame = self._make(MESSAGES[api.key][0], is_same)
                name = f"{type(request).__name__} v{version}"
                yield Case(name, len(frame), partial(ask, dispatcher, frame, _ANSWER_LIMIT_S))

    def _make(self, cls: type[ApiMessage], is_same: bool) -> tuple[ApiMessage, int, bytes]:
        """A request with one large array, not larger than the most we send."""
        rng = self._rng
        while True:
            version = rng.randint(cls.api.first, cls.api.last)
            try:
                request = _grown(rng, make_message(rng, cls), rng.choice((1_000, 4_000, 20_000)), is_same)
                frame = bytes(encode_request(request, version, 1, "costs"))
            except (AssertionError, TypeError, AttributeError):
                continue  # a null that this version has no place for
            if _REQUEST_BYTES_MIN <= len(frame) <= _REQUEST_BYTES_MAX:
                return request, version, frame


def _grown(rng: random.Random, value: Any, size: int, is_same: bool) -> Any:
    """The same structure with one of its arrays, at whatever depth, grown to that many elements."""
    arrays = [name for name in value.__struct_fields__ if isinstance(getattr(value, name), tuple)]
    arrays = [name for name in arrays if getattr(value, name)]
    if not arrays:
        return value
    name = rng.choice(arrays)
    elements = getattr(value, name)
    if isinstance(elements[0], msgspec.Struct) and rng.random() < 0.5:
        inner = tuple(_grown(rng, element, size // len(elements), is_same) for element in elements)
        return msgspec.structs.replace(value, **{name: inner})
    same = _known(elements[0])
    grown = tuple(same if is_same else _other(elements[0], at) for at in range(size))
    return msgspec.structs.replace(value, **{name: grown})


def _known(value: Any) -> Any:
    """The same with the name of something that there is."""
    if isinstance(value, str):
        return TOPICS[0]
    if isinstance(value, msgspec.Struct):
        names = [name for name in value.__struct_fields__ if isinstance(getattr(value, name), str)]
        return msgspec.structs.replace(value, **dict.fromkeys(names, TOPICS[0]))
    return value


def _other(value: Any, number: int) -> Any:
    """Something of the same kind with another name, or number."""
    if isinstance(value, str):
        return f"n{number}"
    if isinstance(value, int):
        return number
    if isinstance(value, msgspec.Struct):
        first = next((name for name in value.__struct_fields__ if isinstance(getattr(value, name), str | int)), None)
        return (
            value if first is None else msgspec.structs.replace(value, **{first: _other(getattr(value, first), number)})
        )
    return value


async def _try(case: Case, slowness: float) -> None:
    told, size = f"{case.name} of {case.size:,} bytes", case.size
    await case.ask()  # what is made once for all requests is made
    budget_ms = _CPU_MS + _CPU_US_A_BYTE * size / 1000
    cpu_ms, answer_bytes = float("inf"), 0
    for _ in range(_MEASUREMENTS):
        if cpu_ms > budget_ms:  # a collection of this process's garbage or another thread may have been counted
            began = time.process_time()
            answer_bytes = await case.ask()
            cpu_ms = min(cpu_ms, (time.process_time() - began) * 1000 / slowness)
    _hold(told, "ms of processor time", cpu_ms, budget_ms)
    _hold(told, "bytes of answer", answer_bytes, _ANSWER_BYTES + _ANSWER_BYTES_A_BYTE * size)
    tracemalloc.start()
    try:
        await case.ask()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    _hold(told, "bytes of memory", peak, _MEMORY_BYTES + _MEMORY_BYTES_A_BYTE * size)


def _hold(told: str, what: str, amount: float, budget: float) -> None:
    if amount > budget:
        raise Finding(f"{told} took {amount:,.0f} {what}, and {budget:,.0f} is what it is worth")


def _slowness() -> float:
    """How much slower this machine is than the one that the budget was made on; at least 1."""
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        total = 0
        for number in range(_UNIT_TURNS):
            total += number
        best = min(best, (time.process_time() - began) * 1000)
    return max(1.0, best / _UNIT_MS)
