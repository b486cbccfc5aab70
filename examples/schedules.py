"""Messages for later with the Python client: delayed, moved, cancelled, and again and again. First: ./dev run"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from penstock import Client


def main(*urls: str) -> None:
    run = uuid4().hex[:8]
    topic = f"reminders-{run}"
    with Client(*urls) as client:
        client.create_topic(topic, partitions=1)
        began = time.monotonic()
        client.publish(topic, "in half a second", delay=0.5)
        client.publish(topic, "in a second", deliver_at=datetime.now(UTC) + timedelta(seconds=1))
        never = client.publish(topic, "never", delay=60)
        client.schedules.cancel(never.schedule_id)
        client.schedules.add(topic, "brought forward", at=datetime(2099, 1, 1, tzinfo=UTC), id=f"far-away-{run}")
        client.schedules.run(f"far-away-{run}")
        mornings = f"mornings-{run}"
        client.schedules.add(topic, "good morning", cron="0 7 * * mon-fri", time_zone="Europe/Berlin", id=mornings)

        queue = client.queue(topic)
        seen = 0
        while seen < 3:
            for message in queue.receive(10, wait=5):
                print(f"{message.text} (after {time.monotonic() - began:.1f} s)")
                message.ack()
                seen += 1

        for schedule in client.schedules.list(topic=topic):
            print(f"still to come: {schedule.value!r} by {schedule.cron} in {schedule.time_zone}")
        client.schedules.cancel(mornings)


if __name__ == "__main__":
    main(*sys.argv[1:])
