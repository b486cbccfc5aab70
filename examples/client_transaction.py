"""Take orders from a queue and write bills, exactly once. Start a broker first: ./dev run"""

from __future__ import annotations

import sys
from uuid import uuid4

from penstock import Client, Queue

ORDERS = 30


def bill(client: Client, queue: Queue, bills: str) -> int:
    """Bill some orders: either their bills are there and the orders done, or neither."""
    orders = queue.receive(10, wait=2)
    try:
        with client.transaction() as txn:
            for order in orders:
                txn.publish(bills, f"bill for {order.text}")
            txn.ack(orders)
            if any(order.text == "order 13" and order.delivery_count == 1 for order in orders):
                raise RuntimeError("the printer is on fire")
    except RuntimeError as error:
        print(f"{error}: nothing of it happened")
        queue.nack(orders, delay=0, reason=str(error))
        return 0
    return len(orders)


def main(*urls: str) -> None:
    run = uuid4().hex[:8]
    topic, bills = f"orders-to-bill-{run}", f"bills-{run}"
    with Client(*urls) as client:
        client.create_topic(topic, partitions=1)
        client.create_topic(bills, partitions=1)
        client.publish_many(topic, [f"order {number}" for number in range(ORDERS)])
        queue = client.queue(topic, group="billing")
        billed = 0
        while billed < ORDERS:
            billed += bill(client, queue, bills)
        found = [message.text for message in client.read(bills)]
        print(f"orders: {ORDERS}, bills: {len(found)}, different ones: {len(set(found))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
