"""A YAML file whose values know where they stand, so that an error can name the line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

import yaml

from penstock.errors import InvalidPipeline


class FilePlace(NamedTuple):
    """A line and a column of a file, from 1."""

    line: int
    column: int


class FileProblem(NamedTuple):
    """Something wrong with a file, and where."""

    place: FilePlace
    message: str

    def told_of(self, name: str) -> str:
        return f"{name}:{self.place.line}:{self.place.column}: {self.message}"


@dataclass(frozen=True, slots=True)
class FileValue:
    """One value of a document: a plain one, a list or a mapping of further ones."""

    value: Any  # str, int, float, bool, None, list[Text] or dict[str, Text]
    place: FilePlace
    named_at: FilePlace | None = None  # where its name stands, in a mapping

    @classmethod
    def of(cls, value: Any, place: FilePlace) -> FileValue:
        """A plain value, all of it at one place."""
        match value:
            case dict():
                return cls({str(key): cls.of(each, place) for key, each in value.items()}, place)
            case list() | tuple():
                return cls([cls.of(each, place) for each in value], place)
            case _:
                return cls(value, place)

    @property
    def kind(self) -> str:
        """What it is, in words for people."""
        match self.value:
            case dict():
                return "a mapping"
            case list():
                return "a list"
            case None:
                return "nothing"
            case bool():
                return "true or false"
            case str():
                return "a text"
            case _:
                return "a number"

    def plain(self) -> Any:
        """The value without places."""
        match self.value:
            case dict():
                return {key: each.plain() for key, each in self.value.items()}
            case list():
                return [each.plain() for each in self.value]
            case _:
                return self.value


class Faults:
    """Problems of one file, collected, so that its author learns of all of them at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._problems: list[FileProblem] = []

    def __iter__(self) -> Iterator[FileProblem]:
        return iter(sorted(self._problems))

    def add(self, place: FilePlace, message: str) -> None:
        self._problems.append(FileProblem(place, message))

    def raise_any(self) -> None:
        if self._problems:
            raise InvalidPipeline("\n".join(problem.told_of(self.name) for problem in self))


def did_you_mean(word: str, known: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    """A hint at the nearest known word, to be appended to a message; or what there is."""
    names = list(known)
    near = get_close_matches(word, names, 1)
    return f" Did you mean {near[0]!r}?" if near else f" There is: {', '.join(names)}." if names else ""


def read_text(content: str, name: str) -> FileValue:
    """The document in a file; ``name`` is what errors call it."""
    try:
        node = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = FilePlace(mark.line + 1, mark.column + 1) if mark else FilePlace(1, 1)
        raise InvalidPipeline(
            FileProblem(place, f"this is not YAML: {error.problem or error.context}.").told_of(name)
        ) from None
    except yaml.YAMLError as error:
        raise InvalidPipeline(FileProblem(FilePlace(1, 1), f"this is not YAML: {error}.").told_of(name)) from None
    if node is None:
        raise InvalidPipeline(
            FileProblem(
                FilePlace(1, 1), "the file is empty. `penstock pipeline init` writes one to begin with."
            ).told_of(name)
        )
    faults = Faults(name)
    document = _text_of(node, faults)
    faults.raise_any()
    return document


def _text_of(node: yaml.Node, faults: Faults) -> FileValue:
    place = FilePlace(node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.MappingNode):
        entries: dict[str, FileValue] = {}
        for key_node, value_node in node.value:
            at = FilePlace(key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                faults.add(at, "a name stands here, not a list or mapping.")
                continue
            if key_node.value in entries:
                faults.add(at, f"{key_node.value!r} is here for the second time.")
            entries[key_node.value] = replace(_text_of(value_node, faults), named_at=at)
        return FileValue(entries, place)
    if isinstance(node, yaml.SequenceNode):
        return FileValue([_text_of(each, faults) for each in node.value], place)
    return FileValue(_plain(node), place)


def _plain(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError):
        return str(node.value)
    finally:
        loader.dispose()
    # Dates and the like are texts here: Spark reads them itself.
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(node.value)
