"""Every handler, in this process: a frame gets an answer that its client could read, or closes its connection.

Connection, dispatcher and broker are the real ones, over a socket pair and a directory in memory where there is one.
"""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

from bench.fuzzing.asking import Client, node
from bench.fuzzing.mutation import mutate
from bench.fuzzing.part import Finding, memory_limit, scratch_directory, time_limit
from bench.fuzzing.requests import PARTITIONS, is_costly, make_frame
from penstock.doors.kafka.dispatch import KafkaDispatcher
from penstock.doors.kafka.protocol.codec import decode
from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.headers import (
    FRAME_PREFIX_BYTES,
    RequestHeader,
    decode_response,
    read_request_header,
)
from penstock.doors.kafka.protocol.messages import MESSAGES
from penstock.doors.kafka.protocol.messages.groups import JoinGroupRequest, SyncGroupRequest
from penstock.doors.kafka.protocol.messages.records import FetchRequest, ProduceRequest
from penstock.doors.kafka.protocol.schema import ApiMessage

_CASES = 400
_BATCH_LIMIT_S = 60.0
_ANSWER_LIMIT_S = 10.0
_GRACE_S = 0.03
_MAY_WAIT = (FetchRequest, JoinGroupRequest, SyncGroupRequest)  # answered when something happens
_API_VERSIONS = 18


class Dispatch:
    """The dispatcher with a broker behind it, new for each batch."""

    name = "dispatch"

    def run(self, seed: int) -> int:
        with scratch_directory() as directory, memory_limit(), time_limit(_BATCH_LIMIT_S, "a batch of requests"):
            return asyncio.run(_Batch(seed, directory).run())

    def close(self) -> None:
        """Nothing is kept."""


class _Batch:
    def __init__(self, seed: int, directory: Path) -> None:
        self._rng = random.Random(seed)
        self._directory = directory
        self._uncaught: list[str] = []
        self._client: Client | None = None

    async def run(self) -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self._uncaught.append(str(context)))
        async with node(self._directory, PARTITIONS) as broker:
            dispatcher = KafkaDispatcher(broker, lambda _: None)
            for case in range(_CASES):
                await self._exchange(dispatcher, case)
            if self._client is not None:
                self._client.close()
        return _CASES

    async def _exchange(self, dispatcher: KafkaDispatcher, case: int) -> None:
        """One request on a connection that is kept for as long as it lasts."""
        body = make_frame(self._rng)[FRAME_PREFIX_BYTES:]
        if self._rng.random() < 0.8:
            body = mutate(self._rng, body)
        request = _decode(body)
        if request is not None and is_costly(request):
            return
        if self._client is None or self._client.connection.is_closed:
            self._client = Client(dispatcher)
        told = f"case {case}, {_describe(body)}, frame {body[:400].hex()}"
        await self._client.send(struct.pack(">i", len(body)) + body)
        await self._check(request, body, told)
        if self._uncaught:
            raise Finding(f"{self._uncaught[0]} after {told}")

    async def _check(self, request: ApiMessage | None, body: bytes, told: str) -> None:
        assert self._client is not None
        is_patient = isinstance(request, _MAY_WAIT) or (isinstance(request, ProduceRequest) and request.acks == 0)
        try:
            answer = await self._client.receive(_GRACE_S if is_patient else _ANSWER_LIMIT_S)
        except TimeoutError:
            if not is_patient:
                raise Finding(f"no answer to {told}") from None
            answer = None
        if answer is None:
            self._client.close()
        else:
            _check_answer(read_request_header(body), answer, told)


def _check_answer(header: RequestHeader, frame: bytes, told: str) -> None:
    version = header.api_version
    api = header.api
    assert api is not None
    if header.api_key == _API_VERSIONS and not api.supports(version):
        version = 0
    try:
        correlation_id, _ = decode_response(MESSAGES[header.api_key][1], version, memoryview(frame))
    except ProtocolError as error:
        raise Finding(f"the answer cannot be read ({error}) to {told}: {frame[:200].hex()}") from error
    if correlation_id != header.correlation_id:
        raise Finding(f"the answer is to request {correlation_id}, not to {told}")


def _decode(body: bytes) -> ApiMessage | None:
    try:
        header = read_request_header(body)
        if header.api is None or not header.api.supports(header.api_version):
            return None
        return decode(MESSAGES[header.api_key][0], header.api_version, memoryview(body), header.body_position)[0]
    except ProtocolError:
        return None


def _describe(body: bytes) -> str:
    try:
        header = read_request_header(body)
    except ProtocolError:
        return "no header"
    return f"{header.api.name if header.api else header.api_key} v{header.api_version}"
