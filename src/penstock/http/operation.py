"""One operation of the door, described once: the router and the API's description are both made from it.

What an operation takes stands in its handler's signature, ``Call[Body, Query]``; it is read from there, so the
description cannot say anything else than the code does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args, get_type_hints

from penstock.http.door import Door
from penstock.http.exchange import JSON, Call
from penstock.http.homes import Home

Handler = Callable[[Door, Call[Any, Any]], Awaitable[object]]


@dataclass(frozen=True)
class Operation:
    """One method on one path. A handler answers with a value to be encoded, or with a whole `Reply`."""

    method: str
    path: str
    handler: Handler
    tag: str
    # The type of the answer, or None where it is not JSON of ours.
    answer: type | None = None
    status: int = 200
    media_type: str = JSON
    # Statuses beside the usual one that carry an answer of the same type.
    also: tuple[int, ...] = ()
    errors: tuple[int, ...] = ()
    # Request headers that it heeds, and what each is for.
    headers: tuple[tuple[str, str], ...] = ()
    # What the body is, where it is not JSON but bytes (``Call[bytearray, ...]``).
    body_media_type: str = JSON
    # A second form of the answer, for whoever asks for it with Accept.
    also_as: str | None = None
    # Whether no body at all stands for an empty object.
    is_body_optional: bool = False
    # Finds the node that has to answer, where not every node can.
    home: Home | None = None

    @property
    def name(self) -> str:
        return self.handler.__name__ if self.tag != "admin" else f"admin_{self.handler.__name__}"

    @cached_property
    def takes(self) -> tuple[type | None, type | None]:
        """The types of body and query, None for neither."""
        _, call, _ = get_type_hints(self.handler).values()
        body, query = (None if kind is type(None) else kind for kind in get_args(call))
        return body, query
