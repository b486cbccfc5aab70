"""The stories in ``scenarios/*.txt``, told line by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.scenarios import check_story, stories_beside
from tests.unit.joint.transcript import Transcript

STORIES = stories_beside(__file__)


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_scenario_goes_as_told(path: Path) -> None:
    check_story(path, Transcript)


def test_there_are_stories() -> None:
    assert len(STORIES) >= 5
