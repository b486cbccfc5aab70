"""Urgent messages first: a refund overtakes a thousand newsletters. Start a broker first: ./dev run"""

from __future__ import annotations

import sys
from collections import Counter
from uuid import uuid4

from penstock import Client


def main(url: str) -> None:
    topic = f"post-{uuid4().hex[:8]}"
    with Client(url) as client:
        client.create_topic(topic, partitions=1, **{"queue.lanes": "on"})
        client.publish_many(topic, ["newsletter"] * 1_000, priority="background")
        client.publish(topic, "refund", priority="critical")
        queue = client.queue(topic, "senders")
        (first,) = queue.receive(1)
        print(f"first: {first.text} ({first.priority})")
        first.ack()

        # With enough of everything, lanes get 50, 25, 15, 7 and 3 of a hundred.
        for priority in ("critical", "high", "normal", "low"):
            client.publish_many(topic, [priority] * 200, priority=priority)
        served: Counter[str] = Counter()
        for _ in range(20):
            messages = queue.receive(10)
            served.update(message.priority for message in messages)
            queue.ack(messages)
        print("of 200:", ", ".join(f"{count} {lane}" for lane, count in served.most_common()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
