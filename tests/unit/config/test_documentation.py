"""The reference pages say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.cli.exits import Exit
from penstock.config.settings import SETTINGS

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def test_the_page_of_settings_lists_every_setting_with_its_default() -> None:
    page = (REFERENCE / "configuration.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z_]+\.[a-z_.]+)` \| `([^`]*)` \|", page, re.MULTILINE))
    assert rows == {path: setting.kind.show(setting.default) for path, setting in SETTINGS.items()}


def test_the_page_of_commands_lists_every_exit_code() -> None:
    page = (REFERENCE / "cli.md").read_text()
    rows = re.findall(r"^\| (\d+) \|", page, re.MULTILINE)
    assert [int(row) for row in rows] == [int(code) for code in Exit]
