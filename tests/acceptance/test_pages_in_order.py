"""A new user works through the documentation on one node: every page does what it says, after all before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.node import Node
from tests.support.tutorial import PageDiffers
from tests.support.walkthrough import ROOT, Walk, fences_of

DOCS = ROOT / "docs"
EXAMPLES = sorted((ROOT / "examples").glob("[!t]*.py"))  # all that need a node
SPARK_PAGES = (
    DOCS / "tutorial" / "log-queue-spark.md",
    DOCS / "how-to" / "spark.md",
    DOCS / "how-to" / "spark-sink.md",
    DOCS / "how-to" / "pipelines.md",
    DOCS / "how-to" / "ready-pipelines.md",
    DOCS / "how-to" / "archive-and-restore.md",
)
PAGES = (
    DOCS / "tutorial" / "work-queues.md",
    DOCS / "how-to" / "python-client.md",
    DOCS / "how-to" / "dead-letters.md",
    DOCS / "how-to" / "delays-and-schedules.md",
    DOCS / "how-to" / "priority-lanes.md",
    DOCS / "how-to" / "test-your-application.md",
    DOCS / "how-to" / "run-a-cluster.md",
    DOCS / "how-to" / "secure-a-cluster.md",
    DOCS / "how-to" / "kafka-clients-with-sasl.md",
    DOCS / "how-to" / "encrypt-connections.md",
    DOCS / "how-to" / "encrypt-data.md",
    DOCS / "how-to" / "quotas.md",
)
SPARK_SECTION = "## A pipeline in ten lines"


@contextmanager
def new_reader(directory: Path) -> Iterator[Walk]:
    """A reader who has just run `./dev run`."""
    node = Node(directory / "node")
    node.verb = "dev"
    with node:
        yield Walk(node, directory / "clone")
        assert node.is_running, node.log_tail()


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """The reader of this file: every test goes on where the one before it was."""
    with new_reader(tmp_path_factory.mktemp("reader")) as reader:
        yield reader


def section_of(line: int) -> str:
    """The heading of the README that a line is under."""
    lines = (ROOT / "README.md").read_text().splitlines()[:line]
    return next((each for each in reversed(lines) if each.startswith("## ")), "")


def test_every_page_that_says_what_to_do_is_followed() -> None:
    listed = {*PAGES, *SPARK_PAGES}
    assert {*(DOCS / "tutorial").glob("*.md"), *(DOCS / "how-to").glob("*.md")} == listed
    followed = sum(fence.runs for page in listed for fence in fences_of(page.read_text()))
    left_out = sum("elsewhere" in fence.options for page in listed for fence in fences_of(page.read_text()))
    assert followed > 70
    assert left_out * 4 < followed


@pytest.mark.slow
def test_the_readme(walk: Walk) -> None:
    readme = ROOT / "README.md"
    walk.follow(readme, fences=[f for f in fences_of(readme.read_text()) if section_of(f.line) != SPARK_SECTION])


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_after_the_tour(walk: Walk, example: Path) -> None:
    """As the README tells to run them, and once more by a reader who liked it."""
    line = f"python examples/{example.name}"
    walk.follow(example, fences=fences_of(f"```sh\n{line}\n{line}\n```\n"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page(walk: Walk, page: Path) -> None:
    walk.follow(page)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_pages_in_their_order_with_those_of_spark(tmp_path: Path) -> None:
    with new_reader(tmp_path) as reader:
        for page in (ROOT / "README.md", *PAGES, *SPARK_PAGES):
            reader.follow(page)


def test_a_page_that_is_wrong_is_found_out(walk: Walk) -> None:
    readme = ROOT / "README.md"
    with pytest.raises(PageDiffers, match="no-such-topic"):
        walk.follow(readme, fences=fences_of("```sh\npenstock consume no-such-topic\n```\n"))
    with pytest.raises(PageDiffers, match="shown"):
        walk.follow(readme, fences=fences_of("```sh\necho one\n```\n```text\ntwo\n```\n"))
    with pytest.raises(PageDiffers, match="shown"):
        walk.follow(readme, fences=fences_of("```sh ctrl-c\necho one\nsleep 600\n```\n```text\ntwo\n```\n"))
    with pytest.raises(PageDiffers, match="ZeroDivisionError"):
        walk.follow(readme, fences=fences_of("```python\n1 / 0\n```\n"))
