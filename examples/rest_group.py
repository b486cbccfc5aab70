"""Two readers share a topic over REST with nothing but the standard library. Start a broker first: ./dev run"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

TOPIC = "letters"
GROUP = "letter-carriers"
MESSAGES = 20


def call(url: str, body: object) -> dict[str, Any]:
    with urlopen(Request(url, json.dumps(body).encode(), {"content-type": "application/json"})) as response:
        data = response.read()
        answer: dict[str, Any] = json.loads(data) if data else {}
        return answer


class Reader(threading.Thread):
    """A member of the group: it polls, works, and commits what it has done."""

    def __init__(self, group: str, name: str, to_do: set[str], is_over: threading.Event) -> None:
        super().__init__(name=name)
        self._group = group
        self._to_do = to_do
        self._is_over = is_over

    def run(self) -> None:
        wish = {"topics": [TOPIC], "client_id": self.name}
        me = {"member_id": call(f"{self._group}/join", wish)["member_id"]}
        last_poll = 0
        while not self._is_over.is_set():
            # The number of the last answer makes sure that one which got lost on its way is told again.
            page = call(f"{self._group}/poll", {**me, "wait_ms": 500, "last_poll": last_poll})
            last_poll = page["poll"]
            for message in page["messages"]:
                print(f"{self.name}: {message['value']} from partition {message['partition']}")
                self._to_do.discard(message["value"])
            call(f"{self._group}/commit", {**me, "last_poll": last_poll})
            if not self._to_do:
                self._is_over.set()
        call(f"{self._group}/leave", me)


def main(url: str = "http://127.0.0.1:8080") -> None:
    run = uuid4().hex[:4]  # the topic keeps the letters of earlier runs
    messages = [{"key": f"customer {number}", "value": f"letter {run}-{number}"} for number in range(MESSAGES)]
    call(f"{url}/v1/topics/{TOPIC}/batch", {"messages": messages})
    to_do = {message["value"] for message in messages}
    is_over = threading.Event()
    readers = [Reader(f"{url}/v1/groups/{GROUP}", name, to_do, is_over) for name in ("Ada", "Ben")]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    print(f"delivered: {MESSAGES - len(to_do)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
