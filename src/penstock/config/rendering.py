"""Settings shown to people and machines, each with its origin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import yaml

from penstock.config.kinds import is_secret
from penstock.config.loading import DEFAULT_ORIGIN, Loaded
from penstock.config.settings import SETTINGS, Setting, value_at

_COMMENT_COLUMN: Final = 44


def as_yaml(loaded: Loaded, *, changed: bool = False) -> str:
    """A settings file with the same values; the origin of each stands behind it."""
    return "".join(f"{line}\n" for line in _yaml_lines(loaded, changed))


def _yaml_lines(loaded: Loaded, changed: bool) -> Iterator[str]:
    written: list[str] = []
    for setting in _shown(loaded, changed):
        *sections, name = setting.path.split(".")
        common = 0
        while common < min(len(sections), len(written)) and sections[common] == written[common]:
            common += 1
        for depth in range(common, len(sections)):
            yield f"{'  ' * depth}{sections[depth]}:"
        written = sections
        text = _scalar(setting.kind.show(value_at(loaded.settings, setting.path)))
        line = f"{'  ' * len(sections)}{name}: {text}"
        yield f"{line:<{_COMMENT_COLUMN - 1}} # {loaded.origins[setting.path]}"


def as_json(loaded: Loaded, *, changed: bool = False) -> str:
    """Values as the node has them, durations in milliseconds and sizes in bytes; origins beside them."""
    tree: dict[str, object] = {}
    shown = _shown(loaded, changed)
    for setting in shown:
        *sections, name = setting.path.split(".")
        at = tree
        for section in sections:
            inner = at.setdefault(section, {})
            assert isinstance(inner, dict)
            at = inner
        at[name] = _plain(setting, value_at(loaded.settings, setting.path))
    answer = {
        "file": None if loaded.file is None else str(loaded.file),
        "settings": tree,
        "origins": {setting.path: loaded.origins[setting.path] for setting in shown},
    }
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n"


def _plain(setting: Setting, value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    return setting.kind.show(value) if isinstance(value, tuple) or is_secret(setting.kind) else str(value)


def _shown(loaded: Loaded, changed: bool) -> list[Setting]:
    return [setting for setting in SETTINGS.values() if not changed or loaded.origins[setting.path] != DEFAULT_ORIGIN]


def _scalar(text: str) -> str:
    """Text as a YAML scalar. A '$' that would start a reference is written so that it does not."""
    escaped = text.replace("${", "$${")
    if text == "null":
        return "null"
    dumped: str = yaml.safe_dump(escaped, default_flow_style=True, width=1 << 20)
    plain = dumped.strip().removesuffix("...").strip()
    # Every value is read as text, so numbers and flags need no quotes to stay what they are.
    return escaped if plain == f"'{escaped}'" and escaped.replace(".", "").isalnum() else plain
