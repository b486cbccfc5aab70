"""The page at ``/``: a few static files of the package, and nothing from anywhere else."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from starlette.types import Scope

from penstock.doors.rest.door import Door
from penstock.doors.rest.exchange import HeaderList, Reply, header_of
from penstock.doors.rest.problems import NoSuchRoute

_TYPES: Final = {
    "index.html": "text/html; charset=utf-8",
    "status.css": "text/css; charset=utf-8",
    "status.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_POLICY: Final[HeaderList] = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


async def page(_door: Door, scope: Scope) -> Reply:
    """The status page."""
    return _serve("index.html", scope)


async def asset(_door: Door, scope: Scope) -> Reply:
    """A file of the status page."""
    return _serve(scope["path"].rpartition("/")[2], scope)


def _serve(name: str, scope: Scope) -> Reply:
    if name not in _TYPES:
        raise NoSuchRoute(f"There is no file {name!r}.")
    body, tag = _load(name)
    headers = [*_POLICY, (b"etag", tag.encode())]
    if header_of(scope, b"if-none-match") == tag:
        return Reply(304, b"", _TYPES[name], headers)
    return Reply(200, body, _TYPES[name], headers)


@cache
def _load(name: str) -> tuple[bytes, str]:
    body = files("penstock.doors.rest").joinpath("static", name).read_bytes()
    return body, f'"{hashlib.sha256(body).hexdigest()[:16]}"'
