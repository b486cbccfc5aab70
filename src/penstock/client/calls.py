"""Operations of `penstock.api` as HTTP requests, and nodes' answers as the types that the operations declare.

Everything comes from the operation's row: method, path, query, headers, body, and whether a repeated call does harm.
There is no IO here: the client's transport sends what `call_of` makes, and so does the command line, without asyncio.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from itertools import product
from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec

from penstock import errors
from penstock.api.limits import WaitMs
from penstock.api.operation import TABLE, Operation, Packed, Repeat, Request, Route, sources_of
from penstock.api.problems import Problem
from penstock.errors import InvalidRequest, PenstockError, QuotaExceeded, UnexpectedAnswer

A = TypeVar("A")
T = TypeVar("T")
Pieces = Sequence[bytes | bytearray | memoryview]
Body = bytes | bytearray | Pieces  # whole, or in pieces, so that large ones need not be copied

JSON: Final = b"application/json"
MSGPACK: Final = b"application/vnd.penstock+msgpack"
ERRORS_FROM: Final = 400  # statuses from here on are errors, unless the operation answers with them

_NAME_IN_PATH: Final = re.compile(r"{\w+}")
# MessagePack: the first byte of an array, of an array of two, of a 32-bit number, and of bytes.
_ARRAY, _PAIR, _UINT32, _BYTES = 0xDD, 0x92, 0xCE, 0xC6
_FIXINTS: Final = 128  # numbers below take one byte
_SINGLE: Final = Struct(">BIBBBI")
_ARRAY_HEAD: Final = Struct(">BI")
_PAIR_HEAD: Final = Struct(">BBIBI")
_KINDS: Final[dict[str, type[PenstockError]]] = {kind.code: kind for kind in errors.ALL}


class RestCall(NamedTuple):
    """An operation to be performed over HTTP."""

    method: str
    target: str  # path and query
    body: Body
    accept: bytes
    content_type: bytes | None
    headers: tuple[tuple[bytes, bytes], ...]
    answers: frozenset[int]  # statuses from 400 on that are answers
    wait_s: float  # how long the node is asked to wait
    can_repeat: bool  # without harm, if it is unknown whether the node has done it


def call_of(request: Request[Any], *, is_packed: bool = False) -> RestCall:
    """The HTTP request for an operation; ``is_packed`` asks for the answer in MessagePack."""
    *others, last = _bindings(type(request))
    for binding in others:
        if None not in [getattr(request, name) for name in binding.names]:
            return binding.call(request, is_packed=is_packed)
    return last.call(request, is_packed=is_packed)


def answer_of(request: Request[A | Packed], status: int, body: bytes | bytearray) -> A:
    """What a node's answer says, as the operation declares it."""
    found: A = _bindings(type(request))[0].answer(status, body)
    return found


class _Binding:
    """An operation at one of its routes."""

    def __init__(self, declared: Operation, route: Route) -> None:
        sources = sources_of(declared, route)
        self.names = route.names
        self._declared = declared
        self._method = route.method
        self._path = _NAME_IN_PATH.sub("{}", route.path)
        self._query = [(info.name, _default(info)) for info in sources.query.values()]
        self._headers = [(name, declared.headers[name].name.lower().encode()) for name in sources.headers]
        self._body = [(info.name, _default(info)) for info in sources.body.values()]
        self._has_body = bool(sources.body)
        self._wait = next(
            (each.name for each in msgspec.structs.fields(declared.request) if _says_how_long_to_wait(each)), None
        )
        self._is_packed = declared.answer is None and declared.has_packed
        self._answers = frozenset(status for status in declared.also if status >= ERRORS_FROM)
        self._content_type = None if route.method == "GET" else MSGPACK if declared.is_body_packed else JSON
        self._shown: Any = declared.answer
        if declared.shows is not None:
            (self._shown,) = (
                each.type for each in msgspec.structs.fields(declared.answer) if each.name == declared.shows
            )

    def call(self, request: Request[Any], *, is_packed: bool) -> RestCall:
        target = _target(self._path, *[getattr(request, name) for name in self.names])
        if self._query and (query := _given(request, self._query)):
            target += "?" + urlencode({name: _text(value) for name, value in query.items()})
        return RestCall(
            self._method,
            target,
            self._encoded(request) if self._has_body else b"",
            MSGPACK if is_packed or self._is_packed else JSON,
            self._content_type,
            tuple(
                [
                    (header, _text(value).encode())
                    for name, header in self._headers
                    if (value := getattr(request, name)) is not None
                ]
            ),
            self._answers,
            0.0 if self._wait is None else getattr(request, self._wait) / 1000,
            self._declared.repeat is not Repeat.AGAIN,
        )

    def _encoded(self, request: Request[Any]) -> Body:
        if self._declared.body is None:
            return msgspec.json.encode(_given(request, self._body))
        body = getattr(request, self._declared.body)
        return packed_batches(body) if self._declared.is_body_packed else msgspec.json.encode(body)

    def answer(self, status: int, body: bytes | bytearray) -> Any:
        if self._is_packed:
            return Packed((bytes(body),))
        if self._declared.answer is None:
            return None
        shown = decoded(body, self._shown)
        return shown if self._declared.shows is None else self._completed(shown, status)

    def _completed(self, shown: Any, status: int) -> Any:
        """The whole answer, of which REST's body is one field. The other fields are what the status says."""
        declared = self._declared
        others = [each.name for each in msgspec.structs.fields(declared.answer) if each.name != declared.shows]
        for values in product((True, False), repeat=len(others)):
            made = declared.answer(**dict(zip(others, values, strict=True)), **{str(declared.shows): shown})
            if status == next((other for other, applies in declared.also.items() if applies(made)), declared.status):
                return made
        raise UnexpectedAnswer(f"{declared.name} is not answered with status {status}.")


