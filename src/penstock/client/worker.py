"""Worker functions: a handler, the queue it works off, and how."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from penstock.client.crew import CrewConfig
from penstock.client.queue import DEFAULT_GROUP
from penstock.client.values import Duration, seconds_of
from penstock.errors import InvalidRequest
from penstock.model import check_topic_name

Function = TypeVar("Function", bound=Callable[..., Any])

_VISIBILITY_SECONDS_MIN: Final = 0.3


class Worker(Generic[Function]):
    """A function that handles the messages of a queue. Calling it calls the function, as tests like to do."""

    def __init__(self, function: Function, topic: str, group: str, config: CrewConfig, *, is_batch: bool) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.topic = topic
        self.group = group
        self.config = config
        self.is_batch = is_batch

    @property
    def name(self) -> str:
        name: str = getattr(self.function, "__name__", type(self.function).__name__)
        return name

    @property
    def is_async(self) -> bool:
        function: Any = self.function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def run(self, *urls: str) -> None:
        """Work until the process is told to stop (SIGTERM, Ctrl-C)."""
        from penstock.client.app import App

        App(*urls, workers=[self]).run()

    def __repr__(self) -> str:
        return f"<Worker {self.name} of {self.topic}, group {self.group}>"


def worker(
    topic: str,
    *,
    group: str = DEFAULT_GROUP,
    concurrency: int = 8,
    prefetch: int | None = None,
    batch: int | None = None,
    visibility_timeout: Duration = 30.0,
    stop_timeout: Duration = 30.0,
) -> Callable[[Function], Worker[Function]]:
    """Make a function a worker: ``@penstock.worker("orders", group="billing")``.

    The function is called with one message; with ``batch`` with a list of up to so many. It may be async, and then runs
    in the program's event loop, or not, and then runs in a thread. When it returns, whatever it returns, the messages
    are acked. If it raises, they are delivered again after the group's backoff, with the error as the reason; `Retry`
    says when, and `Reject` sends them to the dead letters.

    - ``concurrency``: how many calls may run at a time.
    - ``prefetch``: how many messages to have waiting beside those being handled; default: as many again.
    - ``visibility_timeout``: how soon a message is delivered to another worker if this process dies. While it lives,
      leases are renewed, however long the function takes.
    - ``stop_timeout``: how long to wait for functions under way when the worker is told to stop.
    """
    if concurrency < 1 or (prefetch is not None and prefetch < 0) or (batch is not None and batch < 1):
        raise InvalidRequest("concurrency and batch are 1 or more, prefetch is 0 or more.")
    visibility_timeout_s = seconds_of(visibility_timeout, "visibility_timeout")
    if visibility_timeout_s < _VISIBILITY_SECONDS_MIN:
        raise InvalidRequest(
            f"visibility_timeout is {_VISIBILITY_SECONDS_MIN:g} s or more, so that there is time to renew."
        )
    size = batch or 1
    config = CrewConfig(
        concurrency=concurrency,
        prefetch=concurrency * size if prefetch is None else prefetch,
        batch=size,
        visibility_timeout_s=visibility_timeout_s,
        stop_timeout_s=seconds_of(stop_timeout, "stop_timeout"),
    )
    check_topic_name(topic)

    def decorate(function: Function) -> Worker[Function]:
        return Worker(function, topic, group, config, is_batch=batch is not None)

    return decorate
