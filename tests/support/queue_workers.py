"""Workers of a queue over REST, who go on through every death of a node, and a ledger of what they saw.

A ledger knows of each message when it was received and when an ack of it was answered. From that follows what must
never happen: two live leases on one message, a message again after its ack was answered, a message nobody ever got.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

_PAUSE_S = 0.05

Place = tuple[int, int]  # partition and offset: what was published again is another message


@dataclass
class Ledger:
    """What all workers saw, in the order in which they noted it."""

    acked: set[str] = field(default_factory=set)  # their values
    returned: list[Place] = field(default_factory=list)  # received although their ack had been answered
    shared: list[Place] = field(default_factory=list)  # received while another lease was alive
    deliveries: int = 0
    _acked: set[Place] = field(default_factory=set)
    _leases: dict[Place, tuple[str, float]] = field(default_factory=dict)  # receipt, and until when for sure
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on_received(self, message: Mapping[str, Any], asked_at: float, timeout_s: float) -> None:
        place, receipt = (message["partition"], message["offset"]), message["receipt"]
        with self._lock:
            self.deliveries += 1
            if place in self._acked:
                self.returned.append(place)
            held = self._leases.get(place)
            if held is not None and held[0] != receipt and time.monotonic() < held[1]:
                self.shared.append(place)
            # The lease began after it was asked for, so it lasts at least until then.
            self._leases[place] = (receipt, asked_at + timeout_s)

    def on_acked(self, message: Mapping[str, Any]) -> None:
        place = (message["partition"], message["offset"])
        with self._lock:
            self._leases.pop(place, None)
            self._acked.add(place)
            self.acked.add(message["value"])


class Workers:
    """Threads that receive and ack through whichever of the nodes answers."""

    def __init__(self, urls: Sequence[str], topic: str, ledger: Ledger, *, timeout_s: float) -> None:
        self._urls = urls
        self._topic = topic
        self._ledger = ledger
        self._timeout_s = timeout_s
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, count: int) -> Workers:
        for number in range(count):
            thread = threading.Thread(target=self._work, args=(number,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(30)

    def _work(self, number: int) -> None:
        turn = number
        while not self._is_over.is_set():
            turn += 1
            url = self._urls[turn % len(self._urls)]
            try:
                with httpx.Client(base_url=url, timeout=10) as client:
                    while not self._is_over.is_set():
                        self._turn(client, number)
            except (httpx.HTTPError, _Refused):
                time.sleep(_PAUSE_S)

    def _turn(self, client: httpx.Client, number: int) -> None:
        asked_at = time.monotonic()
        wanted = {
            "group": "workers",
            "max": 1 + number * 3,
            "wait_ms": 300,
            "visibility_timeout_ms": int(self._timeout_s * 1000),
            "consumer": f"worker {number}",
        }
        messages = _post(client, f"/v1/queues/{self._topic}/receive", wanted)["messages"]
        for message in messages:
            self._ledger.on_received(message, asked_at, self._timeout_s)
        if not messages:
            return
        body = {"group": "workers", "receipts": [message["receipt"] for message in messages]}
        results = _post(client, f"/v1/queues/{self._topic}/ack", body)["results"]
        for message, result in zip(messages, results, strict=True):
            if result["status"] in {"done", "already_acked"}:
                self._ledger.on_acked(message)


class _Refused(Exception):
    """The node is there and will not."""


def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=body)
    if answer.status_code not in {200, 207}:
        raise _Refused(answer.text)
    found: dict[str, Any] = answer.json()
    return found


def publish_until_told(urls: Sequence[str], topic: str, values: Sequence[str], patience_s: float = 60.0) -> None:
    """Publish in small batches, each until it is confirmed: some may be there twice."""
    deadline = time.monotonic() + patience_s
    at = turn = 0
    while at < len(values):
        batch = values[at : at + 20]
        turn += 1
        try:
            with httpx.Client(base_url=urls[turn % len(urls)], timeout=10) as client:
                _post(client, f"/v1/topics/{topic}/batch", {"messages": [{"value": value} for value in batch]})
            at += len(batch)
        except (httpx.HTTPError, _Refused):
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def await_all(is_done: Callable[[], bool], patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while not is_done() and time.monotonic() < deadline:
        time.sleep(0.05)
    return is_done()
