"""What this machine can do at all, measured in the same run and on the same file system as the brokers' data.

A ratio to these says how much of the hardware a broker leaves unused; they drift by tens of per cent between minutes
on shared machines, so they are measured anew in each round. All figures in MB/s are 10^6 bytes a second.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.ballast import Ballast
from bench.summary import median, percentile

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    page_cache_write_mb_per_s: float
    """write() of 1 MiB chunks to a new file, no sync: the ceiling of acks=1."""
    sync_at_end_mb_per_s: float
    """The same, with one fdatasync at the end."""
    sync_each_mib_mb_per_s: float
    """fdatasync after each 1 MiB: a broker that syncs each large batch by itself."""
    group_commit_mb_per_s: float
    """One thread writes, another calls fdatasync in a loop: the ceiling of acks=all with fsync before the ack."""
    sync_p50_ms: float
    """append of 1 KB + fdatasync: the floor of a durable ack's latency."""
    sync_p99_ms: float
    loopback_mb_per_s: float
    """One TCP stream over loopback between two processes: the ceiling of consume."""
    socket_to_file_mb_per_s: float
    """The same stream, written to a file as it comes: a broker that does nothing but move the bytes."""
    cold_read_mb_per_s: float
    """read() of a file that is not in the page cache: the ceiling of catch-up reads."""


def measure_limits(directory: Path, ballast: Ballast, total_mib: int = 1900, repeats: int = 3) -> Limits:
    """Measure all limits on the file system of `directory`, on memory as warm as the brokers will have it.

    `repeats` is for those that goals refer to; the others are measured once.
    """

    def measured(measure: Callable[[Path, int], float], mib: int, times: int = 1) -> float:
        return median([_on_new_file(directory, ballast, measure, mib) for _ in range(times)])

    latencies = sync_latencies_ms(directory / "limit")
    return Limits(
        page_cache_write_mb_per_s=measured(page_cache_write, total_mib, repeats),
        sync_at_end_mb_per_s=measured(sync_at_end, total_mib // 2),
        sync_each_mib_mb_per_s=measured(sync_each_mib, total_mib // 8),
        group_commit_mb_per_s=measured(group_commit, total_mib, repeats),
        sync_p50_ms=percentile(latencies, 0.50),
        sync_p99_ms=percentile(latencies, 0.99),
        loopback_mb_per_s=median([loopback(None) for _ in range(repeats)]),
        socket_to_file_mb_per_s=measured(loopback, total_mib),
        cold_read_mb_per_s=measured(cold_read, total_mib // 2),
    )


def _on_new_file(directory: Path, ballast: Ballast, measure: Callable[[Path, int], float], mib: int) -> float:
    path = directory / "limit"
    ballast.hold()
    ballast.release()
    try:
        return measure(path, mib)
    finally:
        path.unlink(missing_ok=True)
        os.sync()


def page_cache_write(path: Path, mib: int) -> float:
    return _timed_write(path, mib, _nothing, _nothing)


def sync_at_end(path: Path, mib: int) -> float:
    return _timed_write(path, mib, _nothing, os.fdatasync)


def sync_each_mib(path: Path, mib: int) -> float:
    return _timed_write(path, mib, os.fdatasync, _nothing)


def group_commit(path: Path, mib: int) -> float:
    """Bytes made durable over the time until the last of them is, while syncs overlap with writes."""
    fresh = threading.Event()
    closing = threading.Event()

    def sync_loop(fd: int) -> None:
        while not closing.is_set():
            if fresh.wait(0.05):
                fresh.clear()
                os.fdatasync(fd)

    def finish(fd: int) -> None:
        closing.set()
        syncer.join()
        os.fdatasync(fd)

    sync_fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    syncer = threading.Thread(target=sync_loop, args=(sync_fd,), daemon=True)
    syncer.start()
    try:
        return _timed_write(path, mib, lambda _fd: fresh.set(), finish)
    finally:
        os.close(sync_fd)


def _nothing(_fd: int) -> None:
    """No sync."""


def _timed_write(path: Path, mib: int, after_each: Callable[[int], None], at_end: Callable[[int], None]) -> float:
    chunk = os.urandom(MIB)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        start = time.perf_counter()
        for _ in range(mib):
            os.write(fd, chunk)
            after_each(fd)
        at_end(fd)
        return mib * MIB / 1e6 / (time.perf_counter() - start)
    finally:
        os.close(fd)


def sync_latencies_ms(path: Path, count: int = 1000, limit_s: float = 3) -> list[float]:
    """Latencies of append 1 KB + fdatasync, one after the other."""
    record = os.urandom(1000)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    latencies: list[float] = []
    stop = time.perf_counter() + limit_s
    try:
        while len(latencies) < count and time.perf_counter() < stop:
            start = time.perf_counter()
            os.write(fd, record)
            os.fdatasync(fd)
            latencies.append((time.perf_counter() - start) * 1e3)
    finally:
        os.close(fd)
        path.unlink()
    return latencies


def cold_read(path: Path, mib: int) -> float:
    sync_at_end(path, mib)
    forget_cached(path)
    buffer = bytearray(MIB)
    with path.open("rb", buffering=0) as file:
        start = time.perf_counter()
        while file.readinto(buffer):
            pass
        return mib * MIB / 1e6 / (time.perf_counter() - start)


def forget_cached(path: Path) -> None:
    """Drop a file's clean pages from the page cache; dirty ones must have been synced before."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def loopback(copy_to: Path | None, mib: int = 4096, limit_s: float = 2.0) -> float:
    """MB/s of one TCP stream on loopback; the sender is a process of its own, as a client would be."""
    out = os.open(copy_to, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600) if copy_to else None
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if child == 0:
            _send_and_exit(server.getsockname()[1], mib, limit_s)
        conn, _ = server.accept()
        buffer = memoryview(bytearray(MIB))
        received = 0
        start = time.perf_counter()
        with conn:
            while n := conn.recv_into(buffer):
                received += n
                if out is not None:
                    os.write(out, buffer[:n])
        elapsed = time.perf_counter() - start
        os.waitpid(child, 0)
    if out is not None:
        os.close(out)
    return received / 1e6 / elapsed


def _send_and_exit(port: int, mib: int, limit_s: float) -> None:
    chunk = bytes(MIB)
    try:
        with socket.create_connection(("127.0.0.1", port)) as conn:
            stop = time.perf_counter() + limit_s
            for _ in range(mib):
                conn.sendall(chunk)
                if time.perf_counter() > stop:
                    break
    finally:
        os._exit(0)
