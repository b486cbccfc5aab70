"""The `.proto` files, made from the table, with numbers that never change.

`numbers.lock` keeps of each field its number, label and type, of each enum its values, of each method its messages.
What is new gets the next number. What contradicts the lock is refused (`BreakingChange`): a field that is gone and not
in ``reserved``, a type that a field does not fit into any more, a number that is taken.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Final

import msgspec

from penstock.grpc.legacy import NESTED
from penstock.grpc.shapes import Kind, Leaf, Rpc, default_type, leaves_of, service_name

PACKAGE: Final = "penstock.v1"
_WIDTH: Final = 120
_STATUS: Final = re.compile(r"\b20[0-9]\b|/v1/|/readyz")
_LARGE: Final = (1 << 31) - 1
_TIMES: Final = frozenset({"google.protobuf.Duration", "google.protobuf.Timestamp"})
_ENTRY: Final = re.compile(r"(?P<number>\d+) (?P<label>optional |repeated |)(?P<type>.+?)(?: in (?P<oneof>\w+))?")
# Beside the type that a new field of a kind would have, these hold the same.
_FITTING: Final = {
    Kind.INT: {"int32", "int64", *_TIMES},
    Kind.TEXT: {"string"},
    Kind.WORD: {"string", "bool"},
    Kind.POINT: {"int64"},
}
# Messages and enums that no operation names alone.
_HEADER: Final = {"name": "1 string", "value": "2 optional bytes"}
_COMMON: Final = "Messages, and what every service says about them."


class BreakingChange(Exception):
    """A definition that clients of an earlier one could not live with."""


class MessageLock(msgspec.Struct, kw_only=True, omit_defaults=True):
    file: str
    fields: dict[str, str]
    reserved: list[int] = []


class EnumLock(msgspec.Struct, kw_only=True, omit_defaults=True):
    file: str
    values: dict[str, int]


class Lock(msgspec.Struct, kw_only=True):
    """What definitions have promised so far."""

    messages: dict[str, MessageLock] = {}
    enums: dict[str, EnumLock] = {}
    methods: dict[str, str] = {}

    @classmethod
    def of(cls, text: str | bytes) -> Lock:
        return msgspec.json.decode(text, type=cls)

    def text(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1).decode() + "\n"


def definitions_of(rpcs: Sequence[Rpc], lock: Lock) -> dict[str, str]:
    """The text of each file by its name. The lock is extended by what is new."""
    return _Writer(rpcs, lock).files()


class _Writer:
    def __init__(self, rpcs: Sequence[Rpc], lock: Lock) -> None:
        self._rpcs = rpcs
        self._lock = lock
        self._comments: dict[str, str] = {}
        self._used: dict[str, set[str]] = {}
        self._described: set[tuple[str, type[msgspec.Struct]]] = set()

    def files(self) -> dict[str, str]:
        for rpc in self._rpcs:
            self._promise(rpc)
            self._message(rpc.request_message, rpc.request, rpc.service)
            if rpc.answer is None:
                self._locked(rpc.answer_message, rpc.service)
            else:
                self._message(rpc.answer_message, rpc.answer, _module(rpc.answer, rpc.service))
        self._check_nothing_is_gone()
        files = sorted({each.file for each in self._lock.messages.values()})
        return {f"{file}.proto": self._file(file) for file in files}

    # -- what is promised ---------------------------------------------------------------------------------------------

    def _promise(self, rpc: Rpc) -> None:
        asks = "stream " if rpc.has_many_requests else ""
        answers = "stream " if rpc.is_stream else ""
        promise = f"{asks}{rpc.request_message} -> {answers}{rpc.answer_message}"
        name = f"{service_name(rpc.service)}.{rpc.name}"
        promised = self._lock.methods.setdefault(name, promise)
        if promised != promise:
            raise BreakingChange(f"{name} was {promised}, and would be {promise}.")

    def _locked(self, name: str, file: str) -> MessageLock:
        self._used.setdefault(name, set())
        return self._lock.messages.setdefault(name, MessageLock(file=file, fields={}))

    def _message(self, name: str, struct: type[msgspec.Struct], file: str) -> None:
        if (name, struct) in self._described:
            return
        self._described.add((name, struct))
        self._comments.setdefault(name, _translated(_first_part(struct.__doc__), struct))
        self._locked(name, file)
        for leaf in leaves_of(struct):
            for place in leaf.places:
                self._field(name, place.path.split("."), leaf)

    def _field(self, message: str, path: list[str], leaf: Leaf) -> None:
        locked = self._lock.messages[message]
        name, *more = path
        self._used[message].add(name)
        if more:
            if name not in locked.fields:
                locked.fields[name] = f"{_next(locked)} {NESTED[name]}"
            inner = _parsed(locked.fields[name])["type"]
            self._locked(inner, locked.file)
            self._field(inner, more, leaf)
            return
        kind = default_type(leaf)
        if leaf.struct is not None:
            self._message(kind, leaf.struct, _module(leaf.struct, locked.file))
        if leaf.kind is Kind.HEADERS:
            self._locked("Header", "message").fields.update(_HEADER)
            self._used["Header"].update(_HEADER)
        if name in locked.fields:
            self._check(message, name, locked.fields[name], leaf)
        else:
            locked.fields[name] = f"{_next(locked)} {_label(leaf, kind)}{kind}"
        if leaf.kind is Kind.CHANGES:
            unset = f"unset_{name}"
            self._used[message].add(unset)
            locked.fields.setdefault(unset, f"{_next(locked)} repeated string")
        said = " ".join(part for part in (leaf.description, _bounds(leaf, locked.fields[name])) if part)
        self._comments.setdefault(f"{message}.{name}", said)

    def _check(self, message: str, name: str, entry: str, leaf: Leaf) -> None:
        told = _parsed(entry)
        kind, label = told["type"], told["label"]
        enum = self._lock.enums.get(kind)
        if enum is not None and leaf.kind in (Kind.WORD, Kind.TEXT, Kind.POINT):
            for word in leaf.words:
                _add_value(enum, f"{_prefix(kind)}_{word.upper()}")
        elif kind not in _FITTING.get(leaf.kind, set()) | {default_type(leaf)}:
            raise BreakingChange(f"{message}.{name} is {kind}, which {leaf.kind.name} does not fit into.")
        if (label == "repeated ") != (leaf.is_list or leaf.kind is Kind.HEADERS):
            raise BreakingChange(f"{message}.{name} is {label or 'one '}{kind}, and cannot become the other.")

    def _check_nothing_is_gone(self) -> None:
        methods = {f"{service_name(rpc.service)}.{rpc.name}" for rpc in self._rpcs}
        if set(self._lock.methods) > methods:
            gone = sorted(set(self._lock.methods) - methods)
            raise BreakingChange(f"The methods {gone} are gone; clients may call them.")
        for name, locked in self._lock.messages.items():
            lost = sorted(set(locked.fields) - self._used.get(name, set()))
            if lost:
                raise BreakingChange(f"{name} has lost {lost}: keep them, or put their numbers into reserved.")
            numbers = [int(_parsed(entry)["number"]) for entry in locked.fields.values()]
            if len(set(numbers)) < len(numbers) or set(numbers) & set(locked.reserved):
                raise BreakingChange(f"{name} uses a number twice, or one that is reserved.")

    # -- text ---------------------------------------------------------------------------------------------------------

    def _file(self, file: str) -> str:
        messages = {name: each for name, each in self._lock.messages.items() if each.file == file}
        enums = {name: each for name, each in self._lock.enums.items() if each.file == file}
        body: list[str] = []
        rpcs = [rpc for rpc in self._rpcs if rpc.service == file]
        if rpcs:
            body += ["", *_comment(f"{service_name(file)}. Any node takes any call."), *self._service(file, rpcs)]
        for name in enums:
            if "." not in name:
                body += ["", *self._enum(name)]
        for name in messages:
            if "." not in name:
                body += ["", *self._text(name)]
        imports = [f'import "{each}";' for each in self._imports(file, messages)]
        modules = [rpc.request.__module__ for rpc in rpcs if not rpc.is_stream]
        title = _first_part(import_module(modules[0]).__doc__) if modules else _COMMON
        head = [*_comment(title), "// Made from the table of operations by `./dev proto`; not to be edited."]
        head += ['syntax = "proto3";', "", f"package {PACKAGE};", *([""] if imports else []), *imports]
        return "\n".join((*head, *body)) + "\n"

    def _imports(self, file: str, messages: dict[str, MessageLock]) -> list[str]:
        found: set[str] = set()
        kinds = {_parsed(entry)["type"] for each in messages.values() for entry in each.fields.values()}
        for rpc in self._rpcs:
            if rpc.service == file:
                kinds |= {rpc.request_message, rpc.answer_message}
        for kind in kinds:
            if kind in _TIMES:
                found.add(f"google/protobuf/{kind.rpartition('.')[2].lower()}.proto")
            elif kind in self._lock.messages or kind in self._lock.enums:
                home = (self._lock.messages.get(kind) or self._lock.enums[kind]).file
                if home != file:
                    found.add(f"penstock/v1/{home}.proto")
        return sorted(found)

    def _service(self, file: str, rpcs: Iterable[Rpc]) -> list[str]:
        lines = [f"service {service_name(file)} {{"]
        for rpc in rpcs:
            asks, answers = self._lock.methods[f"{service_name(file)}.{rpc.name}"].split(" -> ")
            lines += _comment(_translated(rpc.summary, rpc.request), "  ")
            lines.append(f"  rpc {rpc.name}({asks}) returns ({answers});")
        return [*lines, "}"]

    def _enum(self, name: str, indent: str = "") -> list[str]:
        lines = [f"{indent}enum {name.rpartition('.')[2]} {{"]
        values = sorted(self._lock.enums[name].values.items(), key=lambda each: each[1])
        lines += [f"{indent}  {value} = {number};" for value, number in values]
        return [*lines, f"{indent}}}"]

    def _text(self, name: str, indent: str = "") -> list[str]:
        locked = self._lock.messages[name]
        lines = _comment(self._comments.get(name, ""), indent)
        head = f"{indent}message {name.rpartition('.')[2]} {{"
        inner: list[str] = []
        for each in self._lock.enums:
            if each.startswith(f"{name}."):
                inner += self._enum(each, f"{indent}  ")
        for each in self._lock.messages:
            if each.startswith(f"{name}."):
                inner += self._text(each, f"{indent}  ")
        if locked.reserved:
            inner.append(f"{indent}  reserved {', '.join(map(str, sorted(locked.reserved)))};")
        inner += self._fields(name, locked, indent)
        return [*lines, f"{head}}}"] if not inner else [*lines, head, *inner, f"{indent}}}"]

    def _fields(self, message: str, locked: MessageLock, indent: str) -> Iterator[str]:
        entries = {name: _parsed(entry) for name, entry in locked.fields.items()}
        opened: set[str] = set()
        for name, entry in sorted(entries.items(), key=lambda each: int(each[1]["number"])):
            oneof = entry["oneof"]
            if oneof is None:
                yield from self._line(message, name, entry, f"{indent}  ")
            elif oneof not in opened:
                opened.add(oneof)
                yield f"{indent}  oneof {oneof} {{"
                for other, each in entries.items():
                    if each["oneof"] == oneof:
                        yield from self._line(message, other, each, f"{indent}    ")
                yield f"{indent}  }}"

    def _line(self, message: str, name: str, entry: dict[str, Any], indent: str) -> Iterator[str]:
        yield from _comment(self._comments.get(f"{message}.{name}", ""), indent)
        kind = entry["type"].removeprefix(f"{message}.")
        yield f"{indent}{entry['label']}{kind} {name} = {entry['number']};"


def _parsed(entry: str) -> dict[str, Any]:
    found = _ENTRY.fullmatch(entry)
    if found is None:
        raise BreakingChange(f"The lock has {entry!r}, which is no field.")
    return found.groupdict()


def _next(locked: MessageLock) -> int:
    numbers = [int(_parsed(entry)["number"]) for entry in locked.fields.values()]
    return max((*numbers, *locked.reserved), default=0) + 1


def _label(leaf: Leaf, kind: str) -> str:
    if leaf.is_list or leaf.kind is Kind.HEADERS:
        return "repeated "
    if leaf.kind is Kind.STRUCT or kind in _TIMES or kind.startswith("map<"):
        return ""
    return "optional " if leaf.kind is Kind.PAYLOAD or leaf.is_nullable or not leaf.has_zero_default else ""


def _add_value(enum: EnumLock, name: str) -> None:
    if name not in enum.values:
        enum.values[name] = max(enum.values.values()) + 1


def _prefix(enum: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", enum.rpartition(".")[2]).upper()


def _module(struct: type[msgspec.Struct], otherwise: str) -> str:
    package, _, module = struct.__module__.rpartition(".")
    return module if package == "penstock.api" and module != "problems" else otherwise


def _first_part(doc: str | None) -> str:
    return " ".join((doc or "").split("\n\n")[0].split())


def _translated(text: str, struct: type[msgspec.Struct]) -> str:
    """What is said of a struct, with the names that protobuf has, and without what is said of HTTP's statuses."""
    names = {leaf.name: leaf.places[0].path for leaf in leaves_of(struct)}
    sentences = [each for each in re.split(r"(?<=[.]) ", text) if not _STATUS.search(each)]
    return re.sub(r"`(\w+)`", lambda found: f"`{names.get(found[1], found[1])}`", " ".join(sentences))


def _bounds(leaf: Leaf, entry: str) -> str:
    """The limits and the default of a number."""
    if leaf.kind is not Kind.INT or leaf.is_list:
        return ""
    unit = " ms" if leaf.name.endswith("_ms") else ""
    said: list[str] = []
    if leaf.low and leaf.high and leaf.high < _LARGE:
        said.append(f"{leaf.low} to {leaf.high}{unit}")
    elif leaf.high and leaf.high < _LARGE:
        said.append(f"up to {leaf.high}{unit}")
    if not leaf.is_required and leaf.default and isinstance(leaf.default, int):
        unset = "unset" if _parsed(entry)["label"] or unit else "0"
        said.append(f"{unset} is {leaf.default}{unit}")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _comment(text: str, indent: str = "") -> list[str]:
    if not text or text.startswith("Struct("):
        return []
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}// ", subsequent_indent=f"{indent}// ")
