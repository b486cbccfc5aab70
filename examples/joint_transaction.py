"""Four writers share a transaction: readers see all they wrote at once. Start a broker first: ./dev run"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen
from uuid import uuid4


def call(url: str, body: object = None, **headers: str) -> dict[str, object]:
    """One request: POST where there is a body, GET where there is none."""
    data = None if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with urlopen(Request(url, data, {"content-type": "application/json", **named})) as response:
        answer: dict[str, object] = json.load(response)
        return answer


def write(url: str, topic: str, transaction: str, writer: str) -> None:
    """What each task of a job does. The sequence makes it safe to send a call again if its answer was lost."""
    for first in range(0, 100, 25):
        messages = [{"value": f"{writer}: {number}"} for number in range(first, first + 25)]
        call(
            f"{url}/v1/topics/{topic}/batch",
            {"messages": messages},
            penstock_transaction=transaction,
            penstock_writer=writer,
            penstock_sequence=str(first),
        )


def count_visible(url: str, topic: str) -> int:
    partitions = call(f"{url}/v1/topics/{topic}")["partitions"]
    assert isinstance(partitions, int)
    pages = [call(f"{url}/v1/topics/{topic}/messages?partition={index}&limit=1000") for index in range(partitions)]
    return sum(len(page["messages"]) for page in pages)  # type: ignore[arg-type]


def main(url: str = "http://127.0.0.1:8080") -> None:
    topic = f"results-{uuid4().hex[:8]}"
    transaction = str(call(f"{url}/v1/transactions", {"timeout_ms": 60_000})["transaction"])
    tasks = [f"task-{number}" for number in range(4)]
    with ThreadPoolExecutor() as pool:
        # The fifth is an attempt that will not count.
        list(pool.map(lambda writer: write(url, topic, transaction, writer), [*tasks, "task-3-failed"]))
    print("visible before the commit:", count_visible(url, topic))
    end = call(f"{url}/v1/transactions/{transaction}/commit", {"writers": tasks}, idempotency_key=topic)
    print("left out:", end["aborted_writers"])
    print("visible after the commit:", count_visible(url, topic))


if __name__ == "__main__":
    main(*sys.argv[1:])
