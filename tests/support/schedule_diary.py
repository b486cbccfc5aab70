"""Somebody who schedules messages all the time, and knows which of them were confirmed; and what came of them.

What was confirmed has to come exactly once. What was not, because its node died, may come once: it is not tried again,
since then two could come that were both asked for.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from random import Random
from typing import Any, NamedTuple

AT_ONCE = 40


class Arrival(NamedTuple):
    value: str
    timestamp_ms: int
    due_ms: int


class Diary(threading.Thread):
    """Schedules until it is told to end, at whichever node answers."""

    def __init__(self, urls: Sequence[str], topic: str, seed: int, delay_max_ms: int = 3_000) -> None:
        super().__init__(daemon=True)
        self._urls = urls
        self._topic = topic
        self._dice = Random(seed)
        self._delay_max_ms = delay_max_ms
        self._is_over = threading.Event()
        self.confirmed: set[str] = set()
        self.asked = 0

    def run(self) -> None:
        while not self._is_over.is_set():
            names = [f"m{self.asked + at}" for at in range(AT_ONCE)]
            self.asked += AT_ONCE  # another name each time, also for what was not confirmed
            messages = [
                {"value": name, "key": name, "delay_ms": self._dice.randrange(20, self._delay_max_ms)} for name in names
            ]
            url = f"{self._dice.choice(self._urls)}/v1/topics/{self._topic}/batch"
            try:
                results = ask(url, {"messages": messages})["results"]
            except (OSError, http.client.HTTPException):
                time.sleep(0.2)
                continue
            self.confirmed |= {name for name, result in zip(names, results, strict=True) if "schedule_id" in result}
            time.sleep(0.02)

    def end(self) -> None:
        self._is_over.set()
        self.join(60)
        assert not self.is_alive(), "a request was never answered"


def ask(url: str, body: Any = None, timeout_s: float = 15.0) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.load(answer)


def arrivals(url: str, topic: str, partitions: int) -> list[Arrival]:
    """All messages that are in the topic now."""
    found: list[Arrival] = []
    for partition in range(partitions):
        offset = 0
        while True:
            query = f"partition={partition}&offset={offset}&limit=5000"
            answer = ask(f"{url}/v1/topics/{topic}/messages?{query}")
            if not answer["messages"]:
                break
            for message in answer["messages"]:
                due_ms = int(message["headers"]["penstock-due"])
                found.append(Arrival(message["value"], stamp_ms(message["timestamp"]), due_ms))
            offset = answer["next_offset"]
    return found


def stamp_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def judge(diary: Diary, came: Sequence[Arrival]) -> None:
    """Each of what was confirmed came exactly once, nothing else twice, and nothing early."""
    counts = Counter(arrival.value for arrival in came)
    twice = [value for value, count in counts.items() if count > 1]
    missing = sorted(diary.confirmed - set(counts))
    early = [arrival for arrival in came if arrival.timestamp_ms < arrival.due_ms]
    assert not twice, f"{len(twice)} came more than once: {twice[:5]}"
    assert not missing, f"{len(missing)} never came: {missing[:5]}"
    assert not early, f"{len(early)} came early: {early[:5]}"


def await_arrivals(url: str, topic: str, partitions: int, diary: Diary, limit_s: float = 90.0) -> list[Arrival]:
    """What is in the topic once all that was confirmed is, or once that has taken too long."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            pending = ask(f"{url}/v1/schedules/stats")["pending"]
            came = arrivals(url, topic, partitions)
        except urllib.error.HTTPError:
            pending, came = 1, []
        if (not pending and diary.confirmed <= {each.value for each in came}) or time.monotonic() > deadline:
            time.sleep(0.5)  # whatever would come twice
            return arrivals(url, topic, partitions)
        time.sleep(0.2)
