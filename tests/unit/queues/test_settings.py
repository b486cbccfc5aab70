"""A group's own settings, pauses, what is given back, what is counted, and how dead letters are numbered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.queues.desk import Desk, spans

from penstock.consensus.queue_config import QUEUE_SETTINGS, Order, QueueSettings, Retention
from penstock.errors import InvalidConfig
from penstock.features.queues.core.deliveries import SEQUENCE_WRAP
from penstock.features.queues.core.intervals import Interval
from penstock.features.queues.core.messages import (
    AssignDeadLetterProducer,
    ConfigureQueue,
    ConfirmDeadLetters,
    ForgetQueue,
    PauseQueue,
    ReceiptOutcome,
    ReleaseDeliveries,
    SeekQueue,
    SkipGaps,
)
from penstock.features.queues.core.state import QueueTally
from penstock.machines.messages import ProducerIdentity

# -- settings ----------------------------------------------------------------------------------------------------------


def test_a_group_has_its_own_settings_over_the_topics() -> None:
    desk = Desk(tries=3, retry_base_ms=500)
    desk.ask(ConfigureQueue({"tries": "7", "order": "key"}))
    assert desk.queue.settings == replace(desk.settings, tries=7, order=Order.KEY)
    desk.queue.configure(replace(desk.settings, tries=1, retry_base_ms=9))
    assert (desk.queue.settings.tries, desk.queue.settings.retry_base_ms) == (7, 9)
    desk.fail_over()
    assert (desk.queue.settings.tries, desk.queue.settings.order) == (7, Order.KEY)
    desk.write([desk.queue.snapshot()])
    desk.log = desk.log[-1:]
    desk.fail_over()
    assert desk.queue.own_settings == {"order": "key", "tries": "7"}
    desk.ask(ConfigureQueue({}))
    assert desk.queue.settings == desk.settings


def test_settings_that_are_as_they_were_are_not_written_again() -> None:
    desk = Desk()
    desk.ask(ConfigureQueue({"tries": "7", "order": "key"}))
    before = len(desk.log)
    desk.ask(ConfigureQueue({"order": "key", "tries": "7"}))
    assert len(desk.log) == before


@pytest.mark.parametrize(
    "values",
    [
        {"trys": "3"},
        {"queue.tries": "3"},
        {"tries": "many"},
        {"tries": "-1"},
        {"max.retries": "-2"},
        {"max.retries": "1", "tries": "1"},  # two words for one limit
        {"order": "random"},
        {"retry.factor": "0.5"},
        {"retry.factor": "nan"},
        {"visibility.timeout.ms": "0"},
        {"visibility.timeout.ms": str(13 * 3_600_000)},
        {"breaker.share": "1.5"},
        {"in.flight.group.max": "0"},
        {"dead.letter.topic": "no spaces"},
        {"dead.letter.topic": "{what}"},
        {"retention": "acked"},  # of the topic, never of a group
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, str]) -> None:
    desk = Desk()
    before = len(desk.log)
    with pytest.raises(InvalidConfig):
        desk.ask(ConfigureQueue(values))
    assert len(desk.log) == before


def test_every_setting_reads_what_it_shows() -> None:
    settings = QueueSettings(order=Order.KEY, retention=Retention.ACKED, retry_factor=1.5, breaker_share=0.25)
    assert QueueSettings().with_values(settings.shown()) == settings
    assert len({setting.name for setting in QUEUE_SETTINGS}) == len(QUEUE_SETTINGS)
    assert settings.dead_letters_of("orders") == "orders.dlq"


def test_settings_of_another_version_do_not_stop_a_queue() -> None:
    desk = Desk()
    desk.ask(ConfigureQueue({"tries": "7"}))
    desk.queue._state.values = {"tries": "7", "from.the.future": "1"}
    desk.queue.configure(desk.settings)
    assert desk.queue.settings == desk.settings


# -- who is served -----------------------------------------------------------------------------------------------------


def test_nobody_in_particular_has_no_limit_of_its_own() -> None:
    desk = Desk(in_flight_consumer_max=3, in_flight_group_max=8)
    assert spans(desk.receive(5, consumer="")) == [(0, 4, 1)]
    assert spans(desk.receive(5, consumer="")) == [(5, 7, 1)]
    assert desk.receive(5, consumer="") == [], "the group's limit holds for everybody"


def test_a_pause_tells_why() -> None:
    desk = Desk()
    desk.ask(PauseQueue(True, "too many failures"))
    assert (desk.queue.stats(9).is_paused, desk.queue.stats(9).pause_reason) == (True, "too many failures")
    desk.ask(PauseQueue(True, "maintenance"))
    desk.fail_over()
    assert desk.queue.pause_reason == "maintenance"
    assert desk.receive() == []
    desk.ask(PauseQueue(False, "whatever"))
    assert (desk.queue.is_paused, desk.queue.pause_reason) == (False, "")


def test_what_is_released_was_not_delivered() -> None:
    desk = Desk(end=4, tries=1)
    (first,) = desk.receive(4)
    assert desk.fates(ReleaseDeliveries([first])) == [ReceiptOutcome.DONE]
    assert desk.ack(first) == [ReceiptOutcome.LEASE_OVER]
    (again,) = desk.receive(4)
    assert again.delivery_count == 1
    assert desk.ack(first) == [ReceiptOutcome.REDELIVERED]
    assert desk.queue.dead_letters() == []
    desk.nack(again)
    assert len(desk.queue.dead_letters()) == 1, "that was the only try"


def test_the_oldest_message_is_the_first_that_is_not_done() -> None:
    desk = Desk(end=5)
    (held,) = desk.receive(5)
    assert desk.queue.stats(5).oldest == 0
    desk.ack(held._replace(last=2))
    assert desk.queue.stats(5).oldest == 3
    desk.ack(held._replace(first=3))
    assert desk.queue.stats(5).oldest is None


def test_messages_are_counted_by_what_became_of_them() -> None:
    desk = Desk(end=100, tries=2)
    desk.ack(*desk.receive(10))
    failing = desk.receive(5)
    desk.nack(*failing, delay_ms=0)
    desk.ask(SkipGaps([Interval(90, 99)]))
    desk.receive(5)
    desk.wait(30_000)
    desk.reject(*desk.receive(3))
    desk.ask(ConfirmDeadLetters([letter.id for letter in desk.queue.dead_letters()]))
    tally = desk.queue.take_tally()
    assert tally == QueueTally(delivered=18, redelivered=5, acked=10, nacked=5, rejected=3, expired=5, buried=8)
    assert tally.failed == 13
    assert desk.queue.take_tally() == QueueTally()
    desk.receive(1)
    desk.fail_over()
    assert desk.queue.take_tally() == QueueTally(), "who leads anew counts anew"
    tally.add(QueueTally(acked=2, buried=1))
    assert (tally.acked, tally.buried, tally.delivered) == (12, 9, 18)


# -- dead letters ------------------------------------------------------------------------------------------------------


def letters(desk: Desk) -> list[tuple[int, int, int]]:
    return [(letter.first, letter.last, letter.sequence) for letter in desk.queue.dead_letters()]


def test_a_sequence_goes_on_whatever_was_written_or_lost() -> None:
    desk = Desk()
    desk.ask(AssignDeadLetterProducer(ProducerIdentity(40, 0)))
    desk.reject(*desk.receive(3))
    desk.reject(*desk.receive(2))
    assert letters(desk) == [(0, 2, 0), (3, 4, 3)]
    desk.ask(ConfirmDeadLetters([1]))
    desk.fail_over()
    assert desk.queue.producer == ProducerIdentity(40, 0)
    assert letters(desk) == [(3, 4, 3)]
    desk.ask(SeekQueue(10))
    desk.reject(*desk.receive(1))
    assert letters(desk) == [(10, 10, 5)], "the letter that was given up may have been written all the same"


def test_another_producer_numbers_what_waits_without_holes() -> None:
    desk = Desk()
    desk.reject(*desk.receive(6))
    desk.reject(*desk.receive(2))
    desk.ask(SkipGaps([Interval(2, 3)]))
    assert letters(desk) == [(0, 1, 0), (4, 5, 4), (6, 7, 6)]
    desk.ask(AssignDeadLetterProducer(ProducerIdentity(41, 0)))
    assert letters(desk) == [(0, 1, 0), (6, 7, 2), (4, 5, 4)]
    assert len({letter.id for letter in desk.queue.dead_letters()}) == 3
    desk.write([desk.queue.snapshot()])
    before, desk.log = desk.queue.dead_letters(), desk.log[-1:]
    desk.fail_over()
    assert desk.queue.dead_letters() == before, "they come in the same order from a snapshot"
    desk.reject(*desk.receive(1))
    assert letters(desk)[-1] == (8, 8, 6)


def test_sequences_wrap_as_producers_know_them() -> None:
    desk = Desk()
    desk.ask(AssignDeadLetterProducer(ProducerIdentity(40, 0)))
    desk.queue._state.buried = SEQUENCE_WRAP - 2
    desk.reject(*desk.receive(5))
    desk.ask(SkipGaps([Interval(0, 2)]))
    desk.reject(*desk.receive(1))
    assert letters(desk) == [(3, 4, 1), (5, 5, 3)]


def test_many_that_die_together_are_several_letters() -> None:
    desk = Desk(end=2_000, in_flight_consumer_max=2_000)
    desk.reject(*desk.receive(1_200))
    assert letters(desk) == [(0, 499, 0), (500, 999, 500), (1_000, 1_199, 1_000)]


def test_a_group_that_is_forgotten_leaves_nothing() -> None:
    desk = Desk()
    desk.ask(AssignDeadLetterProducer(ProducerIdentity(40, 0)))
    desk.ask(ConfigureQueue({"tries": "7"}))
    desk.ask(PauseQueue(True, "why"))
    desk.ask(ForgetQueue())
    assert desk.queue.is_forgettable
    assert desk.queue.producer is None
    assert (desk.queue.settings, desk.queue.pause_reason) == (desk.settings, "")
