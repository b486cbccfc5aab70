"""A queue under load whose nodes and consumers are killed, and the judgement of what all of them wrote down.

Publishers and consumers of every kind (tests/support/queue_hand.py) go on through every death. Afterwards the journals
of the consumers, the log itself and the dead letters must fit together; `Verdict.faults` says where they do not.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.support.nursery import die_with_parent
from tests.support.queue_hand import GROUP, POISON

import penstock
from penstock.errors import PenstockError

HAND = Path(__file__).with_name("queue_hand.py")
KINDS = ("sync", "async", "auto", "batch", "rest", "websocket")
TRIES = 20  # more than a message that is just unlucky needs
_CLOCK_S = 0.05  # clocks of two lives of a node, and those of its clients, may differ by so much
_POISON_EVERY = 150


class Publisher:
    """A thread that publishes batches, and remembers which messages it was told are safe."""

    def __init__(self, name: str, publish: Callable[[list[str]], None], pause_s: float) -> None:
        self.name = name
        self.confirmed: list[str] = []
        self._publish = publish
        self._pause_s = pause_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(self._pause_s):
            values = []
            for _ in range(10):
                number += 1
                kind = f"{POISON}-" if number % _POISON_EVERY == 0 else ""
                values.append(f"{kind}{self.name}-{number}")
            try:
                self._publish(values)
            except (PenstockError, httpx.HTTPError):
                time.sleep(0.2)  # it may be there or not; these values are not used again
            else:
                self.confirmed += values

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(150)
        assert not self._thread.is_alive(), "a publisher hangs"


class Hand:
    """A consumer, and its journal over all its lives."""

    def __init__(
        self, kind: str, number: int, directory: Path, topic: str, lease_s: float, urls: Sequence[str]
    ) -> None:
        self.journal = directory / f"{kind}-{number}.jsonl"
        self._log = directory / f"{kind}-{number}.log"
        self._command = [sys.executable, str(HAND), kind, topic, str(lease_s), str(self.journal), *urls]
        self.start()

    def start(self) -> None:
        path = os.pathsep.join([str(HAND.parents[2]), *sys.path])  # what is tested here is what it uses
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                preexec_fn=die_with_parent,
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"a hand did not stop\n{self._log.read_text()[-2_000:]}") from None
        assert code == 0, self._log.read_text()[-2_000:]

    def assert_alive(self) -> None:
        assert self._process.poll() is None, self._log.read_text()[-2_000:]

    def events(self) -> Iterator[dict[str, Any]]:
        if self.journal.exists():
            lines = self.journal.read_bytes().split(b"\n")
            yield from (json.loads(line) for line in lines[:-1])


class Storm:
    """Publishers, consumers, a topic; whoever uses it kills what is to be killed."""

    def __init__(
        self, directory: Path, urls: Sequence[str], topic: str, *, lease_s: float, kinds: Sequence[str] = KINDS
    ) -> None:
        self.topic = topic
        self.lease_s = lease_s
        self.urls = urls
        self._client = penstock.Client(*urls, delivery_timeout=120)
        self._http = httpx.Client()
        self._turn = 0
        configs = {"queue_tries": TRIES, "queue_retry_base_ms": 10, "queue_retry_cap_ms": 50}
        self._client.create_topic(topic, partitions=3, **configs)
        self.hands = [Hand(kind, at, directory, topic, lease_s, urls) for at, kind in enumerate(kinds)]
        self.publishers = [
            Publisher("sdk", lambda values: void(self._client.publish_many(topic, values)), 0.08),
            Publisher("rest", self._publish_rest, 0.15),
        ]

    def _publish_rest(self, values: list[str]) -> None:
        self._turn += 1
        url = f"{self.urls[self._turn % len(self.urls)]}/v1/topics/{self.topic}/batch"
        body = {"messages": [{"value": value, "key": value} for value in values]}
        answer = self._http.post(url, json=body, timeout=10)
        if answer.status_code != 200:
            raise httpx.HTTPError(answer.text)

    @property
    def confirmed(self) -> int:
        return sum(len(each.confirmed) for each in self.publishers)

    @property
    def heard(self) -> int:
        """How much the consumers have written down: grows while they get something."""
        return sum(hand.journal.stat().st_size for hand in self.hands if hand.journal.exists())

    def await_progress(self, limit_s: float = 120.0) -> None:
        """Return once something more was published and received."""
        confirmed, heard = self.confirmed, self.heard
        deadline = time.monotonic() + limit_s
        while self.confirmed == confirmed or self.heard == heard:
            assert time.monotonic() < deadline, "nothing goes in or nothing comes out"
            time.sleep(0.01)
        for hand in self.hands:
            hand.assert_alive()

    def kill_a_hand(self, dice: random.Random) -> None:
        """A consumer vanishes with what it holds, and another comes."""
        hand = dice.choice(self.hands)
        hand.kill()
        hand.start()

    def finish(self, limit_s: float) -> Verdict:
        """Let everything come to rest, and judge."""
        for publisher in self.publishers:
            publisher.stop()
        self._await_rest(limit_s)
        for hand in self.hands:
            hand.stop()
        self._await_rest(10)
        late = self._ask(f"/v1/queues/{self.topic}/receive", {"group": GROUP, "wait_ms": 500})["messages"]
        verdict = Verdict(self.lease_s)
        verdict.faults += [f"came although everything was done: {message['value']}" for message in late]
        for hand in self.hands:
            for event in hand.events():
                verdict.hear(hand.journal.stem, event)
        stored = self._stored(self.topic)
        dead = self._stored(f"{self.topic}.dlq") if any(value.startswith(POISON) for value in stored.values()) else {}
        confirmed = {each.name: each.confirmed for each in self.publishers}
        verdict.judge(stored, Counter(dead.values()), confirmed)
        self._client.close()
        self._http.close()
        return verdict

    def _await_rest(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            group = self._ask(f"/v1/queues/{self.topic}/groups/{GROUP}")
            left = {name: group[name] for name in ("ready", "in_flight", "waiting", "dying")}
            if not any(left.values()):
                assert all(at["committed"] == at["end"] for at in group["partitions"]), group
                return
            assert time.monotonic() < deadline, f"still {left}"
            time.sleep(0.2)

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self._http.request("GET" if body is None else "POST", self.urls[0] + path, json=body, timeout=20)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def _stored(self, topic: str) -> dict[tuple[int, int], str]:
        count = len(self._ask(f"/v1/topics/{topic}")["partition_details"])
        return {
            (partition, message.offset): message.text
            for partition in range(count)
            for message in self._client.read(topic, partition)
        }


def void(_: object) -> None:
    """For calls whose answer is not needed."""


@dataclass
class Verdict:
    """What the consumers wrote down, and what is wrong with it."""

    lease_s: float
    faults: list[str] = field(default_factory=list)
    deliveries: int = 0
    acks: int = 0
    messages: int = 0
    redelivered: int = 0
    dead: int = 0
    _got: dict[tuple[int, int], list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    _acked: dict[str, float] = field(default_factory=dict)  # receipts, and when their ack was answered
    _own: set[str] = field(default_factory=set)  # those of them that did it, rather than another delivery
    _did: set[str] = field(default_factory=set)  # those whose work was done, before anybody was told

    def hear(self, hand: str, event: dict[str, Any]) -> None:
        if event["what"] == "got":
            self.deliveries += 1
            self._got[tuple(event["place"])].append({**event, "hand": hand})
        elif event["what"] == "did":
            self._did.add(event["receipt"])
        else:
            self._acked[event["receipt"]] = event["at"]
            if event["what"] == "acked by me":
                self._own.add(event["receipt"])

    def judge(self, stored: dict[tuple[int, int], str], dead: Counter[str], confirmed: dict[str, list[str]]) -> None:
        self.messages, self.acks, self.dead = len(stored), len(self._acked), dead.total()
        there = Counter(stored.values())
        for name, values in confirmed.items():
            self.faults += [f"confirmed and lost: {value}" for value in values if value not in there]
            if name == "sdk":
                self.faults += [f"stored {there[value]} times: {value}" for value in values if there[value] > 1]
        poison = Counter({value: count for value, count in there.items() if value.startswith(POISON)})
        if dead != poison:
            self.faults.append(f"dead letters missing {poison - dead}, too many {dead - poison}")
        for place, value in stored.items():
            self._judge_place(place, value)
        self.faults += [f"nobody published {place}" for place in self._got if place not in stored]

    def _judge_place(self, place: tuple[int, int], value: str) -> None:
        got = sorted(self._got[place], key=lambda event: (event["count"], event["at"]))
        receipts = {event["receipt"]: event for event in got}  # a WebSocket may bring the same delivery twice
        self.redelivered += max(len(receipts) - 1, 0)
        is_poison = value.startswith(POISON)
        if not is_poison and not any(receipt in self._did for receipt in receipts):
            self.faults.append(f"never processed: {value} at {place}, {got}")
        deliveries = list(receipts.values())
        for one, next_one in itertools.pairwise(deliveries):
            begun = next_one["until"] - self.lease_s
            if one["count"] == next_one["count"]:
                self.faults.append(f"delivered twice as number {one['count']}: {one} {next_one}")
            if not is_poison and begun < one["until"] - _CLOCK_S:
                self.faults.append(f"two live leases for {one['until'] - begun:.3f} s: {one} {next_one}")
        for at, one in enumerate(deliveries):
            acked_at = self._acked.get(one["receipt"])
            for later in deliveries[at + 1 :] if acked_at is not None else ():
                # Of an ack that was told "already acked", a later delivery may have been the reason.
                if one["receipt"] in self._own or later["until"] - self.lease_s > acked_at + _CLOCK_S:
                    self.faults.append(f"came again after its ack was answered at {acked_at}: {one} {later}")