@lru_cache(None)
def _bindings(kind: type[Request[Any]]) -> tuple[_Binding, ...]:
    declared = TABLE[kind]
    return tuple(_Binding(declared, route) for route in declared.routes)


@lru_cache(1024)
def _target(path: str, *values: object) -> str:
    """A path with its parameters filled in, which may contain anything."""
    texts = [quote(str(value), safe="") for value in values]
    if not all(texts):
        raise InvalidRequest("A name must not be empty.")
    return path.format(*texts)


def _default(info: msgspec.structs.FieldInfo) -> object:
    if info.default is not msgspec.NODEFAULT:
        return info.default
    return info.default_factory() if info.default_factory is not msgspec.NODEFAULT else msgspec.NODEFAULT


def _given(request: Request[Any], fields: list[tuple[str, object]]) -> dict[str, Any]:
    """The fields that differ from their defaults. Others are not sent, so that older nodes need not know them."""
    return {name: value for name, default in fields if (value := getattr(request, name)) != default}


def _text(value: object) -> str:
    """A field as text in a query or a header."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _says_how_long_to_wait(info: msgspec.structs.FieldInfo) -> bool:
    return info.name == "wait_ms" or info.type == WaitMs


def packed_batches(batches: Sequence[tuple[int, bytes | bytearray | memoryview]]) -> Pieces:
    """MessagePack of ``[[partition, batch], ...]`` in pieces: the batches, which are large, are not copied.

    Of all the ways to write it, these two are those in which a node finds batches without copying them either.
    """
    if len(batches) == 1 and batches[0][0] < _FIXINTS:
        ((partition, batch),) = batches
        return _SINGLE.pack(_ARRAY, 1, _PAIR, partition, _BYTES, len(batch)), batch
    pieces: list[bytes | bytearray | memoryview] = [_ARRAY_HEAD.pack(_ARRAY, len(batches))]
    for partition, batch in batches:
        pieces += (_PAIR_HEAD.pack(_PAIR, _UINT32, partition, _BYTES, len(batch)), batch)
    return pieces


# -- answers -----------------------------------------------------------------------------------------------------------


# Decoders are cached: making one takes longer than using it.


@lru_cache(256)
def _json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@lru_cache(256)
def _pack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def decoded(body: bytes | bytearray, kind: type[T]) -> T:
    """An answer in JSON."""
    found: T = _answer(_json_decoder(cast("Any", kind)), body)
    return found


def unpacked(body: bytes | bytearray, kind: Any) -> Any:
    """An answer in MessagePack."""
    return _answer(_pack_decoder(kind), body)


def _answer(decoder: msgspec.json.Decoder[Any] | msgspec.msgpack.Decoder[Any], body: bytes | bytearray) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnexpectedAnswer(f"This is not the answer of a Penstock node: {error}") from None


def error_named(code: str, message: str, *, is_callers_fault: bool = False) -> PenstockError:
    """The error with that code; a code that this version does not know is kept."""
    kind = _KINDS.get(code)
    if kind is not None:
        return kind(message)
    error = InvalidRequest(message) if is_callers_fault else PenstockError(message)
    error.code = code  # type: ignore[misc]  # of this instance only: no class has it
    return error


def error_in(problem: Problem) -> PenstockError:
    """The error that a problem document tells of."""
    error = error_named(problem.code, problem.detail, is_callers_fault=problem.status < 500)
    error.retriable = problem.retriable  # type: ignore[misc]  # the node knows better than this version
    if isinstance(error, QuotaExceeded) and problem.retry_after_ms is not msgspec.UNSET:
        error.retry_after_ms = problem.retry_after_ms
    return error


def error_of(status: int, body: bytes | bytearray) -> PenstockError:
    """The error in an answer with a status of 400 or more."""
    try:
        return error_in(_json_decoder(Problem).decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return UnexpectedAnswer(f"The answer has status {status} and does not come from a Penstock node.")
