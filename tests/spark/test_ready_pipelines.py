"""Ready pipelines in a real Spark session, against a real broker; archive and restore are in test_pipelines.py."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client.generated.sync import Client
from penstock.pipelines.files import load
from penstock.pipelines.run import PipelineRun
from penstock.testing.local import LocalBroker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

NewTopic = Callable[..., str]
Go = Callable[[str, str], None]


@pytest.fixture
def go(tmp_path: Path, spark: Any, broker: LocalBroker) -> Go:
    def run(uses: str, options: str) -> None:
        path = tmp_path / f"{uses}.yaml"
        path.write_text(
            f"pipeline: {uses}\nservers: {broker.url}\nuses: {uses}\ntrigger: available-now\nwith:\n  {{{options}}}\n"
        )
        status = PipelineRun(load(path), spark).go()
        assert (status.state, status.error) == ("finished", None)

    return run


class OnAndOn:
    """Pipelines that have no end: each runs until enough has come of it."""

    def __init__(self, directory: Path, spark: Any, broker: LocalBroker) -> None:
        self._directory, self._spark, self._broker = directory, spark, broker

    def run(self, uses: str, options: str, trigger: str, is_enough: Callable[[], bool]) -> None:
        path = self._directory / f"{uses}.yaml"
        path.write_text(
            f"pipeline: {uses}\nservers: {self._broker.url}\nuses: {uses}\ntrigger: {trigger}\nwith:\n  {{{options}}}\n"
        )
        deadline = time.monotonic() + 600

        def watch(_status: object) -> None:
            if is_enough() or time.monotonic() > deadline:
                run.stop()

        run = PipelineRun(load(path), self._spark, watch=watch)
        status = run.go()
        assert (status.state, status.error) == ("stopped", None)
        assert is_enough(), "it took too long"


@pytest.fixture
def on_and_on(tmp_path: Path, spark: Any, broker: LocalBroker) -> OnAndOn:
    return OnAndOn(tmp_path, spark, broker)


def values(client: Client, topic: str) -> list[Any]:
    return [json.loads(message.value) for message in client.read(topic, 0)]


def test_windows_are_measured(go: Go, client: Client, new_topic: NewTopic) -> None:
    topic, target = new_topic(), new_topic()
    for hour in ("08", "09", "11"):
        rows = [{"city": "Rome", "amount": at, "at": f"2026-01-01T{hour}:00:{at:02}Z"} for at in range(11)]
        client.publish_many(topic, [json.dumps(row).encode() for row in rows])
    measures = '["count(*) AS n", "sum(amount) AS total", "percentile(amount, 0.9) AS p90"]'
    schema = '"city STRING, amount INT, at TIMESTAMP"'
    go(
        "aggregate",
        f"topic: {topic}, schema: {schema}, time: at, window: 1 hour, by: city, measures: {measures}, to: {target}",
    )
    found = sorted(values(client, target), key=lambda row: str(row["window_start"]))
    assert [row["window_start"] for row in found] == ["2026-01-01T08:00:00.000Z", "2026-01-01T09:00:00.000Z"], (
        "the last window is not over"
    )
    assert {(row["city"], row["n"], row["total"], row["p90"]) for row in found} == {("Rome", 11, 55, 9.0)}


def test_rows_of_two_topics_find_each_other(go: Go, client: Client, new_topic: NewTopic) -> None:
    orders, payments, target = new_topic(), new_topic(), new_topic()
    client.publish_many(orders, [b'{"id": "a", "amount": 5}', b'{"id": "b", "amount": 7}'])
    client.publish_many(payments, [b'{"order": "b", "how": "card"}', b'{"order": "z", "how": "cash"}'])
    go(
        "join",
        f'left: {orders}, leftSchema: "id STRING, amount INT", right: {payments}, '
        f'rightSchema: "order STRING, how STRING", '
        f"on: l.id = r.order, select: [l.id, l.amount, r.how], within: 1 day, key: id, to: {target}",
    )
    (found,) = client.read(target, 0)
    assert (found.key, json.loads(found.value)) == (b"b", {"id": "b", "amount": 7, "how": "card"})


def test_what_came_before_is_left_out_also_in_a_later_run(go: Go, client: Client, new_topic: NewTopic) -> None:
    topic, target = new_topic(), new_topic()
    for _ in range(2):
        client.publish(topic, b'{"id":  1}', key="first", headers={"h": "x"})
        client.publish_many(topic, [b'{"id": 2}', b'{"id": 1}'])
        go("dedupe", f"topic: {topic}, to: {target}, by: $.id, horizon: 1 hour")
        found = {message.value: message for message in client.read(target, 0)}
        assert set(found) == {b'{"id":  1}', b'{"id": 2}'}, "byte for byte"
        assert (found[b'{"id":  1}'].key, dict(found[b'{"id":  1}'].headers)) == (b"first", {"h": b"x"})


def test_a_table_adds_what_it_knows(go: Go, tmp_path: Path, spark: Any, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.publish(topic, b'{"id": 1, "city": "Rome"}', key="k")
    client.publish(topic, b'{"id": 2, "city": "Atlantis"}')
    (tmp_path / "cities.csv").write_text("city,country\nRome,IT\n")
    options = (
        f'topic: {topic}, schema: "id INT, city STRING", table: cities.csv, format: csv, on: city, columns: country'
    )
    go("enrich", f"{options}, path: out")
    found = spark.read.parquet(str(tmp_path / "out")).select("id", "city", "country").collect()
    assert sorted(map(tuple, found)) == [(1, "Rome", "IT"), (2, "Atlantis", None)]


def test_dead_letters_become_a_report(go: Go, tmp_path: Path, spark: Any, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(name="parcels.dlq")
    now_ms = int(time.time() * 1000)
    for at in range(12):
        told = {"reason": f"no stock of {at}" if at % 3 else "<timeout>", "time": str(now_ms - at * 1_800_000)}
        headers = {f"penstock-dlq-{name}": text for name, text in ({"group": "couriers", "tries": "3"} | told).items()}
        client.publish(topic, f"parcel {at}", headers=headers)
    go("dead-letters", f"path: report, topics: {topic}, samples: 2")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "12 messages in 2 groups." in page
    assert "no stock of #" in page
    assert "&lt;timeout&gt;" in page
    groups = spark.read.parquet(str(tmp_path / "report" / "groups")).orderBy("letters").collect()
    assert [(row.topic, row.group, row.failure, row.letters) for row in groups] == [
        ("parcels", "couriers", "<timeout>", 4),
        ("parcels", "couriers", "no stock of #", 8),
    ]
    assert spark.read.parquet(str(tmp_path / "report" / "samples")).count() == 4


def test_health_tells_of_nodes_topics_and_groups(go: Go, client: Client, new_topic: NewTopic) -> None:
    topic, target = new_topic(), new_topic()
    client.publish_many(topic, [b"x"] * 5)
    go("health", f"to: {target}")
    found = {(row["kind"], row["name"], row["measure"]): row["value"] for row in values(client, target)}
    assert found["topic", topic, "messages"] == 5.0
    assert [value for (kind, _, measure), value in found.items() if (kind, measure) == ("node", "up")] == [1.0]


def test_windows_are_told_whenever_they_change(on_and_on: OnAndOn, client: Client, new_topic: NewTopic) -> None:
    topic, target = new_topic(), new_topic()
    client.publish_many(topic, [b'{"city": "Rome"}'] * 3 + [b'{"city": "Oslo"}'])

    def totals() -> dict[str, int]:
        return {row["city"]: row["n"] for row in values(client, target)}  # the last one of each counts

    def is_enough() -> bool:
        if totals() == {"Rome": 3, "Oslo": 1}:
            client.publish(topic, b'{"city": "Rome"}')
        return totals().get("Rome", 0) > 3

    on_and_on.run(
        "aggregate",
        f'topic: {topic}, schema: "city STRING", window: 1 day, by: city, measures: count(*) AS n, mode: update, '
        f"to: {target}",
        "{every: 1 second}",
        is_enough,
    )
    told = [(row["city"], row["n"]) for row in values(client, target)]
    assert told[:2] == [("Rome", 3), ("Oslo", 1)] or told[:2] == [("Oslo", 1), ("Rome", 3)]
    assert {city for city, _ in told[2:]} == {"Rome"}, "what did not change is not told again"


def test_health_goes_on_and_tells_rates(on_and_on: OnAndOn, client: Client, new_topic: NewTopic) -> None:
    topic, target = new_topic(), new_topic()
    client.publish_many(topic, [b"x"] * 5)

    def is_enough() -> bool:
        client.publish(topic, b"x")
        return sum(row["measure"] == "up" for row in values(client, target)) >= 3

    on_and_on.run("health", f"to: {target}, every: 1 second", "continuous", is_enough)
    rates = [
        row["value"]
        for row in values(client, target)
        if (row["name"], row["measure"]) == (topic, "messages_produced_per_second")
    ]
    assert len(rates) >= 2, "at every look but the first"
    assert max(rates) > 0
