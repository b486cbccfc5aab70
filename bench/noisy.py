"""A noisy producer beside a quiet one, with and without a quota. ``python -m bench.noisy [--seconds 5]``.

One node, in a process of its own. The quiet producer publishes a small message 50 times a second and waits for each;
the noisy one, a process as well, publishes batches of 1 MiB as fast as it is let. Told is the 99th percentile of the
quiet one's publishes: alone, beside the noisy one, and beside it once that has a quota of 1 MiB/s; and their ratios.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

NOISY = "noisy"
QUOTA_BYTES = 1024 * 1024
BATCH = json.dumps({"messages": [{"value": "x" * 10_240} for _ in range(100)]}).encode()
QUIET_PER_SECOND = 50
PERCENTILE = 0.99
JSON = {"content-type": "application/json"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each of the three is measured")
    seconds: float = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as directory, _node(Path(directory)) as port:
        for topic in (NOISY, "quiet"):
            _call(port, "POST", "/v1/topics", {"name": topic, "partitions": 1})
        _quiet_ms(port, 1.0)  # warm
        alone = _quiet_ms(port, seconds)
        with _noise(port):
            beside = _quiet_ms(port, seconds)
        _call(port, "PATCH", "/v1/quotas", {"client_id": NOISY, "quotas": {"producer_byte_rate": QUOTA_BYTES}})
        with _noise(port):
            time.sleep(2.0)  # until what it had saved up is used
            held = _quiet_ms(port, seconds)
    print(f"p99 of the quiet producer, alone:               {alone:8.2f} ms")
    print(f"beside a noisy one without a quota:             {beside:8.2f} ms, {beside / alone:.1f} times")
    print(f"beside a noisy one with a quota of 1 MiB/s:     {held:8.2f} ms, {held / alone:.1f} times")


@contextmanager
def _node(directory: Path) -> Iterator[int]:
    ports = [_free_port() for _ in range(2)]
    command = [
        *(sys.executable, "-m", "penstock", "serve", "--data-dir", str(directory), "--grpc", "null"),
        *("--kafka", f"127.0.0.1:{ports[0]}", "--http", f"127.0.0.1:{ports[1]}", "--log-level", "error"),
    ]
    process = subprocess.Popen(command)
    try:
        _wait_ready(ports[1])
        yield ports[1]
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_ready(port: int) -> None:
    for _ in range(300):
        try:
            _call(port, "GET", "/readyz")
        except (OSError, AssertionError):
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the node was not ready within 30 s")


def _call(port: int, method: str, path: str, body: Any = None) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, None if body is None else json.dumps(body), JSON)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status < http.client.MULTIPLE_CHOICES, text


def _quiet_ms(port: int, seconds: float) -> float:
    """The 99th percentile of publishes that come at a steady pace, as it is for them: waiting for a turn counts."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    took: list[float] = []
    began = time.perf_counter()
    for number in range(int(seconds * QUIET_PER_SECOND)):
        due = began + number / QUIET_PER_SECOND
        time.sleep(max(due - time.perf_counter(), 0))
        connection.request("POST", "/v1/topics/quiet/publish", b'{"value": "small"}', JSON)
        answer = connection.getresponse()
        assert answer.read()
        assert answer.status == http.client.OK
        took.append(time.perf_counter() - due)
    connection.close()
    return sorted(took)[int(len(took) * PERCENTILE)] * 1000


@contextmanager
def _noise(port: int) -> Iterator[None]:
    over = multiprocessing.Event()
    process = multiprocessing.Process(target=_make_noise, args=(port, over))
    process.start()
    try:
        yield
    finally:
        over.set()
        process.join(30)


def _make_noise(port: int, over: Event) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    while not over.is_set():
        connection.request("POST", f"/v1/topics/{NOISY}/batch", BATCH, {**JSON, "x-client-id": NOISY})
        answer = connection.getresponse()
        problem = answer.read()
        if answer.status == http.client.TOO_MANY_REQUESTS:
            over.wait(json.loads(problem)["retry_after_ms"] / 1000)


if __name__ == "__main__":
    main()
