"""The stories in ``scenarios/*.txt``, told line by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.scenarios import check_story, stories_beside, untold_rules
from tests.unit.groups.transcript import Transcript

from penstock.features.groups.states import TRANSITIONS, VERDICTS

STORIES = stories_beside(__file__)


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_scenario_goes_as_told(path: Path) -> None:
    check_story(path, Transcript)


@pytest.mark.parametrize("table", [VERDICTS, TRANSITIONS], ids=["verdicts", "transitions"])
def test_every_rule_has_a_story(table: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not untold_rules(table, STORIES, Transcript, monkeypatch)
