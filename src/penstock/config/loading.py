"""Merging the sources into settings: a later source wins, and everything wrong is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.config.settings import SETTINGS, Settings, build, contradictions
from penstock.config.sources import Found, Problem, Text, from_environment, from_file, from_overrides
from penstock.errors import StartupError

DEFAULT_FILE: Final = Path("penstock.yaml")
DEFAULT_ORIGIN: Final = "default"


class SettingsError(StartupError):
    """Some settings are wrong."""

    code = "invalid_settings"

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and for each of them where its value comes from."""

    settings: Settings
    origins: Mapping[str, str]
    file: Path | None
    warnings: tuple[str, ...]


def load(
    environ: Mapping[str, str],
    *,
    file: Path | None = None,
    overrides: Mapping[str, Text] | None = None,
    fallbacks: Mapping[str, Text] | None = None,
) -> Loaded:
    """Merge defaults < ``fallbacks`` < file < environment < ``overrides``, or tell everything that is wrong.

    Without ``file`` it is the one ``PENSTOCK_CONFIG`` names, or ``penstock.yaml`` here if there is one.
    """
    file = file or _file_of(environ)
    sources = [
        from_overrides(fallbacks or {}),
        from_file(file, environ) if file else Found(),
        from_environment(environ),
        from_overrides(overrides or {}),
    ]
    problems = [problem for source in sources for problem in source.problems]
    texts: dict[str, Text] = {}
    for source in sources:
        texts |= source.texts
    values: dict[str, object] = {}
    for path, written in texts.items():
        try:
            values[path] = SETTINGS[path].kind.parse(written.text)
        except ValueError as error:
            problems.append(_bad_value(path, written, error))
    origins = {path: texts[path].origin if path in texts else DEFAULT_ORIGIN for path in SETTINGS}
    settings = build(values)
    problems += [Problem(_named(origins[path]), path, reason) for path, reason in contradictions(settings)]
    if problems:
        raise SettingsError(problems)
    warnings = tuple(warning for source in sources for warning in source.warnings)
    return Loaded(settings, origins, file, warnings)


def _file_of(environ: Mapping[str, str]) -> Path | None:
    named = environ.get("PENSTOCK_CONFIG")
    if named:
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def _bad_value(path: str, written: Text, error: ValueError) -> Problem:
    return Problem(written.origin, path, f"{written.text!r} {error}; give {SETTINGS[path].kind.allowed}")


def _named(origin: str) -> str:
    return "" if origin == DEFAULT_ORIGIN else origin
