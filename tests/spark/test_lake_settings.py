"""Settings of topics as a lake keeps them and a restore gives them back, against a real broker and without a JVM."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.generated.sync import Client
from penstock.errors import InvalidPipeline
from penstock.pipelines.lake.settings import change_settings, kept_settings, settings_of
from penstock.pipelines.ready.restore import RestoreTarget, _Job
from penstock.testing.local import LocalBroker

NewTopic = Callable[..., str]


def job(broker: LocalBroker, told: list[str], *, keeps_timestamps: bool = True) -> Any:
    """A restore as far as it prepares topics."""
    made = object.__new__(_Job)
    made._servers, made._servers_list = broker.url, (broker.url,)
    made._keeps_timestamps = keeps_timestamps
    made._options = {"append": False}
    made._around = SimpleNamespace(tell=told.append)  # type: ignore[assignment]
    made._catalog = SimpleNamespace(files_of=lambda _: [])  # type: ignore[assignment]
    return made


def test_a_topic_comes_back_with_its_settings_and_large_messages(
    broker: LocalBroker, client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(3, max_message_bytes=3_000_000, retention_ms=3_600_000, queue_tries=7, cleanup_policy="compact")
    kept = kept_settings([broker.url], topic)
    assert kept == {
        "cleanup.policy": "compact",
        "max.message.bytes": "3000000",
        "queue.tries": "7",
        "retention.ms": "3600000",
    }
    told: list[str] = []
    target = job(broker, told)._prepared(
        RestoreTarget(topic=topic, name=f"{topic}-restored", partitions=3, settings=kept)
    )
    assert target.begins == {0: 0, 1: 0, 2: 0}
    assert told[0].endswith("set its retention.ms. It had retention.ms=3600000.")
    settings = settings_of([broker.url], target.name)
    assert (settings["retention.ms"], settings["cleanup.policy"], settings["queue.tries"]) == ("-1", "delete", "7")
    client.publish(target.name, b"x" * 2_000_000, partition=0)
    change_settings([broker.url], target.name, target.last)
    assert settings_of([broker.url], target.name)["cleanup.policy"] == "compact"


def test_a_topic_that_would_refuse_large_messages_is_refused(broker: LocalBroker, new_topic: NewTopic) -> None:
    topic = new_topic()
    target = RestoreTarget(topic="orders", name=topic, partitions=1, settings={"max.message.bytes": "3000000"})
    with pytest.raises(InvalidPipeline, match=r"Set its max\.message\.bytes to 3000000 first"):
        job(broker, [])._prepared(target)
