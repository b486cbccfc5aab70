"""Worker functions before they run, and what a handler's end means."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from penstock.client.worker_pool import failure_of
from penstock.errors import InvalidRequest, InvalidTopicName


def test_a_worker_can_be_called_as_the_function_it_is() -> None:
    @penstock.worker("orders")
    def double(number: int) -> int:
        """Twice as much."""
        return number * 2

    assert double(4) == 8
    assert (double.name, double.topic, double.group, double.is_async) == ("double", "orders", "default", False)
    assert double.__doc__ == "Twice as much."


def test_async_functions_and_objects_are_known_as_such() -> None:
    @penstock.worker("orders")
    async def handle(message: Any) -> None: ...

    class Callable:
        async def __call__(self, message: Any) -> None: ...

    assert handle.is_async
    assert penstock.worker("orders")(Callable()).is_async


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"prefetch": -1}, {"batch": 0}, {"visibility_timeout": 0.01}, {"stop_timeout": -1}],
)
def test_options_that_make_no_sense_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        penstock.worker("orders", **options)


def test_a_topic_must_have_a_possible_name() -> None:
    with pytest.raises(InvalidTopicName):
        penstock.worker("no spaces")


def test_an_app_gathers_its_workers_and_needs_one() -> None:
    app = penstock.App("http://127.0.0.1:1")

    @app.worker("orders", concurrency=3)
    def handle(message: Any) -> None: ...

    assert app.workers == [handle]
    assert app.with_concurrency(7).workers[0].config.concurrency == 7
    assert handle.config.concurrency == 3
    with pytest.raises(InvalidRequest, match="no workers"):
        penstock.App().run()


def test_what_a_handler_raises_decides_what_becomes_of_its_messages() -> None:
    def told(error: BaseException) -> tuple[object, ...]:
        return tuple(failure_of((), error))[1:]

    assert told(ValueError("bad\nvery bad")) == ("nack", None, "ValueError: bad")
    assert told(KeyError()) == ("nack", None, "KeyError")
    assert told(penstock.Retry(2.5)) == ("nack", 2.5, "the handler asked for a retry")
    assert told(penstock.Retry(reason="busy")) == ("nack", None, "busy")
    assert told(penstock.Reject("no such customer")) == ("reject", None, "no such customer")
    assert told(asyncio.CancelledError())[0] == "release"
