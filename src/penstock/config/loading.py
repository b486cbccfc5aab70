"""Where values come from, and how they are merged into settings: a later source wins.

Each source turns into `FoundSettings`: text by dotted path, every text with its origin. A source checks shape and names
only; whether a text is a good value is for its kind to say. Problems are collected, not raised, so that a file with
three mistakes gets three messages.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from penstock.config.kinds import located
from penstock.config.settings import SETTINGS, Settings, build, contradictions
from penstock.errors import StartupError

PREFIX: Final = "PENSTOCK_"
_OF_KUBERNETES: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$")
_NOT_SETTINGS: Final = {
    "PENSTOCK_CONFIG",
    "PENSTOCK_URL",
    "PENSTOCK_CA",
    "PENSTOCK_CERTIFICATE",
    "PENSTOCK_KEY",
    "PENSTOCK_TOKEN",
    "PENSTOCK_TOKEN_FILE",
    "PENSTOCK_USER",
    "PENSTOCK_PASSWORD_FILE",
    "PENSTOCK_PROFILE",
}
_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}|\$\{")


@dataclass(frozen=True, slots=True)
class SettingText:
    """A value as it was written, and where."""

    text: str
    origin: str


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """Something wrong with one value or name."""

    origin: str
    path: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.origin, self.path, self.reason) if part)


@dataclass(slots=True)
class FoundSettings:
    """What a source says."""

    texts: dict[str, SettingText] = field(default_factory=dict)
    problems: list[SettingProblem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def from_file(path: Path, environ: Mapping[str, str]) -> FoundSettings:
    """The settings of a YAML file, with ``${NAME:default}`` replaced."""
    found = FoundSettings()
    try:
        root = yaml.compose(path.read_text("utf-8"), Loader=_Loader)
    except OSError as error:
        found.problems.append(SettingProblem(str(path), "", f"cannot be read: {error.strerror}"))
    except UnicodeDecodeError:
        found.problems.append(SettingProblem(str(path), "", "is not UTF-8 text"))
    except yaml.YAMLError as error:
        found.problems.append(_syntax_problem(path, error))
    else:
        if root is not None and not _is_null(root):
            _FileWalk(path, environ, found).section(root, "")
    return found


def from_environment(environ: Mapping[str, str]) -> FoundSettings:
    """The settings in ``PENSTOCK_SECTION__KEY`` variables.

    One that is none of them is a problem; without a double underscore it gets a warning, unless it is one that
    Kubernetes makes for every service of our name, such as ``PENSTOCK_PORT``.
    """
    found = FoundSettings()
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in _NOT_SETTINGS:
            continue
        path = name.removeprefix(PREFIX).lower().replace("__", ".")
        if "." not in path:
            if not _OF_KUBERNETES.search(name):
                found.warnings.append(f"{name} is not a setting and has no effect; {_meant_by(path)}")
        elif path in SETTINGS:
            found.texts[path] = SettingText(environ[name], name)
        else:
            near = difflib.get_close_matches(path, SETTINGS, n=1)
            hint = f"did you mean {SETTINGS[near[0]].variable}?" if near else "see `penstock config show` for all"
            found.problems.append(SettingProblem(name, "", f"there is no such setting; {hint}"))
    return found


def _meant_by(path: str) -> str:
    """The variable that may be meant by a name without its section, or with one underscore."""
    meant = next((setting for setting in SETTINGS.values() if setting.path.endswith(f".{path}")), None)
    if meant is None:
        flat = {known.replace(".", "_"): setting for known, setting in SETTINGS.items()}
        keys = {known.rpartition(".")[2]: setting for known, setting in SETTINGS.items()}
        near = difflib.get_close_matches(path, [*flat, *keys], n=1)
        meant = (flat | keys)[near[0]] if near else None
    return "see `penstock config show` for all" if meant is None else f"did you mean {meant.variable}?"


def from_overrides(overrides: Mapping[str, SettingText]) -> FoundSettings:
    """Settings given by path, as flags do."""
    found = FoundSettings()
    for path, text in overrides.items():
        if path in SETTINGS:
            found.texts[path] = text
        else:
            found.problems.append(SettingProblem(text.origin, path, f"there is no such setting; {suggest(path)}"))
    return found


def suggest(path: str) -> str:
    """The setting that may be meant by a path that does not exist."""
    section, _, key = path.rpartition(".")
    siblings = _keys_of(section)
    near = difflib.get_close_matches(key, siblings, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    elsewhere = [known for known in SETTINGS if known.rpartition(".")[2] == key]
    if not siblings:
        elsewhere += difflib.get_close_matches(path, SETTINGS, n=1)
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    return f"known here are {', '.join(siblings)}" if siblings else "see `penstock config show` for all"


def _keys_of(section: str) -> list[str]:
    prefix = f"{section}." if section else ""
    return list(dict.fromkeys(path[len(prefix) :].partition(".")[0] for path in SETTINGS if path.startswith(prefix)))


class _Loader(yaml.SafeLoader):
    """Nodes only: values are made from their text by the setting's kind."""


