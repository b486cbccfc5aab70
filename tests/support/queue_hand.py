"""A consumer of a queue as a process of its own, which notes whatever it gets and whatever it is told.

    python queue_hand.py KIND TOPIC VISIBILITY_S JOURNAL URL...

KIND is how it reads: ``sync`` and ``async`` are workers of the SDK that ack each message themselves and so know the
answer, ``auto`` and ``batch`` are workers that return and are acked, ``rest`` and ``websocket`` use these doors. A
message whose value begins with ``poison`` fails every time. It works until SIGTERM, and goes on through every death of
a node. The journal has a JSON object a line, each written at once: ``got`` a delivery, ``did`` the work, and then told
that it is ``acked``, or ``acked by me`` where the door tells the two apart.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import httpx
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

import penstock
from penstock.errors import LeaseLost

GROUP = "hands"
POISON = "poison"
_PAUSE_S = 0.2
_SETTLED = {"done": "acked by me", "already_acked": "acked"}  # what to note of an answer


class Journal:
    """Appends what happened. A process that is killed leaves whole lines."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, what: str, **fields: Any) -> None:
        line = json.dumps({"what": what, "at": time.time(), **fields})
        os.write(self._file, line.encode() + b"\n")

    def got(self, message: penstock.LeasedMessage) -> None:
        self._got(message.partition, message.offset, message.text, message.receipt, message.delivery_count,
                  message.lease_until)  # fmt: skip

    def got_json(self, message: dict[str, Any]) -> None:
        until = datetime.fromisoformat(message["lease_until"])
        self._got(message["partition"], message["offset"], message["value"], message["receipt"],
                  message["delivery_count"], until)  # fmt: skip

    def _got(self, partition: int, offset: int, value: str, receipt: str, count: int, until: datetime | None) -> None:
        assert until is not None
        self.note("got", place=[partition, offset], value=value, receipt=receipt, count=count, until=until.timestamp())


def _fail_if_poison(value: str) -> None:
    if value.startswith(POISON):
        raise ValueError("poison")


class _Stop(Exception):
    """The process is to end."""


def _on_signal(number: int, frame: object) -> None:
    raise _Stop


# -- the SDK -----------------------------------------------------------------------------------------------------------


def work(kind: str, topic: str, visibility_s: float, journal: Journal, urls: Sequence[str]) -> None:
    app = penstock.App(*urls, timeout=60)
    options: dict[str, Any] = {"group": GROUP, "visibility_timeout": visibility_s, "concurrency": 4}
    dice = random.Random(os.getpid())

    def seconds() -> float:
        """Mostly a moment, now and then longer than the lease."""
        return visibility_s * 1.3 if dice.random() < 0.002 else dice.uniform(0.0, 0.01)

    def on_sync(message: penstock.QueueMessage) -> None:
        journal.got(message)
        _fail_if_poison(message.text)
        time.sleep(seconds())
        journal.note("did", receipt=message.receipt)
        try:
            message.ack()
        except LeaseLost:
            return
        journal.note("acked", receipt=message.receipt)

    async def on_async(message: penstock.AsyncQueueMessage) -> None:
        journal.got(message)
        _fail_if_poison(message.text)
        await asyncio.sleep(seconds())
        journal.note("did", receipt=message.receipt)
        try:
            await message.ack()
        except LeaseLost:
            return
        journal.note("acked", receipt=message.receipt)

    def on_auto(message: penstock.QueueMessage) -> None:
        journal.got(message)
        _fail_if_poison(message.text)
        time.sleep(seconds())
        journal.note("did", receipt=message.receipt)

    async def on_batch(messages: Sequence[penstock.AsyncQueueMessage]) -> None:
        for message in messages:
            journal.got(message)
        for message in messages:
            if message.text.startswith(POISON):  # the others should not suffer for it
                # Of a nack whose answer was lost with its node the second one comes too late.
                with suppress(LeaseLost):
                    await message.nack(delay=0, reason=POISON)
        await asyncio.sleep(seconds())
        for message in messages:
            if not message.text.startswith(POISON):
                journal.note("did", receipt=message.receipt)

    handlers: dict[str, Any] = {"sync": on_sync, "async": on_async, "auto": on_auto, "batch": on_batch}
    if kind == "batch":
        options |= {"batch": 10, "concurrency": 2}
    app.worker(topic, **options)(handlers[kind])
    app.run()


# -- REST --------------------------------------------------------------------------------------------------------------


