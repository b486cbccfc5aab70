"""Binds operations of `penstock.api` to HTTP: a request is decoded as declared, served, and its answer encoded.

Everything that does not depend on the call is looked up when a route is bound. What stands in a request's head (path,
query, headers) is decoded once for requests that differ in their bodies alone, which take the shortcut (`shortcut`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import msgspec.inspect
from msgspec.structs import FieldInfo, asdict
from starlette.types import Receive, Scope, Send

from penstock.access.principal import Principal
from penstock.api.operation import Admits, Operation, Packed, Route, Sources, sources_of
from penstock.doors.rest.binary import batches_in
from penstock.doors.rest.decoding import decode_body, decode_query, read_body, refuse_foreign_page, sentence_of
from penstock.doors.rest.door import Door
from penstock.doors.rest.exchange import (
    JSON,
    MSGPACK,
    HeaderList,
    Reply,
    header_of,
    no_content,
)
from penstock.doors.rest.login import DOOR, client_id_of, principal_of, request_id_of
from penstock.doors.rest.problems import InvalidParameter, UnsupportedMediaType, problem_reply
from penstock.doors.rest.shortcut import SERVES_AGAIN
from penstock.errors import NodeStarting, PenstockError
from penstock.operations.caller import Caller
from penstock.operations.guard import check_logged_in
from penstock.operations.serving import Serve

# Where a request's scope holds what was decoded of its head.
_HEAD: Final = "penstock.head"

_ANY_TEXT: Final = msgspec.inspect.StrType()

_encoder: Final = msgspec.json.Encoder()


class HttpCaller(Caller):
    """The client behind an HTTP request."""

    __slots__ = ("_door", "_receive", "_scope")

    def __init__(self, door: Door, scope: Scope, receive: Receive) -> None:
        self._door = door
        self._scope = scope
        self._receive = receive
        self.stopping = door.stopping

    @property
    def instance(self) -> str:
        path: str = self._scope["path"]
        return path

    @property
    def host(self) -> str:
        client = self._scope.get("client")
        return client[0] if client else ""

    @property
    def principal(self) -> Principal:
        return principal_of(self._scope)

    @property
    def door(self) -> str:
        return DOOR

    @property
    def client_id(self) -> str:
        return client_id_of(self._scope)

    @property
    def request_id(self) -> str:
        return request_id_of(self._scope)

    @property
    def wants_packed(self) -> bool:
        return MSGPACK in header_of(self._scope, b"accept")

    @property
    def trace(self) -> str:
        return header_of(self._scope, b"traceparent")

    @property
    def answer_bytes_max(self) -> int:
        return self._door.config.read_bytes_max

    @property
    def publish_timeout_ms(self) -> int:
        return self._door.config.publish_timeout_ms

    async def wait_gone(self) -> None:
        """Only for calls whose body is read, or that have none."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Head:
    """Decodes what stands before the body: path, query and headers."""

    def __init__(self, operation: Operation, route: Route, sources: Sources) -> None:
        self._texts = [name for name, info in sources.path.items() if not _is_checked(info.type)]
        self._checked = [(name, info.type) for name, info in sources.path.items() if _is_checked(info.type)]
        self._headers = [
            (name, operation.headers[name].name, operation.headers[name].name.lower().encode(), info.type)
            for name, info in sources.headers.items()
        ]
        self._misnamed = operation.misnamed or InvalidParameter
        self._query = struct_of(f"{route.name}_query", sources.query.values()) if sources.query else None

    def decode(self, scope: Scope) -> dict[str, Any]:
        """The fields of the request that its head has."""
        params = scope["path_params"]
        fields: dict[str, Any] = {name: params[name] for name in self._texts}
        for name, kind in self._checked:
            fields[name] = _convert(params[name], kind, f"{name} in the path", self._misnamed)
        if self._query is not None:
            fields.update(asdict(decode_query(self._query, scope)))
        for field, name, key, kind in self._headers:
            text = header_of(scope, key)
            if text:
                fields[field] = _convert(text, kind, f"Header {name}")
        return fields


def _is_checked(kind: Any) -> bool:
    """Whether a type takes less than any text; limits that are only stated are for a feature to check.

    One that takes nothing as well is not converted: a topic may be named ``null``.
    """
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    return isinstance(info, (msgspec.inspect.IntType, msgspec.inspect.StrType)) and info != _ANY_TEXT


def struct_of(name: str, fields: Iterable[FieldInfo]) -> type[msgspec.Struct]:
    """A type with some of the fields of a request."""
    listed: list[Any] = []
    for info in fields:
        if info.default is not msgspec.NODEFAULT:
            listed.append((info.name, info.type, info.default))
        elif info.default_factory is not msgspec.NODEFAULT:
            listed.append((info.name, info.type, msgspec.field(default_factory=info.default_factory)))
        else:
            listed.append((info.name, info.type))
    return msgspec.defstruct(name, listed, frozen=True, kw_only=True, forbid_unknown_fields=True)


