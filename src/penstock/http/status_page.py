"""The page at ``/``: a few static files of the package, and nothing from anywhere else."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from penstock.http.door import Door
from penstock.http.exchange import Call, HeaderList, Reply
from penstock.http.problems import NoSuchRoute

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


async def page(_door: Door, call: Call[None, None]) -> Reply:
    """The status page."""
    return _serve("index.html", call)


async def asset(_door: Door, call: Call[None, None]) -> Reply:
    """A file of the status page."""
    return _serve(call.path.rpartition("/")[2], call)


def _serve(name: str, call: Call[None, None]) -> Reply:
    if name not in _TYPES:
        raise NoSuchRoute(f"There is no file {name!r}.")
    body, tag = _load(name)
    headers = [*_POLICY, (b"etag", tag.encode())]
    if call.header(b"if-none-match") == tag:
        return Reply(304, b"", _TYPES[name], headers)
    return Reply(200, body, _TYPES[name], headers)


@cache
def _load(name: str) -> tuple[bytes, str]:
    body = files("penstock.http").joinpath("static", name).read_bytes()
    return body, f'"{hashlib.sha256(body).hexdigest()[:16]}"'
