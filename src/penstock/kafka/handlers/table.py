"""What a handler is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from penstock.kafka.exchange import Exchange
from penstock.kafka.protocol.schema import Message


class Handler(NamedTuple):
    """The request an API takes, and the function that answers it."""

    request: type[Message]
    function: Callable[[Exchange, Any], Message | Awaitable[Message]]
