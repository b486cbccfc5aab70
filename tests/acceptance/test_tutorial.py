"""The tutorial does what it says: every door walks through the page, and what comes is what the page shows."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.tutorial import DOORS, PageDiffers, Reader, blocks_of, documents, is_shown

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "work-queues.md"
README = Path(__file__).parents[2] / "README.md"
README_AS_A_STEP = """
**Python**
```sh
{script}```
```text
{{"name":"parcels",…
{{"messages":[{{…"value":"to Rome"…}}]}}to Oslo
to Rome
{{"ready":0,"in_flight":1,"waiting":0,…
```
```python
{program}```
```sh eventually
penstock dlq list parcels
```
```json
{{"value": "to nowhere", "reason": "no such place", "tries": 1, "group": "couriers", …}}
```
"""
BLOCKS = list(blocks_of(PAGE.read_text()))


def test_every_step_is_told_for_every_door() -> None:
    doors: dict[str, set[str]] = defaultdict(set)
    for block in BLOCKS:
        doors[block.step].add(block.door)
    assert len(doors) == 11
    assert {step: told for step, told in doors.items() if told != set(DOORS)} == {}


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_a_door_does_what_the_page_shows(make_node: NodeMaker, tmp_path: Path, door: str) -> None:
    node = make_node().start()
    Reader(node, tmp_path).follow([block for block in BLOCKS if block.door == door])


@pytest.mark.slow
def test_the_queues_of_the_readme_work_as_pasted(make_node: NodeMaker, tmp_path: Path) -> None:
    node = make_node().start()
    (tour,) = re.findall(r"(\*\*Or as a work queue\.\*\*.*?)\nFunctions that work off", README.read_text(), re.DOTALL)
    script, program = re.findall(r"```\w+\n(.*?)```", tour, re.DOTALL)
    page = README_AS_A_STEP.format(script=script, program=program)
    Reader(node, tmp_path).follow(list(blocks_of(page)))


def test_a_page_that_shows_something_else_is_found_out(make_node: NodeMaker, tmp_path: Path) -> None:
    """Whoever compares has to be able to find a difference."""
    node = make_node().start()
    page = PAGE.read_text().replace('"published": 3', '"published": 4')
    blocks = [block for block in blocks_of(page) if block.door == "curl"]
    with pytest.raises(PageDiffers, match=r"2\. Publish, curl"):
        Reader(node, tmp_path).follow(blocks)


@pytest.mark.parametrize(
    ("shown", "came", "is_same"),
    [
        ('{"a": 1}', {"a": 1}, True),
        ('{"a": 1}', {"a": 1, "b": 2}, False),
        ('{"a": 1, …}', {"a": 1, "b": 2}, True),
        ('{"a": 1, …}', {"b": 2}, False),
        ("{…}", {"b": 2}, True),
        ("[1, …]", [1, 2], True),
        ("[1, …]", [2, 1], False),
        ("[1]", [1, 2], False),
        ("[]", [1], False),
        ('"a…z"', "abcz", True),
        ('"a…z"', "abc", False),
        ('"…"', 5, True),
        ("1", True, False),
        ('["KEY-A", "KEY-A"]', ["x", "x"], True),
        ('["KEY-A", "KEY-A"]', ["x", "y"], False),
    ],
)
def test_what_is_left_out_may_be_anything_and_nothing_else(shown: str, came: object, is_same: bool) -> None:
    (wanted,) = documents(shown)
    assert is_shown(wanted, came, {}) is is_same
