"""Messages for later with the Python client: delayed, moved, cancelled, and again and again. First: ./dev run"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta

from penstock import Client

TOPIC = "reminders"


def main(*urls: str) -> None:
    with Client(*urls) as client:
        client.create_topic(TOPIC, partitions=1)
        began = time.monotonic()
        client.publish(TOPIC, "in half a second", delay_ms=500)
        client.publish(TOPIC, "in a second", deliver_at=datetime.now(UTC) + timedelta(seconds=1))
        never = client.publish(TOPIC, "never", delay_ms=60_000)
        client.schedules.cancel(never.schedule_id)
        client.schedules.add(TOPIC, "brought forward", at=datetime(2099, 1, 1, tzinfo=UTC), id="far-away")
        client.schedules.run("far-away")
        client.schedules.add(TOPIC, "good morning", cron="0 7 * * mon-fri", time_zone="Europe/Berlin", id="mornings")

        queue = client.queue(TOPIC)
        seen = 0
        while seen < 3:
            for message in queue.receive(10, wait=5):
                print(f"{message.text} (after {time.monotonic() - began:.1f} s)")
                message.ack()
                seen += 1

        for schedule in client.schedules.list(topic=TOPIC):
            print(f"still to come: {schedule.value!r} by {schedule.cron} in {schedule.time_zone}")
        client.schedules.cancel("mornings")


if __name__ == "__main__":
    main(*sys.argv[1:])