class _FileWalk:
    """One pass over the nodes of a file."""

    def __init__(self, path: Path, environ: Mapping[str, str], found: FoundSettings) -> None:
        self._path = path
        self._environ = environ
        self._found = found

    def section(self, node: yaml.Node, path: str) -> None:
        if not isinstance(node, yaml.MappingNode):
            what = f"is a section and takes {', '.join(_keys_of(path))}" if path else "must be a mapping of sections"
            self._problem(node, path, what)
            return
        seen: set[str] = set()
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            inner = f"{path}.{name}" if path else name
            if name in seen:
                self._problem(key, inner, "is there twice")
            seen.add(name)
            self._entry(key, value, inner)

    def _entry(self, key: yaml.Node, value: yaml.Node, path: str) -> None:
        if path in SETTINGS:
            self._leaf(value, path)
        elif not _keys_of(path):
            self._problem(key, path, f"there is no such setting; {suggest(path)}")
        elif not _is_null(value):  # a section with every line commented out is empty, not wrong
            self.section(value, path)

    def _leaf(self, node: yaml.Node, path: str) -> None:
        if not isinstance(node, yaml.ScalarNode):
            self._problem(node, path, f"takes one value; give {SETTINGS[path].kind.allowed}")
            return
        try:
            text = "".join(self._expand(node.value))
        except ValueError as error:
            self._problem(node, path, str(error))
        else:
            where = located(SETTINGS[path].kind, text, self._path.parent)
            self._found.texts[path] = SettingText(where, self._origin(node))

    def _expand(self, text: str) -> Iterator[str]:
        end = 0
        for match in _REFERENCE.finditer(text):
            yield text[end : match.start()]
            end = match.end()
            if match[0] == "$${":
                yield "${"
            elif match[0] == "${":
                raise ValueError(f"{text!r} has a reference that is not ${{NAME}} or ${{NAME:default}}")
            else:
                yield self._lookup(match[1], match[2])
        yield text[end:]

    def _lookup(self, name: str, default: str | None) -> str:
        value = self._environ.get(name) or default
        if value is None:
            raise ValueError(f"the environment has no {name}; set it, or give a default: ${{{name}:default}}")
        return value

    def _origin(self, node: yaml.Node) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"

    def _problem(self, node: yaml.Node, path: str, reason: str) -> None:
        self._found.problems.append(SettingProblem(self._origin(node), path, reason))


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _syntax_problem(path: Path, error: yaml.YAMLError) -> SettingProblem:
    mark = getattr(error, "problem_mark", None)
    origin = str(path) if mark is None else f"{path}:{mark.line + 1}"
    return SettingProblem(origin, "", f"is not valid YAML: {getattr(error, 'problem', None) or error}")


DEFAULT_FILE: Final = Path("penstock.yaml")
DEFAULT_ORIGIN: Final = "default"


class SettingsError(StartupError):
    """Some settings are wrong."""

    code = "invalid_settings"

    def __init__(self, problems: list[SettingProblem]) -> None:
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
    overrides: Mapping[str, SettingText] | None = None,
    fallbacks: Mapping[str, SettingText] | None = None,
) -> Loaded:
    """Merge defaults < ``fallbacks`` < file < environment < ``overrides``, or tell everything that is wrong.

    Without ``file`` it is the one ``PENSTOCK_CONFIG`` names, or ``penstock.yaml`` here if there is one.
    """
    file = file or _file_of(environ)
    sources = [
        from_overrides(fallbacks or {}),
        from_file(file, environ) if file else FoundSettings(),
        from_environment(environ),
        from_overrides(overrides or {}),
    ]
    problems = [problem for source in sources for problem in source.problems]
    texts: dict[str, SettingText] = {}
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
    problems += [SettingProblem(_named(origins[path]), path, reason) for path, reason in contradictions(settings)]
    if problems:
        raise SettingsError(problems)
    warnings = tuple(warning for source in sources for warning in source.warnings)
    return Loaded(settings, origins, file, warnings)


def _file_of(environ: Mapping[str, str]) -> Path | None:
    named = environ.get("PENSTOCK_CONFIG")
    if named:
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def _bad_value(path: str, written: SettingText, error: ValueError) -> SettingProblem:
    return SettingProblem(written.origin, path, f"{written.text!r} {error}; give {SETTINGS[path].kind.allowed}")


def _named(origin: str) -> str:
    return "" if origin == DEFAULT_ORIGIN else origin
