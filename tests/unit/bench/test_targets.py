"""The brokers that are measured can be prepared where the project is installed."""

from __future__ import annotations

from bench.targets import Penstock


def test_the_installed_version_is_found() -> None:
    assert Penstock("penstock", "as shipped").prepare()
