"""What a ready pipeline is: options with names, and something to do with them on Spark."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.errors import InvalidPipeline
from penstock.pipelines.definition import Definition, PipelineSource, Trigger
from penstock.pipelines.places import HOW_TO_REACH, local_path
from penstock.pipelines.text import Faults, FileValue, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

REQUIRED: Final = object()

_WORDS: Final = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a ready pipeline. ``kind`` is what its value is: str, int, float, bool or list (of texts)."""

    help: str
    kind: type = str
    default: Any = REQUIRED
    pattern: str | None = None  # that a text has to match as a whole
    choices: tuple[str, ...] = ()
    is_local: bool = False  # a directory that we write to ourselves: on this machine, or mounted on it


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a ready pipeline runs in. ``tell`` shows a line to the user."""

    spark: SparkSession
    definition: Definition
    checkpoint: str
    trigger: Trigger
    tell: Callable[[str], None]


class ReadyPipeline(ABC):
    """One of them. A batch job does its work in `start` and leaves no query running."""

    name: ClassVar[str]
    help: ClassVar[str]
    options: ClassVar[Mapping[str, Option]]

    @abstractmethod
    def start(self, options: Mapping[str, Any], context: RunContext) -> list[StreamingQuery]:
        """Begin, with options that were checked."""

    def sources(self, options: Mapping[str, Any], definition: Definition) -> list[PipelineSource]:  # noqa: ARG002
        """What it reads of topics, as far as that is known before it begins."""
        return []

    def check(self, definition: Definition) -> dict[str, Any]:
        """The options of a definition as values; `InvalidPipeline` names the line of whatever is wrong."""
        faults = Faults(definition.file)
        given: dict[str, FileValue] = definition.options
        for name, text in given.items():
            if name not in self.options:
                hint = did_you_mean(name, list(self.options))
                faults.add(text.named_at or text.place, f"{self.name} has no option {name!r}.{hint}")
        values = {}
        for name, option in self.options.items():
            if name in given:
                values[name] = _value(given[name], name, option, faults)
            elif option.default is REQUIRED:
                raise InvalidPipeline(f"{definition.file}: {self.name} needs `{name}` under `with`: {option.help}")
            else:
                values[name] = option.default
        faults.raise_any()
        return values


def _value(text: FileValue, name: str, option: Option, faults: Faults) -> Any:
    value = text.plain()
    if option.kind is list:
        value = value if isinstance(value, list) else [part.strip() for part in str(value).split(",")]
        return [str(each) for each in value]
    if option.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if option.kind is str and isinstance(value, (int, float)):
        value = str(value).lower() if isinstance(value, bool) else str(value)
    if not isinstance(value, option.kind) or (option.kind is int and isinstance(value, bool)):
        faults.add(text.place, f"{name} is {_WORDS[option.kind]}, not {text.kind}.")
    elif option.choices and value not in option.choices:
        faults.add(text.place, f"{name} is one of {', '.join(option.choices)}, not {value!r}.")
    elif option.is_local and local_path(str(value)) is None:
        faults.add(text.place, f"{name} cannot be at {value}: give a path or a file:/// URI. {HOW_TO_REACH}")
    elif option.pattern is not None and not re.fullmatch(option.pattern, str(value)):
        faults.add(text.place, f"{value!r} is not what {name} takes: {option.help}")
    return value
