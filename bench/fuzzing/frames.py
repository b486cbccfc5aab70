"""The decoders, one frame at a time: they read it or refuse it with `ProtocolError`, quickly and in bounded memory."""

from __future__ import annotations

import random
import time

from bench.fuzzing.mutation import mutate
from bench.fuzzing.part import Finding, memory_limit, time_limit
from bench.fuzzing.requests import make_batch, make_frame
from penstock.doors.kafka.protocol.codec import decode
from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.fetch import decode_fetch_request
from penstock.doors.kafka.protocol.headers import FRAME_PREFIX_BYTES, read_frame_length, read_request_header
from penstock.doors.kafka.protocol.messages import MESSAGES
from penstock.doors.kafka.protocol.produce import decode_produce_request
from penstock.errors import PenstockError
from penstock.records import accept_batch, decode_records

_CASES = 2_000
_CASE_LIMIT_S = 1.0
_BATCH_LIMIT_S = 60.0
_FRAME_LIMIT = 100 << 20


class Frames:
    """Headers, all requests, the hand-written Produce and Fetch, and record batches."""

    name = "frames"

    def run(self, seed: int) -> int:
        rng = random.Random(seed)
        with memory_limit(), time_limit(_BATCH_LIMIT_S, "decoding"):
            for case in range(_CASES):
                data = self._case(rng)
                began = time.monotonic()
                try:
                    _decode(data)
                    _open_batch(data)
                except Exception as error:
                    raise Finding(f"case {case}: {error!r} on {data[:400].hex()}") from error
                if (seconds := time.monotonic() - began) > _CASE_LIMIT_S:
                    raise Finding(f"case {case}: decoding took {seconds:.1f} s on {data[:400].hex()}")
        return _CASES

    def _case(self, rng: random.Random) -> bytes:
        match rng.randrange(10):
            case 0:
                return rng.randbytes(rng.randrange(200))
            case 1 | 2:
                return mutate(rng, make_batch(rng))
            case _:
                return mutate(rng, make_frame(rng))

    def close(self) -> None:
        """Nothing is kept."""


def _decode(data: bytes) -> None:
    try:
        read_frame_length(data, limit=_FRAME_LIMIT) if len(data) >= FRAME_PREFIX_BYTES else None
    except ProtocolError:
        pass
    body = memoryview(bytearray(data[FRAME_PREFIX_BYTES:]))
    try:
        header = read_request_header(body)
        if header.api is None or not header.api.supports(header.api_version):
            return
        decode(MESSAGES[header.api_key][0], header.api_version, body, header.body_position)
    except ProtocolError:
        pass
    try:
        header = read_request_header(body)
        if header.api_key == 0:
            decode_produce_request(header.api_version, body, header.body_position)
        elif header.api_key == 1:
            decode_fetch_request(header.api_version, body, header.body_position)
    except ProtocolError:
        pass


def _open_batch(data: bytes) -> None:
    view = memoryview(bytearray(data))
    try:
        accept_batch(view)
        decode_records(view)
    except PenstockError:
        pass
