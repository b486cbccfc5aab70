"""A reader without a group: every partition from the beginning, and now and then a look back at what it had before."""

from __future__ import annotations

import random
import time
from collections import defaultdict

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from bench.chaos.clients.client import CALL_LIMIT_S, FINISH_LIMIT_S, TOPICS, Client
from bench.chaos.history import Assigned, Finished, Isolation, Polled, Row, id_of, now

BATCH = 300
LOOK_BACK_EVERY_S = 5.0
LOOK_BACK_RECORDS = 400

Place = tuple[str, int]


class Reader:
    """Reads all partitions of some topics by `assign`, in one isolation."""

    def __init__(self, client: Client, topics: list[str], isolation: Isolation) -> None:
        self._client = client
        self._isolation: Isolation = isolation
        self._random = random.Random(client.full_name)
        self._places = [(topic, partition) for topic in topics for partition in range(TOPICS[topic])]
        self._sessions: dict[Place, int] = dict.fromkeys(self._places, 0)
        self._next: dict[Place, int] = dict.fromkeys(self._places, 0)
        self._ends: dict[Place, int] = {}
        self._consumer = Consumer(
            client.settings(
                group_id=f"unused-{client.full_name}",
                isolation_level=f"read_{isolation}",
                enable_auto_commit=False,
                enable_partition_eof=True,
                auto_offset_reset="earliest",  # a reader that is thrown back shows as one that goes back
                check_crcs=True,
                fetch_wait_max_ms=100,
                fetch_error_backoff_ms=100,
            )
        )

    def run(self) -> int:
        for place in self._places:
            self._begin(place, 0)
        self._consumer.assign([TopicPartition(*place, 0) for place in self._places])
        look_back_at = time.monotonic() + LOOK_BACK_EVERY_S
        while not self._client.stopping.is_set():
            self._take()
            if time.monotonic() > look_back_at:
                look_back_at += LOOK_BACK_EVERY_S
                self._look_back()
        is_caught_up = self._read_to_the_end()
        self._client.diary.write(Finished(self._client.full_name, is_caught_up, now()))
        self._consumer.close()
        return 0

    def _session(self, place: Place) -> str:
        return f"{self._client.full_name}:{self._sessions[place]}"

    def _begin(self, place: Place, offset: int) -> None:
        self._client.diary.write(Assigned(self._session(place), *place, offset, now()))

    def _take(self) -> None:
        rows: dict[str, list[Row]] = defaultdict(list)
        for message in self._consumer.consume(BATCH, 0.2):
            place = (message.topic(), message.partition())
            error = message.error()
            if error is None:
                rows[self._session(place)].append((*place, message.offset(), id_of(value_of(message))))
                self._next[place] = message.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ends[place] = message.offset()
            else:
                self._client.note(error)
        at = now()
        self._client.diary.write(*(Polled(name, self._isolation, at, some) for name, some in rows.items()))

    def _look_back(self) -> None:
        place = self._random.choice(self._places)
        offset = max(0, self._next[place] - self._random.randrange(LOOK_BACK_RECORDS))
        try:
            self._consumer.seek(TopicPartition(*place, offset))
        except KafkaException as error:
            self._client.note(error)
            return
        self._sessions[place] += 1
        self._next[place] = offset
        self._ends.pop(place, None)
        self._begin(place, offset)

    def _read_to_the_end(self) -> bool:
        deadline = time.monotonic() + FINISH_LIMIT_S
        targets: dict[Place, int] = {}
        while time.monotonic() < deadline:
            for place in self._places:
                if place not in targets:
                    targets |= self._ask_end(place)
            self._take()
            reached = {place: max(self._next[place], self._ends.get(place, 0)) for place in targets}
            if len(targets) == len(self._places) and all(reached[place] >= targets[place] for place in targets):
                return True
        return False

    def _ask_end(self, place: Place) -> dict[Place, int]:
        try:
            _, end = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=CALL_LIMIT_S)
        except KafkaException as error:
            self._client.note(error)
            return {}
        return {place: end}


def value_of(message: Message) -> bytes:
    value = message.value()
    return value if isinstance(value, bytes) else b""
