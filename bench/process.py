"""One broker process: started, watched, stopped.

Owns the operating-system side of a target: the child process, its log file, its memory and CPU readings, and the
question "does the Kafka port answer?". It knows nothing of what the process is; `targets.py` and `kafka.py` do.
A child never outlives the benchmark: the kernel kills it when the benchmark's main thread dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

_PR_SET_PDEATHSIG = 1
# ApiVersions v0, correlation id 7, client id "bench": size, key 18, version 0, correlation id, client id.
_API_VERSIONS = struct.pack(">ihhih5s", 15, 18, 0, 7, 5, b"bench")


class BrokerError(Exception):
    """The broker did not start, died, or did not become ready; the message ends with its last log lines."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory; `anon_mb` leaves out file pages, which the kernel takes back whenever it likes."""

    rss_mb: float
    anon_mb: float


_ports_given: set[int] = set()


def free_port() -> int:
    """A loopback port that nobody listens on at the moment, and that was not given to anybody here before."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _ports_given:
            _ports_given.add(port)
            return port


def answers_api_versions(port: int, timeout_s: float = 1.0) -> bool:
    """Whether a broker on `port` answers ApiVersions without error: the first thing any Kafka client asks."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout_s) as conn:
        conn.sendall(_API_VERSIONS)
        head = conn.recv(10, socket.MSG_WAITALL)
        return len(head) == 10 and struct.unpack(">iih", head)[1:] == (7, 0)
    return False


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class BrokerProcess:
    """A running broker and what the operating system says about it."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path) -> None:
        self._log = log
        self.started_at = time.monotonic()
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                preexec_fn=_die_with_parent,
            )
        self._ps = psutil.Process(self._child.pid)

    def wait_until(self, ready: Callable[[], bool], limit_s: float) -> float:
        """Seconds from exec until `ready()` is true."""
        while not ready():
            if self._child.poll() is not None:
                raise BrokerError(f"exited with {self._child.returncode} before it was ready\n{self.log_tail()}")
            if time.monotonic() - self.started_at > limit_s:
                raise BrokerError(f"not ready after {limit_s:.0f} s\n{self.log_tail()}")
            time.sleep(0.005)
        return time.monotonic() - self.started_at

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    def _family(self) -> list[psutil.Process]:
        return [self._ps, *self._ps.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """User and system time of the broker and its children so far."""
        times = [p.cpu_times() for p in self._family()] if self.is_running else []
        return float(sum(t.user + t.system for t in times))

    def memory(self) -> Memory:
        rss_kb = anon_kb = 0
        for member in self._family() if self.is_running else []:
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{member.pid}/status").read_text().splitlines():
                    if line.startswith("VmRSS:"):
                        rss_kb += int(line.split()[1])
                    elif line.startswith("RssAnon:"):
                        anon_kb += int(line.split()[1])
        return Memory(rss_kb * 1024 / 1e6, anon_kb * 1024 / 1e6)

    def terminate(self) -> None:
        """SIGTERM, and no waiting."""
        if self.is_running:
            self._child.terminate()

    def stop(self, patience_s: float = 30) -> None:
        """SIGTERM, then SIGKILL when patience ends."""
        self.terminate()
        try:
            self._child.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class Measured(Protocol):
    """Anything with memory."""

    def memory(self) -> Memory: ...


class MemoryWatch:
    """The highest memory reading while it is open, sampled five times a second."""

    def __init__(self, process: Measured) -> None:
        self._process = process
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak = Memory(0, 0)

    def _sample(self) -> None:
        while not self._closing.wait(0.2):
            with contextlib.suppress(psutil.Error):
                now = self._process.memory()
                self.peak = Memory(max(self.peak.rss_mb, now.rss_mb), max(self.peak.anon_mb, now.anon_mb))

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._thread.join()
