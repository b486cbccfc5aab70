"""Which function serves which operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from penstock.api.operation import Request
from penstock.operations.caller import Caller
from penstock.operations.services import Services

A = TypeVar("A")
Serve = Callable[[Services, Any, Caller], Awaitable[Any]]

SERVED: Final[dict[type[Request[Any]], Serve]] = {}


def serves(
    request: type[Request[A]],
) -> Callable[[Callable[[Services, Any, Caller], Awaitable[A]]], Callable[[Services, Any, Caller], Awaitable[A]]]:
    """Note that a function serves an operation; there is one for each."""

    def note(
        function: Callable[[Services, Any, Caller], Awaitable[A]],
    ) -> Callable[[Services, Any, Caller], Awaitable[A]]:
        assert request not in SERVED, f"{request.__name__} is served already"
        SERVED[request] = function
        return function

    return note
