"""How many connections the doors take, given how many files may be open."""

from __future__ import annotations

import resource

import pytest

from penstock.node.limits import http_connections, kafka_connections


@pytest.mark.parametrize(
    ("open_files", "configured", "expected"),
    [(1 << 20, 10_000, 10_000), (1_024, 10_000, 409), (1_024, 100, 100), (20, 10_000, 16), (20, 4, 4)],
)
def test_connections_take_no_more_than_their_share(
    monkeypatch: pytest.MonkeyPatch, open_files: int, configured: int, expected: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (open_files, open_files))
    assert kafka_connections(configured) == expected


def test_without_a_limit_it_is_what_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert kafka_connections(10_000) == http_connections(10_000) == 10_000
