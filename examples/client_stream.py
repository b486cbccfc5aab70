"""Publish and consume with the Python client. Start a broker first: ./dev run"""

from __future__ import annotations

import asyncio
import sys

from penstock import AsyncClient, Draft

READINGS = 50


async def main(*urls: str) -> None:
    async with AsyncClient(*urls) as client:
        # One message: when this returns it is safe.
        place = await client.publish("temperatures", {"sensor": "roof", "celsius": 21.5}, key="roof")
        print(f"safe in partition {place.partition}")

        # Many together; messages of one key keep their order.
        await client.publish_many(
            "temperatures", [Draft({"sensor": f"s{n % 4}", "celsius": n}, key=f"s{n % 4}") for n in range(1, READINGS)]
        )

        # A consumer shares the topic with the other members of its group, and goes on where the group stopped.
        seen = 0
        async with client.consume("temperatures", group="thermostat") as consumer:
            async for message in consumer:
                reading = message.json()
                print(f"{reading['sensor']}: {reading['celsius']} °C")
                seen += 1
                if seen == READINGS:
                    break
            await consumer.commit()
        print(f"read: {seen}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