class RestHand:
    """Receives and settles. What it has heard no answer about it settles again before it receives more."""

    def __init__(self, topic: str, visibility_s: float, journal: Journal, urls: Sequence[str]) -> None:
        self._path = f"/v1/queues/{topic}"
        self._visibility_ms = int(visibility_s * 1000)
        self._journal = journal
        self._urls = urls
        self._open: dict[str, list[str]] = {"ack": [], "nack": []}

    def run(self) -> None:
        turn = 0
        clients = [httpx.Client(base_url=url, timeout=10) for url in self._urls]  # to make one takes long
        while True:
            turn += 1
            try:
                while True:
                    self._turn(clients[turn % len(clients)])
            except (httpx.HTTPError, ConnectionError):
                time.sleep(_PAUSE_S)

    def _turn(self, client: httpx.Client) -> None:
        for verb, receipts in self._open.items():
            if receipts:
                self._settle(client, verb, receipts)
                receipts.clear()
        wanted = {"group": GROUP, "max": 20, "wait_ms": 500, "visibility_timeout_ms": self._visibility_ms}
        for message in self._post(client, "receive", wanted)["messages"]:
            self._journal.got_json(message)
            if message["value"].startswith(POISON):
                self._open["nack"].append(message["receipt"])
            else:
                self._journal.note("did", receipt=message["receipt"])
                self._open["ack"].append(message["receipt"])

    def _settle(self, client: httpx.Client, verb: str, receipts: list[str]) -> None:
        body = {"group": GROUP, "receipts": receipts, **({"delay_ms": 0} if verb == "nack" else {})}
        results = self._post(client, verb, body)["results"]
        if any(result["status"] == "failed" for result in results):
            raise ConnectionError("not all of it could be told")
        for result in results:
            if verb == "ack" and result["status"] in _SETTLED:
                self._journal.note(_SETTLED[result["status"]], receipt=result["receipt"])

    def _post(self, client: httpx.Client, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = client.post(f"{self._path}/{verb}", json=body)
        if answer.status_code not in {200, 207}:
            raise ConnectionError(answer.text)
        found: dict[str, Any] = answer.json()
        return found


# -- WebSocket ---------------------------------------------------------------------------------------------------------


class WebSocketHand:
    """Has messages sent to it, and comes back with its token when the connection breaks."""

    def __init__(self, topic: str, visibility_s: float, journal: Journal, urls: Sequence[str]) -> None:
        self._subscription = {
            "op": "subscribe",
            "id": "subscribe",
            "topic": topic,
            "group": GROUP,
            "credits": 20,
            "visibility_timeout_ms": int(visibility_s * 1000),
            "subscription": "mine",
        }
        self._journal = journal
        self._urls = [url.replace("http", "ws", 1) + "/v1/ws" for url in urls]
        self._resume = ""

    def run(self) -> None:
        turn = 0
        while True:
            turn += 1
            try:
                with connect(self._urls[turn % len(self._urls)] + self._resume, legacy=True) as socket:
                    self._talk(socket)
            except (OSError, WebSocketException, TimeoutError):
                time.sleep(_PAUSE_S)

    def _talk(self, socket: ClientConnection) -> None:
        hello = json.loads(socket.recv(20))
        if not hello["resumed"]:
            socket.send(json.dumps(self._subscription))
        while True:
            try:
                frame = json.loads(socket.recv(20))
            except TimeoutError:
                continue  # nothing to do
            if frame["type"] == "messages":
                self._resume = f"?resume={hello['token']}&seen={frame['number']}"
                self._settle(socket, frame)
            elif frame["type"] == "result" and frame.get("id") == "ack":
                for result in frame["results"]:
                    if result["status"] in _SETTLED:
                        self._journal.note(_SETTLED[result["status"]], receipt=result["receipt"])
            elif frame["type"] in {"error", "ended"}:
                raise OSError(frame)

    def _settle(self, socket: ClientConnection, frame: dict[str, Any]) -> None:
        messages = frame["messages"]
        for message in messages:
            self._journal.got_json(message)
        bad = [each["receipt"] for each in messages if each["value"].startswith(POISON)]
        good = [each["receipt"] for each in messages if not each["value"].startswith(POISON)]
        for receipt in good:
            self._journal.note("did", receipt=receipt)
        if good:
            socket.send(json.dumps({"op": "ack", "id": "ack", "group": GROUP, "receipts": good}))
        if bad:
            socket.send(json.dumps({"op": "nack", "id": "nack", "group": GROUP, "receipts": bad, "delay_ms": 0}))
        more = {"op": "next", "subscription": "mine", "credits": len(messages), "seen": frame["number"]}
        socket.send(json.dumps(more))


def main() -> None:
    kind, topic, visibility, path, *urls = sys.argv[1:]
    journal = Journal(path)
    if kind in {"rest", "websocket"}:
        signal.signal(signal.SIGTERM, _on_signal)
        door = RestHand if kind == "rest" else WebSocketHand
        try:
            door(topic, float(visibility), journal, urls).run()
        except _Stop:
            return
    else:
        work(kind, topic, float(visibility), journal, urls)


if __name__ == "__main__":
    main()
