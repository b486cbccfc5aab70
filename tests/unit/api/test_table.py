"""The table of operations: every row is complete, and everything in it is served."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import msgspec
import msgspec.inspect
import pytest

from penstock.api.messages import Publish
from penstock.api.operation import Action, Admits, Keeper, Operation, Repeat, Request, Resource, sources_of
from penstock.api.table import OPERATIONS, RESOURCES
from penstock.operations.messages import message_of
from penstock.operations.serving import SERVED
from penstock.operations.table import server_of

EVERY = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
# What tells a load balancer that the process is there, before anybody could be asked who calls.
OPEN_TO_ALL = {"livez", "readyz"}
# What shows nothing of the cluster, and so needs no right beyond a name.
OPEN_TO_AUTHENTICATED = {"who_am_i", "next_times", "cancel_schedules"}


def named(kind: type[Request[object]], path: str) -> bool:
    """Whether a request has a field, or a field of a field."""
    at: object = kind
    for part in path.split("."):
        fields = {info.name: info for info in msgspec.structs.fields(at)}  # type: ignore[arg-type]
        if part not in fields:
            return False
        at = _member(fields[part].type)
    return True


def _member(kind: object) -> object:
    """What a field holds, also where it may be absent or is a list."""
    while get_args(kind) and not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        kind = next(each for each in get_args(kind) if each is not type(None))
    return kind


@EVERY
def test_a_row_says_what_it_needs_and_the_field_that_names_it_is_there(operation: Operation) -> None:
    assert bool(operation.needs) != (operation.name in OPEN_TO_ALL | OPEN_TO_AUTHENTICATED)
    assert (operation.admits is Admits.EVERYONE) == (operation.name in OPEN_TO_ALL)
    assert (operation.admits is Admits.AUTHENTICATED) == (operation.name in OPEN_TO_AUTHENTICATED)
    for needs in operation.needs:
        assert isinstance(needs.action, Action)
        assert isinstance(needs.resource, Resource)
        assert needs.name is None or named(operation.request, needs.name)


@EVERY
def test_a_row_says_what_it_does_and_whether_it_can_be_repeated(operation: Operation) -> None:
    assert operation.summary.endswith((".", "`[[partition, batch], ...]`."))
    assert all(route.summary for route in operation.routes)
    if any(route.method == "GET" for route in operation.routes):
        assert operation.repeat is Repeat.SAFE


@EVERY
def test_what_only_reads_needs_no_right_to_change(operation: Operation) -> None:
    if operation.repeat is Repeat.SAFE:
        assert {needs.action for needs in operation.needs} <= {Action.READ, Action.DESCRIBE}


@EVERY
def test_every_field_comes_from_somewhere_and_the_node_that_answers_can_be_found(operation: Operation) -> None:
    fields = {info.name for info in msgspec.structs.fields(operation.request)}
    for route in operation.routes:
        sources = sources_of(operation, route)
        taken = {*sources.path, *sources.query, *sources.headers, *sources.body}
        assert taken | route.omits == fields
        assert not sources.body or operation.body is None or set(sources.body) == {operation.body}
        if operation.where.keeper is not Keeper.ANYONE and operation.where.name is not None:
            assert operation.where.name in {*sources.path, *sources.headers}, "known before the body is read"
    assert operation.query <= fields
    assert set(operation.headers) <= fields


@EVERY
def test_a_request_survives_the_way_to_another_node(operation: Operation) -> None:
    """Requests can be handed from node to node: as JSON, or as MessagePack where the body is packed."""
    kind, codec = operation.request, msgspec.msgpack if operation.is_body_packed else msgspec.json
    request = msgspec.convert(_sample(msgspec.inspect.type_info(kind)), kind)
    text = codec.encode(request)
    assert codec.encode(codec.decode(text, type=kind)) == text


def _sample(info: msgspec.inspect.Type) -> object:
    """The least that a type takes, as JSON would have it."""
    match info:
        case msgspec.inspect.Metadata(type=inner):
            return _sample(inner)
        case msgspec.inspect.StructType(fields=fields):
            return {each.encode_name: _sample(each.type) for each in fields if each.required}
        case msgspec.inspect.ListType(item_type=item, min_length=least):
            return [_sample(item) for _ in range(least or 0)]
        case msgspec.inspect.LiteralType(values=values):
            return values[0]
        case msgspec.inspect.DictType():
            return {}
        case msgspec.inspect.DateTimeType():
            return "2026-01-01T00:00:00Z"
        case msgspec.inspect.IntType():
            return 1
        case msgspec.inspect.StrType():
            return "x"
    raise AssertionError(f"what is a sample of {info}?")


def test_a_message_survives_it_too() -> None:
    for text in (b'{"topic":"t","message":{"value":{"a":[1.50]}}}', b'{"topic":"t","message":{"value_base64":"eA=="}}'):
        request = msgspec.json.decode(text, type=Publish)
        again = msgspec.json.decode(msgspec.json.encode(request), type=Publish)
        assert message_of(again.message, 0) == message_of(request.message, 0)


@EVERY
def test_every_row_is_served(operation: Operation) -> None:
    assert callable(server_of(operation.request))


def test_nothing_is_served_that_is_not_declared_and_no_name_or_route_is_taken_twice() -> None:
    declared = {operation.request for operation in OPERATIONS}
    modules = {resource.__name__ for resource in RESOURCES}
    assert {kind for kind in SERVED if kind.__module__ in modules} == declared
    names = Counter(route.name for operation in OPERATIONS for route in operation.routes)
    routes = Counter((route.method, route.path) for operation in OPERATIONS for route in operation.routes)
    assert set(names.values()) == set(routes.values()) == {1}


def test_a_path_that_could_be_read_as_another_stands_behind_it() -> None:
    """Routes are tried in order: `/v1/schedules/next` before `/v1/schedules/{schedule}`."""
    paths = list(dict.fromkeys(route.path for operation in OPERATIONS for route in operation.routes))
    for at, path in enumerate(paths):
        for later in paths[at + 1 :]:
            assert not _covers(path, later), f"{path} hides {later}"


def _covers(path: str, other: str) -> bool:
    ours, theirs = path.split("/"), other.split("/")
    if len(ours) != len(theirs) or path == other:
        return False
    return all(mine == yours or mine.startswith("{") for mine, yours in zip(ours, theirs, strict=True))
