"""Fixtures for pytest, there wherever Penstock is installed. Nothing is imported or started before one is asked for.

- ``penstock``: a `LocalBroker` for one test, with nothing in it;
- ``penstock_url``: its URL, for `penstock.Client` and for REST;
- ``virtual_penstock``: a `VirtualBroker` for one test, with the seed that ``--penstock-seed`` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.local import LocalBroker
    from penstock.testing.virtual import VirtualBroker


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock")
    group.addoption("--penstock-seed", type=int, default=0, metavar="N", help="seed of the fixture virtual_penstock")


@pytest.fixture
def penstock() -> Iterator[LocalBroker]:
    """A real broker on free ports, for this test alone."""
    from penstock.testing import LocalBroker

    with LocalBroker() as broker:
        yield broker


@pytest.fixture
def penstock_url(penstock: LocalBroker) -> str:
    """Where the broker of this test is reached by HTTP."""
    return penstock.url


@pytest.fixture
def virtual_penstock(request: pytest.FixtureRequest) -> Iterator[VirtualBroker]:
    """A broker on virtual time, whose history follows from its seed."""
    from penstock.testing import VirtualBroker

    with VirtualBroker(seed=request.config.getoption("--penstock-seed")) as broker:
        yield broker
