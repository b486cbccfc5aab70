"""The final reads: every partition from its leader in both isolations, and every replica off the disk of its node."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from bench.chaos.cluster import Cluster
from bench.chaos.history import Diary, Drained, Isolation, id_of

LIMIT_S = 120.0


def drain_leaders(cluster: Cluster, topics: Mapping[str, int], diary: Diary) -> None:
    isolations: tuple[Isolation, ...] = ("uncommitted", "committed")
    for isolation in isolations:
        for topic, partitions in topics.items():
            for partition in range(partitions):
                diary.write(drain(cluster, topic, partition, isolation))


def drain(cluster: Cluster, topic: str, partition: int, isolation: Isolation, limit_s: float = LIMIT_S) -> Drained:
    """One partition from offset 0 to what is its end when the reading begins."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            **cluster.login.kafka,
            "group.id": "unused",
            "isolation.level": f"read_{isolation}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "log_level": 0,
        }
    )
    rows: list[tuple[int, str]] = []
    end, is_complete = -1, False
    deadline = time.monotonic() + limit_s
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        consumer.assign([TopicPartition(topic, partition, 0)])
        while time.monotonic() < deadline and not is_complete:
            for message in consumer.consume(1_000, timeout=0.3):
                error = message.error()
                if error is None:
                    rows.append((message.offset(), id_of(message.value() or b"")))
                elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= end:
                    is_complete = True
    except KafkaException:
        is_complete = False
    finally:
        consumer.close()
    return Drained(topic, partition, isolation, end, is_complete, rows)


def drain_replicas(cluster: Cluster, holders: Mapping[tuple[str, int], frozenset[int]], diary: Diary) -> None:
    """What the files of stopped nodes hold, of each partition on each node that is said to be in step with it."""
    for (topic, partition), numbers in sorted(holders.items()):
        for number in sorted(numbers & cluster.nodes.keys()):
            node = cluster.nodes[number]
            found = cluster.software.replica(node.place, topic, partition)
            rows = [(offset, id_of(value)) for offset, value in found]
            end = rows[-1][0] + 1 if rows else 0
            diary.write(Drained(topic, partition, "uncommitted", end, is_complete=True, rows=rows, replica=str(node)))
