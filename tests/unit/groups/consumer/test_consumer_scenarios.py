"""The stories in ``scenarios/*.txt``, told line by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.scenarios import check_story, stories_beside, untold_rules
from tests.unit.groups.consumer.transcript import ConsumerTranscript

from penstock.features.groups.consumer.reconciliation import STEPS, MemberState

STORIES = stories_beside(__file__)


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_scenario_goes_as_told(path: Path) -> None:
    check_story(path, ConsumerTranscript)


def test_every_rule_has_a_story(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not untold_rules(STEPS, STORIES, ConsumerTranscript, monkeypatch)
    assert set(STEPS) == set(MemberState)
