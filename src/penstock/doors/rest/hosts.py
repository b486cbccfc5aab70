"""Under which names this node may be called over HTTP.

A page of `evil.example` can have that name lead to this machine (DNS rebinding); its browser then takes the node for
the page's own site, and no check of origins helps. So a request that names a host must name one of ours. An address is
always taken: only a name can be made to lead elsewhere. What a proxy says of the name that its client used counts only
from proxies that the settings trust.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from starlette.types import Scope

from penstock.doors.rest.problems import HostNotAllowed

_ANY: Final = "*"
_LOOPBACK: Final = "localhost"
_FORWARDED_HOST: Final = b"x-forwarded-host"
_REMEMBERED_MAX: Final = 1_000
_SHOWN_MAX: Final = 100


class Hosts:
    """The names this node answers to. `*.example.com` stands for all names below that one, `*` for any."""

    def __init__(self, names: Iterable[str], proxies: Iterable[str] = ()) -> None:
        given = {_plain(name) for name in names} | {_LOOPBACK, _plain(socket.gethostname())}
        self._is_open = _ANY in given
        self._names = {name for name in given if not name.startswith("*")}
        self._suffixes = (f".{_LOOPBACK}", *(name[1:] for name in given if name.startswith("*.")))
        self._proxies: list[IPv4Network | IPv6Network] = [ip_network(proxy, strict=False) for proxy in proxies]
        self._good: set[bytes] = set()  # as they were sent

    def check(self, scope: Scope) -> None:
        """Raise `HostNotAllowed` where a request came under a name that is not ours."""
        for host in self.named_by(scope):
            if host not in self._good and not self._is_open:
                self._judge(host)

    def named_by(self, scope: Scope) -> list[bytes]:
        """The hosts that the client named: those its proxy tells of where that is trusted, else its own headers."""
        wanted = b"host"
        if self._proxies and self._is_proxy(scope) and any(name == _FORWARDED_HOST for name, _ in scope["headers"]):
            wanted = _FORWARDED_HOST
        return [value for name, value in scope["headers"] if name == wanted]

    def _is_proxy(self, scope: Scope) -> bool:
        client = scope.get("client")
        try:
            address = ip_address(client[0]) if client else None
        except ValueError:
            return False
        return address is not None and any(address in network for network in self._proxies)

    def _judge(self, host: bytes) -> None:
        name = _plain(_without_port(host.decode("latin-1")))
        if name not in self._names and not name.endswith(self._suffixes) and not _is_address(name):
            shown = host[:_SHOWN_MAX].decode("latin-1")
            raise HostNotAllowed(
                f"This node is not known as {shown!r}. If clients reach it under that name, add it to "
                "broker.http_allowed_hosts."
            )
        if len(self._good) < _REMEMBERED_MAX:
            self._good.add(host)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
