"""A real node and its Kafka port: whatever comes in, the node stays up, stays small, and serves those who behave."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import struct
import tempfile
import time
from pathlib import Path

from bench.fuzzing.mutation import mutate
from bench.fuzzing.part import Finding
from bench.fuzzing.requests import make_frame
from bench.process import BrokerProcess, answers_api_versions
from bench.targets import Penstock

_CONNECTIONS = 60
_GROWTH_MB_MAX = 200.0
_SETTINGS = {"PENSTOCK_BROKER__AUTO_CREATE_TOPICS": "false", "PENSTOCK_STORAGE__FSYNC": "none"}
_NEWLINE = r"\n"  # as JSON writes it
_LINGER_NONE = struct.pack("ii", 1, 0)


class Live:
    """One node for all batches, so that what leaks adds up."""

    name = "node"

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
        self._node = Penstock("penstock", "fuzzed", _SETTINGS).start(self._directory)
        self._process: BrokerProcess = self._node.process
        self._first_mb: float | None = None
        self._log_seen = 0

    def run(self, seed: int) -> int:
        rng = random.Random(seed)
        held: list[socket.socket] = []
        for _ in range(_CONNECTIONS):
            with contextlib.suppress(OSError):
                conn = socket.create_connection(("127.0.0.1", self._node.kafka_port), 5)
                held.append(conn)
                self._misbehave(rng, conn)
        self._check()
        for conn in held:
            conn.close()
        return _CONNECTIONS

    def _misbehave(self, rng: random.Random, conn: socket.socket) -> None:
        match rng.randrange(8):
            case 0:
                conn.sendall(rng.randbytes(rng.randrange(1, 3_000)))
            case 1:
                conn.sendall(b"".join(mutate(rng, make_frame(rng)) for _ in range(rng.randrange(1, 30))))
            case 2:
                conn.sendall(b"".join(make_frame(rng) for _ in range(rng.randrange(1, 30))))
            case 3:
                conn.sendall(struct.pack(">i", rng.choice((-1, 1 << 30, 100 << 20, 5_000_000))) + rng.randbytes(100))
            case 4:
                frame = make_frame(rng)
                conn.sendall(frame[: rng.randrange(len(frame))])
            case 5:
                for byte in make_frame(rng)[:20]:
                    conn.sendall(bytes([byte]))
            case 6:
                conn.sendall(make_frame(rng))
                conn.shutdown(socket.SHUT_WR)
            case 7:
                conn.sendall(make_frame(rng) * 3)
                conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
                conn.close()

    def _check(self) -> None:
        if not self._process.is_running:
            raise Finding(f"the node died\n{self._process.log_tail()}")
        deadline = time.monotonic() + 10
        while not answers_api_versions(self._node.kafka_port):
            if time.monotonic() > deadline:
                raise Finding(f"the node no longer answers\n{self._process.log_tail()}")
        text = (self._directory / "broker.log").read_text(errors="replace")
        said, self._log_seen = text[self._log_seen :], len(text)
        for line in said.splitlines():
            if "Traceback" in line:
                raise Finding(f"the node logged a bug of ours: {line.replace(_NEWLINE, chr(10))[-900:]}")
        now_mb = self._process.memory().anon_mb
        if self._first_mb is None:
            self._first_mb = now_mb
        if now_mb - self._first_mb > _GROWTH_MB_MAX:
            raise Finding(f"the node grew from {self._first_mb:.0f} MB to {now_mb:.0f} MB")

    def close(self) -> None:
        self._process.stop(10)
        shutil.rmtree(self._directory, ignore_errors=True)
