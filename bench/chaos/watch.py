"""The watcher: who leads what, who is in step, and whether the cluster is whole again, asked like any client would."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.chaos.cluster import Cluster, ClusterError, wait_for

ASK_LIMIT_S = 3.0
REPLICATION = 3


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as one of its nodes describes it."""

    controller: int
    nodes: frozenset[int]
    leaders: Mapping[tuple[str, int], int]
    in_sync: Mapping[tuple[str, int], frozenset[int]]
    replicas: Mapping[tuple[str, int], frozenset[int]]

    def is_whole(self, topics: Mapping[str, int], nodes: frozenset[int]) -> bool:
        """Whether all nodes are there, and every partition is led and has all its replicas in step."""
        places = [(topic, partition) for topic, count in topics.items() for partition in range(count)]
        return nodes <= self.nodes and all(
            self.leaders.get(place, -1) >= 0 and self.in_sync[place] == self.replicas[place] for place in places
        )


class Watch:
    """Asks the cluster about itself."""

    def __init__(self, cluster: Cluster, topics: Mapping[str, int]) -> None:
        self._cluster = cluster
        self._topics = topics
        self.latest: View | None = None
        """What was last said, while the watch is on; None if nobody answered."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep_asking, daemon=True)

    def start(self) -> None:
        """Ask every second, in a thread, so that a silent cluster holds up nobody."""
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _keep_asking(self) -> None:
        while not self._is_over.wait(1.0):
            self.latest = self.view()

    def seems_whole(self) -> bool:
        """Whether the latest view is of a whole cluster."""
        return self._is_whole(self.latest)

    def _admin(self) -> AdminClient:
        # A new one each time: an old one remembers addresses of nodes that are gone for good.
        settings = {"bootstrap.servers": self._cluster.bootstrap, "log_level": 0, "socket.timeout.ms": 3000}
        return AdminClient(settings | self._cluster.login.kafka | {"logger": _silent(), "error_cb": lambda _: None})

    def create_topics(self, limit_s: float = 60.0) -> None:
        """Create the topics with three replicas (fewer if there are fewer nodes), and wait until all is in step."""
        factor = min(REPLICATION, len(self._cluster.nodes))
        new = [
            NewTopic(name, count, factor, config={"min.insync.replicas": str(factor // 2 + 1)})
            for name, count in self._topics.items()
        ]
        deadline = time.monotonic() + limit_s
        while new:
            failed: list[NewTopic] = []
            admin = self._admin()
            for topic, future in zip(new, admin.create_topics(new, request_timeout=10).values(), strict=True):
                try:
                    future.result(20)
                except KafkaException as error:
                    if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                        failed.append(topic)
                        reason = error
            if failed and time.monotonic() > deadline:
                raise ClusterError(f"cannot create topics: {reason}")
            new = failed
        if not self.wait_until_whole(limit_s):
            raise ClusterError("the topics were created, but did not become whole")

    def view(self) -> View | None:
        """What the cluster says now; None if nobody answers."""
        with contextlib.suppress(KafkaException):
            found = self._admin().list_topics(timeout=ASK_LIMIT_S)
            partitions = {
                (topic.topic, number): partition
                for topic in found.topics.values()
                if topic.topic in self._topics
                for number, partition in topic.partitions.items()
            }
            return View(
                found.controller_id,
                frozenset(found.brokers),
                {place: each.leader for place, each in partitions.items()},
                {place: frozenset(each.isrs) for place, each in partitions.items()},
                {place: frozenset(each.replicas) for place, each in partitions.items()},
            )
        return None

    def is_whole(self) -> bool:
        return self._is_whole(self.view())

    def _is_whole(self, view: View | None) -> bool:
        nodes = frozenset(self._cluster.nodes)
        return view is not None and view.is_whole(self._topics, nodes)

    def wait_until_whole(self, limit_s: float, meanwhile: Callable[[], None] = lambda: None) -> bool:
        def asks() -> bool:
            meanwhile()
            return self.is_whole()

        return wait_for(asks, limit_s, step_s=0.3)


def _silent() -> object:
    import logging

    logger = logging.getLogger("chaos.watch")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
