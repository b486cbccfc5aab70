"""What a handler is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from penstock.broker.coordination.coordinator import Coordinator
from penstock.broker.coordination.messages import Request
from penstock.kafka.exchange import Exchange
from penstock.kafka.protocol.schema import Message


class Question(NamedTuple):
    """Something to ask of a coordinator, and how its answer, or `Rejected`, becomes the response.

    A coroutine could ask as well; but it takes a task and a future, which is too much for what is asked ten thousand
    times a second.
    """

    coordinator: Coordinator[Any]
    name: str
    request: Request[Any]
    respond: Callable[[Any], Message]


class Handler(NamedTuple):
    """The request an API takes, and the function that answers it or says whom to ask."""

    request: type[Message]
    function: Callable[[Exchange, Any], Message | Question | Awaitable[Message]]
