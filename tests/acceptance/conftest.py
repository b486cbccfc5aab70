"""Nodes for the acceptance tests. A test that fails shows the end of its node's log."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.node import Node


class NodeMaker:
    """Makes nodes and remembers them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.made: list[Node] = []

    def __call__(self, **settings: Any) -> Node:
        self.made.append(Node(self._directory / f"node-{len(self.made)}", **settings))
        return self.made[-1]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            nodes = value.made if isinstance(value, NodeMaker) else [value] if isinstance(value, Node) else []
            report.sections += [(f"log of {name}", each.log_tail()) for each in nodes]
    return report


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A running node that the tests of one file share."""
    with Node(tmp_path_factory.mktemp("node")) as running:
        yield running
        assert running.is_running, f"the node died\n{running.log_tail()}"


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[NodeMaker]:
    """Nodes of a test's own, not started; whatever still runs at the end is killed."""
    maker = NodeMaker(tmp_path)
    yield maker
    for each in maker.made:
        if each.is_running:
            each.kill()


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"topic-{uuid4().hex[:12]}"