def body_of(operation: Operation, route: Route, sources: Sources) -> Any:
    """The type of a request's body; None if it has none."""
    if not sources.body:
        return None
    if operation.body is not None:
        return sources.body[operation.body].type
    name = "".join(word.capitalize() for word in route.name.split("_"))
    made = struct_of(f"{name}Body", sources.body.values())
    made.__doc__ = route.summary
    return made


def _convert(text: str, kind: Any, what: str, refusal: type[PenstockError] = InvalidParameter) -> Any:
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise refusal(f"{what} is {text!r}, which is wrong: {sentence_of(error)}") from None


class Bound:
    """An operation at one of its routes, with everything looked up that a call of it needs."""

    __slots__ = (
        "_also",
        "_asks_who",
        "_body_bytes_max",
        "_decode",
        "_door",
        "_head",
        "_is_safe",
        "_request",
        "_serve",
        "_services",
        "_status",
        "name",
        "operation",
    )

    def __init__(self, door: Door, operation: Operation, route: Route, serve: Serve) -> None:
        sources = sources_of(operation, route)
        self._door = door
        self._services = door.services
        self._serve = serve
        self.operation = operation
        self.name = route.name
        self._request = operation.request
        self._head = Head(operation, route, sources)
        self._decode = _body_decoder(operation, route, sources)
        self._is_safe = route.method == "GET"
        self._asks_who = operation.admits is not Admits.EVERYONE
        self._also = tuple(operation.also.items())
        self._status = operation.status
        most = door.config.node.max_body_bytes
        self._body_bytes_max = most if operation.body_max is None else min(most, operation.body_max)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whatever happens."""
        try:
            answer = await self._run(scope, receive)
        except Exception as error:
            answer = problem_reply(error, scope["path"])
        self._door.requests[self.name, answer.status] += 1
        await answer.send(send)

    async def serve_again(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose head is that of one which `serve` found good, and whose body is there."""
        try:
            self._check_started()
            await self._door.login.renew(scope)
            answer = await self._handle(scope, receive, scope[_HEAD], body)
        except Exception as error:
            answer = problem_reply(error, scope["path"])
        self._door.requests[self.name, answer.status] += 1
        await answer.send(send)

    async def _run(self, scope: Scope, receive: Receive) -> Reply:
        door = self._door
        self._check_started()
        if self._asks_who and door.services.authorizer.is_on:
            # Before anything of a stranger's request is decoded or taken into memory.
            check_logged_in(door.services, HttpCaller(door, scope, receive), self.name)
        if not self._is_safe:
            refuse_foreign_page(scope, door.hosts)
        head = self._head.decode(scope)
        data: bytes | bytearray = b""
        if self._decode is not None:
            data = await read_body(scope, receive, self._body_bytes_max)
        if self.operation.is_body_packed and not header_of(scope, b"content-type").startswith(MSGPACK):
            raise UnsupportedMediaType(f"Batches come as {MSGPACK}; publish JSON at `batch`.")
        if not self._is_safe:
            scope[_HEAD] = head  # the head is good, and the next one may differ in its body alone
            scope[SERVES_AGAIN] = self.serve_again
        return await self._handle(scope, receive, head, data)

    async def _handle(self, scope: Scope, receive: Receive, head: dict[str, Any], data: bytes | bytearray) -> Reply:
        request = self._request(**head) if self._decode is None else self._request(**head, **self._decode(data))
        answer = await self._serve(self._services, request, HttpCaller(self._door, scope, receive))
        return self._reply(answer)

    def _reply(self, answer: Any) -> Reply:
        if type(answer) is Packed:
            first, *more = answer.pieces
            return Reply(200, first, MSGPACK, [], tuple(more))
        if answer is None:
            return no_content()
        status = self._status
        for other, applies in self._also:
            if applies(answer):
                status = other
        operation = self.operation
        shown = answer if operation.shows is None else getattr(answer, operation.shows)
        headers: HeaderList = []
        if operation.location is not None:
            headers = [(b"location", operation.location.format(answer=answer).encode())]
        return Reply(status, _encoder.encode(shown), JSON, headers)

    def _check_started(self) -> None:
        if not self.operation.is_early and not self._door.broker.is_started:
            raise NodeStarting("This node is starting and does not know its topics yet. Try again in a moment.")


def _body_decoder(
    operation: Operation, route: Route, sources: Sources
) -> Callable[[bytes | bytearray], dict[str, Any]] | None:
    """What makes fields of a body; None if there is no body."""
    kind = body_of(operation, route, sources)
    if kind is None:
        return None
    whole = operation.body
    if operation.is_body_packed:
        assert whole is not None, "a packed body is one field"
        return lambda data: {whole: batches_in(data if isinstance(data, bytearray) else bytearray(data))}
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
    without = b"{}" if operation.is_body_optional else b""
    if whole is not None:
        return lambda data: {whole: decode_body(decoder, data or without)}
    return lambda data: asdict(decode_body(decoder, data or without))
