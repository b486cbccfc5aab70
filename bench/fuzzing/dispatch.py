"""Every handler, in this process: a frame gets an answer that its client could read, or closes its connection.

The connection is a stand-in without a socket; the broker behind it is real, on a directory in memory where there is one.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.fuzzing.mutation import mutate
from bench.fuzzing.part import Finding, memory_limit, time_limit
from bench.fuzzing.requests import PARTITIONS, TOPICS, is_costly, make_frame
from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig, Fsync
from penstock.clock import SystemClock
from penstock.cluster.controller import TopicSpec
from penstock.cluster.records import Endpoint
from penstock.kafka.dispatch import KafkaDispatcher
from penstock.kafka.protocol.catalogue import MESSAGES
from penstock.kafka.protocol.codec import decode
from penstock.kafka.protocol.errors import ProtocolError
from penstock.kafka.protocol.headers import FRAME_PREFIX_BYTES, RequestHeader, decode_response, read_request_header
from penstock.storage.files import DiskFiles, FileSlice

_CASES = 400
_BATCH_LIMIT_S = 60.0
_ANSWER_LIMIT_S = 10.0
_MAY_WAIT = {1, 11, 14}  # Fetch, JoinGroup and SyncGroup are answered when something happens
_API_VERSIONS = 18
_SHARED_MEMORY = Path("/dev/shm")


class StandInAnswer:
    """A place in the queue of responses."""

    def __init__(self, connection: StandIn) -> None:
        self._connection = connection
        self.is_done = False
        self.frame = b""

    def complete(self, pieces: Sequence[Any]) -> None:
        if self.is_done:
            raise Finding("a request was answered twice")
        self.is_done = True
        self.frame = b"".join(bytes(piece.read() if isinstance(piece, FileSlice) else piece) for piece in pieces)
        self._connection.moved.set()


class StandIn:
    """A connection as the dispatcher sees it."""

    def __init__(self) -> None:
        self.local_host = "127.0.0.1"
        self.peer_host = "127.0.0.1"
        self.peer = "127.0.0.1:1"
        self.is_closed = False
        self.is_closing = False
        self.answers: list[StandInAnswer] = []
        self.moved = asyncio.Event()

    def expect_answer(self, *, is_barrier: bool) -> StandInAnswer:
        self.answers.append(StandInAnswer(self))
        return self.answers[-1]

    def close(self, reason: str = "") -> None:
        self.is_closed = True
        self.moved.set()


class Dispatch:
    """The dispatcher with a broker behind it, new for each batch."""

    name = "dispatch"

    def run(self, seed: int) -> int:
        place = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        directory = Path(tempfile.mkdtemp(prefix="penstock-fuzz-", dir=place))
        try:
            with memory_limit(), time_limit(_BATCH_LIMIT_S, "a batch of requests"):
                return asyncio.run(_Batch(seed, directory).run())
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        """Nothing is kept."""


class _Batch:
    def __init__(self, seed: int, directory: Path) -> None:
        self._rng = random.Random(seed)
        self._directory = directory
        self._uncaught: list[str] = []

    async def run(self) -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self._uncaught.append(str(context)))
        config = BrokerConfig(
            node_id=1,
            data_dir=self._directory,
            endpoints=(Endpoint(door="kafka", host="127.0.0.1", port=9092),),
            fsync=Fsync.NONE,
            auto_create_topics=False,
        )
        broker = Broker(config, DiskFiles(), SystemClock())
        broker.start()
        try:
            for topic in TOPICS:
                await broker.create_topic(TopicSpec(name=topic, partitions=PARTITIONS))
            dispatcher = KafkaDispatcher(broker, lambda _: None)
            for case in range(_CASES):
                frame = make_frame(self._rng)
                if self._rng.random() < 0.8:
                    frame = mutate(self._rng, frame)
                await self._dispatch(dispatcher, frame, case)
        finally:
            await broker.close()
        return _CASES

    async def _dispatch(self, dispatcher: KafkaDispatcher, frame: bytes, case: int) -> None:
        body = memoryview(bytearray(frame[FRAME_PREFIX_BYTES:]))
        if _would_cost_too_much(body):
            return
        told = f"case {case}, {_describe(body)}, frame {frame[:400].hex()}"
        connection = StandIn()
        try:
            dispatcher.dispatch(connection, body)  # type: ignore[arg-type]
        except ProtocolError:
            return
        except Exception as error:
            raise Finding(f"{error!r} came out of {told}") from error
        header = read_request_header(body)
        await self._answered(connection, header, told)
        connection.is_closed = True
        if self._uncaught:
            raise Finding(f"{self._uncaught[0]} after {told}")

    async def _answered(self, connection: StandIn, header: RequestHeader, told: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _ANSWER_LIMIT_S
        for answer in connection.answers:
            while not answer.is_done and not connection.is_closed:
                if header.api_key in _MAY_WAIT:
                    return
                if loop.time() > deadline:
                    raise Finding(f"no answer to {told}")
                connection.moved.clear()
                try:
                    async with asyncio.timeout(0.05):
                        await connection.moved.wait()
                except TimeoutError:
                    continue
            if answer.is_done:
                _check_answer(header, answer.frame, told)


def _check_answer(header: RequestHeader, frame: bytes, told: str) -> None:
    version = header.api_version
    api = header.api
    assert api is not None
    if header.api_key == _API_VERSIONS and not api.supports(version):
        version = 0
    try:
        correlation_id, _ = decode_response(MESSAGES[header.api_key][1], version, memoryview(frame)[4:])
    except ProtocolError as error:
        raise Finding(f"the answer cannot be read ({error}) to {told}: {frame[:200].hex()}") from error
    if correlation_id != header.correlation_id:
        raise Finding(f"the answer is to request {correlation_id}, not to {told}")


def _would_cost_too_much(body: memoryview) -> bool:
    try:
        header = read_request_header(body)
        if header.api is None or not header.api.supports(header.api_version):
            return False
        message, _ = decode(MESSAGES[header.api_key][0], header.api_version, body, header.body_position)
    except ProtocolError:
        return False
    return is_costly(message)


def _describe(body: memoryview) -> str:
    try:
        header = read_request_header(body)
    except ProtocolError:
        return "no header"
    return f"{header.api.name if header.api else header.api_key} v{header.api_version}"
