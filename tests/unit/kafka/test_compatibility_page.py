"""The page about compatibility says what the broker advertises and what topics take, no more and no less."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.consensus.topic_config import SETTINGS, check_setting
from penstock.doors.kafka.handlers import HANDLERS
from penstock.doors.kafka.protocol.apis import API_VERSIONS, APIS, FETCH, PRODUCE
from penstock.errors import InvalidConfig

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "compatibility.md").read_text()
LAST_KEY = 92  # of Apache Kafka 4.3
ADVERTISED = {PRODUCE.key, FETCH.key, API_VERSIONS.key, *HANDLERS}
OF_OUR_OWN = {name for name in SETTINGS if name.startswith("queue.")} | {"delay.headers.enable"}


def rows(title: str) -> list[list[str]]:
    section = PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return cells[2:]


def test_every_api_has_its_row_and_its_versions() -> None:
    found = {int(key): (name, versions, answer) for key, name, versions, answer, _ in rows("Kafka's APIs")}
    assert list(found) == list(range(LAST_KEY + 1))
    for key, (name, versions, answer) in found.items():
        if key in ADVERTISED:
            api = APIS[key]
            assert (name, versions) == (api.name, f"{api.first}–{api.last}")
            assert answer in ("yes", "partly")
        else:
            assert (versions, answer) == ("–", "no"), name


def test_what_is_partly_or_not_there_says_how() -> None:
    for *_, answer, how in [row[-2:] for row in rows("Kafka's APIs") + rows("Topic settings")]:
        assert answer == "yes" or how


def test_every_topic_setting_has_its_row_and_is_taken_as_it_says() -> None:
    found = {name.strip("`"): (answer, how) for name, answer, how in rows("Topic settings")}
    assert {name for name, (answer, _) in found.items() if answer != "no"} == set(SETTINGS) - OF_OUR_OWN
    for name, (_, how) in found.items():
        only = re.match(r"only `([^`]*)`", how)
        if only:
            check_setting(name, only[1])
            for other in ("true", "1000"):
                try:
                    check_setting(name, other)
                except InvalidConfig:
                    continue
                raise AssertionError(f"{name} takes {other}")
