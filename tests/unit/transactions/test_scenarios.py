"""The stories in ``scenarios/*.txt``, told line by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.scenarios import check_story, stories_beside, untold_rules
from tests.unit.transactions.transcript import Transcript

from penstock.features.transactions.states import VERDICTS

STORIES = stories_beside(__file__)


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_scenario_goes_as_told(path: Path) -> None:
    check_story(path, Transcript)


def test_every_rule_has_a_story(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not untold_rules(VERDICTS, STORIES, Transcript, monkeypatch)
