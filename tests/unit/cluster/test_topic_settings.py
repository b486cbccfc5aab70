"""Settings of topics: queues have theirs beside all others, and the page about them is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.consensus.queue_config import QUEUE_SETTINGS, Order, Retention
from penstock.consensus.topic_config import SETTINGS, TopicSettings, check_setting, resolve
from penstock.errors import InvalidConfig

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "topics.md"


@pytest.mark.parametrize("name", list(SETTINGS))
def test_the_page_has_a_row_with_the_default(name: str) -> None:
    shown = f"`{SETTINGS[name].show(TopicSettings())}`"
    if name == "min.insync.replicas":
        shown = "more than half"
    assert f"| `{name}` | {shown} | {SETTINGS[name].doc} |" in PAGE.read_text()


def test_queue_settings_end_up_in_what_queues_go_by() -> None:
    queue = resolve(
        TopicSettings(),
        {
            "queue.order": "key",
            "queue.visibility.timeout.ms": "5000",
            "queue.tries": "0",
            "queue.retry.factor": "1.5",
            "queue.retention": "acked",
            "queue.dead.letter.topic": "graves",
            "queue.breaker.share": "0.5",
        },
    ).queue
    assert (queue.order, queue.visibility_timeout_ms, queue.tries) == (Order.KEY, 5000, 0)
    assert (queue.retry_factor, queue.retention, queue.breaker_share) == (1.5, Retention.ACKED, 0.5)
    assert queue.dead_letters_of("orders") == "graves"
    assert queue.retry_base_ms == 1000, "what is not said is the default"


def test_a_groups_own_values_go_over_the_topics() -> None:
    topic = resolve(TopicSettings(), {"queue.tries": "7", "queue.retry.base.ms": "10"}).queue
    own = topic.with_values({"tries": "2"})
    assert (own.tries, own.retry_base_ms) == (2, 10)


@pytest.mark.parametrize(
    ("configs", "tries", "retries"),
    [
        ({"queue.max.retries": "0"}, 1, "0"),
        ({"queue.max.retries": "4"}, 5, "4"),
        ({"queue.max.retries": "-1"}, 0, "-1"),
        ({"queue.tries": "1"}, 1, "0"),
        ({"queue.tries": "0"}, 0, "-1"),  # as topics have stored it since before there was another way to say it
    ],
)
def test_retries_are_counted_after_the_first_delivery(configs: dict[str, str], tries: int, retries: str) -> None:
    settings = resolve(TopicSettings(), configs)
    assert settings.queue.tries == tries
    assert SETTINGS["queue.max.retries"].show(settings) == retries


def test_a_groups_own_limit_goes_over_the_topics_in_either_words() -> None:
    topic = resolve(TopicSettings(), {"queue.tries": "7"}).queue
    assert topic.with_values({"max.retries": "0"}).tries == 1
    assert resolve(TopicSettings(), {"queue.max.retries": "0"}).queue.with_values({"tries": "0"}).tries == 0


@pytest.mark.parametrize("name", [f"queue.{setting.name}" for setting in QUEUE_SETTINGS])
def test_every_value_that_is_shown_can_be_set(name: str) -> None:
    shown = SETTINGS[name].show(TopicSettings())
    check_setting(name, shown)
    assert resolve(TopicSettings(), {name: shown}) == TopicSettings()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("queue.tries", "-1", "queue.tries: -1 is out of range"),
        ("queue.tries", "many", "not a whole number"),
        ("queue.max.retries", "-2", "queue.max.retries: -2 is out of range"),
        ("queue.order", "fifo", "none, key"),
        ("queue.retention", "", "log, acked"),
        ("queue.visibility.timeout.ms", "0", "out of range"),
        ("queue.visibility.timeout.ms", str(10**12), "out of range"),
        ("queue.retry.factor", "nan", "out of range"),
        ("queue.breaker.share", "1.5", "out of range"),
        ("queue.dead.letter.topic", "a b", "no name of a topic"),
        ("queue.trys", "1", "'queue.tries'"),
    ],
)
def test_bad_values_say_what_is_wrong(name: str, value: str, says: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check_setting(name, value)
    assert says in caught.value.message
