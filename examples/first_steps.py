"""Produce and consume with confluent-kafka, which knows nothing of Penstock. Start a broker first: ./dev run"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, Producer


def main(servers: str = "127.0.0.1:9092") -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(10):
        producer.produce("orders", key=f"customer-{number % 3}", value=f"order {number}")
    producer.flush()

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    for message in consumer.consume(10, timeout=30):
        print(message.partition(), message.offset(), message.key(), message.value())
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
