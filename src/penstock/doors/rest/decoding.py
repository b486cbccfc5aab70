"""What clients send, checked as it comes in.

A body is held against its limit while it arrives, never after the fact. Whatever is wrong is raised as an error that
says where in the request the fault is, because "bad request" alone helps nobody.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.types import Receive, Scope

from penstock.doors.rest.connection import LARGE_BODY
from penstock.doors.rest.hosts import Hosts
from penstock.doors.rest.problems import BodyTooLarge, CrossOrigin, InvalidBody, InvalidParameter, MalformedBody
from penstock.errors import ClientGone

T = TypeVar("T")

_OWN_PAGE: Final = {b"same-origin", b"none"}
_QUERY_FIELDS_MAX: Final = 100


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes | bytearray:
    """The whole body, unless it is larger than ``limit`` bytes. One that takes too long ends with its connection."""
    large: bytearray | None = scope.pop(LARGE_BODY, None)
    parts = await _read_parts(scope, receive, limit)
    if large is not None:
        return large
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _read_parts(scope: Scope, receive: Receive, limit: int) -> list[bytes]:
    """What comes before the end of the body, which is nothing if the connection puts it where it belongs itself."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > limit:
            raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone("The client went away, or was cut off, in the middle of its request.")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return parts


def decode_body(decoder: msgspec.json.Decoder[T], data: bytes | bytearray) -> T:
    """The body as the decoder's type."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise InvalidBody(f"The body is not what this call takes: {sentence_of(error)}") from None
    except RecursionError:
        raise MalformedBody("The body is nested too deeply.") from None
    except UnicodeDecodeError as error:
        raise MalformedBody(f"The body is not valid UTF-8: {error.reason} at byte {error.start} of a string.") from None
    except msgspec.DecodeError as error:
        what = (
            "There is no body; send JSON." if not data.strip() else f"The body is not valid JSON: {sentence_of(error)}"
        )
        raise MalformedBody(what) from None


def decode_query(kind: type[T], scope: Scope) -> T:
    """The query string as ``kind``; unknown and repeated parameters are refused."""
    raw: bytes = scope["query_string"]
    fields: dict[str, Any] = {}
    if raw:
        try:
            pairs = parse_qsl(
                raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_QUERY_FIELDS_MAX
            )
        except ValueError as error:
            raise InvalidParameter(f"The query string cannot be read: {error}.") from None
        for name, value in pairs:
            if name in fields:
                raise InvalidParameter(f"Query parameter {name!r} is given more than once.")
            fields[name] = value
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidParameter(f"A query parameter is wrong: {sentence_of(error).replace('$.', '')}") from None


def refuse_foreign_page(scope: Scope, hosts: Hosts) -> None:
    """Keep pages of other sites from changing things through their visitors' browsers.

    Browsers name the page's origin whenever it is not ours; programs other than browsers have none.
    """
    headers: dict[bytes, bytes] = {
        name: value for name, value in scope["headers"] if name in {b"origin", b"sec-fetch-site"}
    }
    origin = headers.get(b"origin")
    if origin is None or headers.get(b"sec-fetch-site") in _OWN_PAGE:
        return
    site = urlsplit(origin.decode("latin-1")).netloc
    if site.encode("latin-1") not in hosts.named_by(scope):
        raise CrossOrigin(f"Pages of {origin.decode('latin-1')!r} must not call this node. Call it from a program.")


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {limit} bytes, which is what this call takes. Send less at once.")


def sentence_of(error: Exception) -> str:
    """msgspec's text, which names the place as a path from ``$``."""
    return f"{error}."
