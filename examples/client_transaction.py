"""Take orders from a queue and write bills, exactly once. Start a broker first: ./dev run"""

from __future__ import annotations

import sys

from penstock import Client, Queue

ORDERS = 30


def bill(client: Client, queue: Queue) -> int:
    """Bill some orders: either their bills are there and the orders done, or neither."""
    orders = queue.receive(10, wait=2)
    try:
        with client.transaction() as txn:
            for order in orders:
                txn.publish("bills", f"bill for {order.text}")
            txn.ack(orders)
            if any(order.text == "order 13" and order.delivery_count == 1 for order in orders):
                raise RuntimeError("the printer is on fire")
    except RuntimeError as error:
        print(f"{error}: nothing of it happened")
        queue.nack(orders, delay=0, reason=str(error))
        return 0
    return len(orders)


def main(*urls: str) -> None:
    with Client(*urls) as client:
        client.create_topic("orders-to-bill", partitions=1)
        client.create_topic("bills", partitions=1)
        client.publish_many("orders-to-bill", [f"order {number}" for number in range(ORDERS)])
        queue = client.queue("orders-to-bill", group="billing")
        billed = 0
        while billed < ORDERS:
            billed += bill(client, queue)
        bills = [message.text for message in client.read("bills")]
        print(f"orders: {ORDERS}, bills: {len(bills)}, different ones: {len(set(bills))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
