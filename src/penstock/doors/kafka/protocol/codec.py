"""Messages to bytes and back: the two functions that everything outside the hot path goes through.

The first use of a message at a version compiles its reader or writer; later ones run it. Each is generated as one
straight function, nested loops and all, because a call and a dispatch for each field is what makes generic codecs slow.
Neighbouring values of fixed width, and the length that follows them, are one ``unpack_from`` or ``pack``.

A reader trusts no byte: what it cannot read ends in ``ProtocolError``. No count makes it allocate: an array must fit,
at its elements' least size, in the bytes that are left. What cannot be written is a bug of ours, never the peer's, and
ends in ``AssertionError``.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from uuid import UUID

from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.schema import (
    ApiMessage,
    Array,
    Blob,
    Field,
    Fixed,
    Kind,
    Struct,
    Text,
    UuidBytes,
    fields_of,
)
from penstock.doors.kafka.protocol.wire import Buffer, read_varint, skip_tags, varint


class Source:
    """A function being written."""

    def __init__(self, name: str, parameters: str, title: str) -> None:
        self._lines = [f"def {name}({parameters}):"]
        self._depth = 1
        self._name = name
        self._title = title
        self._constants: dict[str, Any] = {}
        self._names = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, opening: str | None) -> Iterator[None]:
        """What is written inside is indented under the opening; without an opening it is not."""
        if opening is None:
            yield
            return
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, stem: str) -> str:
        """A variable that nothing else in this function uses."""
        self._names += 1
        return f"{stem}_{self._names}"

    def constant(self, stem: str, value: Any) -> str:
        name = self.name(stem)
        self._constants[name] = value
        return name

    def compile(self) -> Callable[..., Any]:
        names = dict(self._constants)
        code = compile("\n".join([*self._lines, "    pass"]), f"<{self._title}>", "exec")
        exec(code, names)  # noqa: S102  (the text is made of our own descriptions, never of what a peer sent)
        function: Callable[..., Any] = names[self._name]
        return function


def packer(codes: str) -> struct.Struct:
    return struct.Struct(">" + codes)


def compile_reader(
    cls: type[ApiMessage], version: int, *, flexible: bool
) -> Callable[[Buffer, int, int], tuple[Any, int]]:
    """The function from (buffer, position, most elements of arrays) to (message, position after it)."""
    return _Reader(cls, version, flexible=flexible).function()


class _Reader:
    def __init__(self, cls: type[ApiMessage], version: int, *, flexible: bool) -> None:
        self._cls = cls
        self._version = version
        self._flexible = flexible
        self._source = Source("read", "buffer, position, left", f"read {cls.__name__} v{version}")
        self._codes = ""
        self._targets: list[str] = []
        self._error = self._source.constant("ProtocolError", ProtocolError)
        self._uuid = self._source.constant("UUID", UUID)
        self._read_varint = self._source.constant("read_varint", read_varint)
        self._skip_tags = self._source.constant("skip_tags", skip_tags)
        self._unpack_any = self._source.constant("unpack_from", struct.unpack_from)

    def function(self) -> Callable[[Buffer, int, int], tuple[Any, int]]:
        self._source.line("size = len(buffer)")
        message = self._struct(self._cls)
        self._source.line(f"return {message}, position")
        return self._source.compile()

    # -- a run of fixed-width values --

    def _take(self, code: str, stem: str) -> str:
        """Add a value to the run, and return the variable that will hold it once the run is flushed."""
        target = self._source.name(stem)
        self._codes += code
        self._targets.append(target)
        return target

    def _flush(self) -> None:
        if not self._targets:
            return
        run = packer(self._codes)
        unpack = self._source.constant("unpack", run.unpack_from)
        self._source.line(f"{', '.join(self._targets)}, = {unpack}(buffer, position)")
        self._source.line(f"position += {run.size}")
        self._codes, self._targets = "", []

    # -- values --

    def _value(self, kind: Kind, path: str, *, nullable: bool) -> str:
        """Emit what reads one value, and return the expression that is it, valid once the run is flushed."""
        match kind:
            case Fixed(code=code):
                return self._take(code, "fixed")
            case UuidBytes():
                return f"{self._uuid}(bytes={self._take('16s', 'uuid')})"
            case Text():
                return self._sized("h", path, 'str(buffer[position:end], "utf-8")', nullable=nullable)
            case Blob():
                return self._sized("i", path, "bytes(buffer[position:end])", nullable=nullable)
            case Array(element=element):
                return self._array(element, path, nullable=nullable)
            case Struct(cls=cls):
                return self._optional_struct(cls) if nullable else self._struct(cls)

    def _length(self, code: str) -> str:
        """Emit what reads a length or a count into the variable returned; null is -1 in either encoding."""
        if not self._flexible:
            length = self._take(code, "length")
            self._flush()
            return length
        length = self._varint("length")
        self._source.line(f"{length} -= 1")
        return length

    def _varint(self, stem: str) -> str:
        value = self._take("B", stem)
        self._flush()
        with self._source.block(f"if {value} > 127:"):
            self._source.line(f"{value}, position = {self._read_varint}(buffer, position - 1)")
        return value

    def _refuse_unless(self, condition: str, why: str) -> None:
        with self._source.block(f"if not ({condition}):"):
            self._source.line(f"raise {self._error}({why!r})")

    def _sized(self, code: str, path: str, expression: str, *, nullable: bool) -> str:
        length = self._length(code)
        value = self._source.name("value")
        if nullable:
            self._source.line(f"{value} = None")
        with self._source.block(f"if {length} != -1:" if nullable else None):
            self._source.line(f"end = position + {length}")
            self._refuse_unless("position <= end <= size", f"{path}: the length is more than what is left.")
            self._source.line(f"{value} = {expression}")
            self._source.line("position = end")
        return value

    def _array(self, element: Kind, path: str, *, nullable: bool) -> str:
        count = self._length("i")
        value = self._source.name("value")
        if nullable:
            self._source.line(f"{value} = None")
        with self._source.block(f"if {count} != -1:" if nullable else None):
            least = self._least_size(element)
            self._refuse_unless(
                f"0 <= {count} * {least} <= size - position", f"{path}: the count is more than what is left."
            )
            self._source.line(f"left -= {count}")
            self._refuse_unless("left >= 0", f"{path}: the request names more than one may name.")
            if isinstance(element, Fixed):
                self._source.line(f'{value} = {self._unpack_any}(f">{{{count}}}{element.code}", buffer, position)')
                self._source.line(f"position += {count} * {element.width}")
            else:
                self._elements(element, path, count, value)
        return value

    def _elements(self, element: Kind, path: str, count: str, value: str) -> None:
        items = self._source.name("items")
        self._source.line(f"{items} = []")
        with self._source.block(f"for _ in range({count}):"):
            item = self._value(element, path, nullable=False)
            self._flush()
            self._source.line(f"{items}.append({item})")
        self._source.line(f"{value} = tuple({items})")

    # -- structs --

    def _struct(self, cls: type[object]) -> str:
        values: dict[str, str] = {}
        tagged: list[Field] = []
        for field in fields_of(cls):
            path = f"{cls.__name__}.{field.name}"
            assert field.has_default or field.is_in_all(self._cls.api.versions), (
                f"{path}: a version lacks it and has no default"
            )
            if not field.is_in(self._version):
                values[field.name] = self._source.constant("default", field.default)
            elif field.tag is not None:
                tagged.append(field)
            else:
                values[field.name] = self._value(field.kind, path, nullable=field.is_nullable_in(self._version))
        if self._flexible:
            values |= self._tag_buffer(cls, tagged)
        self._flush()
        return self._instance(cls, values)

    def _optional_struct(self, cls: type[object]) -> str:
        """Emit what reads a struct that a byte stands before: negative where there is none (KIP-893)."""
        marker = self._take("b", "marker")
        self._flush()
        value = self._source.name("value")
        self._source.line(f"{value} = None")
        with self._source.block(f"if {marker} >= 0:"):
            self._source.line(f"{value} = {self._struct(cls)}")
        return value

    def _instance(self, cls: type[object], values: dict[str, str]) -> str:
        """Emit what makes an instance."""
        item = self._source.name("item")
        arguments = ", ".join(f"{name}={value}" for name, value in values.items())
        self._source.line(f"{item} = {self._source.constant(cls.__name__, cls)}({arguments})")
        return item

    def _tag_buffer(self, cls: type[object], tagged: list[Field]) -> dict[str, str]:
        """Emit what reads the tagged fields, and return the variables that hold them."""
        count = self._take("B", "tags")
        self._flush()
        variables = [self._source.name("tagged") for _ in tagged]
        for field, variable in zip(tagged, variables, strict=True):
            self._source.line(f"{variable} = {self._source.constant('default', field.default)}")
        with self._source.block(f"if {count}:"):
            if tagged:
                self._tags(cls, tagged, variables)
            else:
                self._source.line(f"position = {self._skip_tags}(buffer, position - 1)")
        return {field.name: variable for field, variable in zip(tagged, variables, strict=True)}

    def _tags(self, cls: type[object], tagged: list[Field], variables: list[str]) -> None:
        count, tag, past = self._source.name("count"), self._source.name("tag"), self._source.name("past")
        self._source.line(f"{count}, position = {self._read_varint}(buffer, position - 1)")
        with self._source.block(f"for _ in range({count}):"):
            self._source.line(f"{tag}, position = {self._read_varint}(buffer, position)")
            self._source.line(f"{past}, position = {self._read_varint}(buffer, position)")
            self._source.line(f"{past} += position")
            self._refuse_unless(f"{past} <= size", f"{cls.__name__}: a tagged field is longer than what is left.")
            for field, variable in zip(tagged, variables, strict=True):
                path = f"{cls.__name__}.{field.name}"
                with self._source.block(f"if {tag} == {field.tag}:"):
                    value = self._value(field.kind, path, nullable=field.is_nullable_in(self._version))
                    self._flush()
                    self._source.line(f"{variable} = {value}")
                    self._refuse_unless(f"position == {past}", f"{path}: the tagged field is not of its stated size.")
            self._source.line(f"position = {past}")

    def _least_size(self, kind: Kind) -> int:
        """The fewest bytes that a value of this kind takes."""
        match kind:
            case Fixed(width=width):
                return width
            case UuidBytes():
                return 16
            case Text():
                return 1 if self._flexible else 2
            case Blob() | Array():
                return 1 if self._flexible else 4
            case Struct(cls=cls):
                present = [field for field in fields_of(cls) if field.tag is None and field.is_in(self._version)]
                return sum(self._least_size_of(field) for field in present) + self._flexible

    def _least_size_of(self, field: Field) -> int:
        is_marked = isinstance(field.kind, Struct) and field.is_nullable_in(self._version)
        return 1 if is_marked else self._least_size(field.kind)


def compile_writer(cls: type[ApiMessage], version: int, *, flexible: bool) -> Callable[[bytearray, Any], None]:
    """The function that appends a message to a bytearray."""
    return _Writer(cls, version, flexible=flexible).function()


class _Writer:
    def __init__(self, cls: type[ApiMessage], version: int, *, flexible: bool) -> None:
        self._cls = cls
        self._version = version
        self._flexible = flexible
        self._source = Source("write", "out, message", f"write {cls.__name__} v{version}")
        self._codes = ""
        self._values: list[str] = []
        self._varint = self._source.constant("varint", varint)
        self._bytearray = self._source.constant("bytearray", bytearray)

    def function(self) -> Callable[[bytearray, Any], None]:
        self._struct(self._cls, "message", "out")
        return self._source.compile()

    # -- a run of fixed-width values --

    def _put(self, code: str, value: str) -> None:
        self._codes += code
        self._values.append(value)

    def _flush(self, out: str) -> None:
        if self._codes == "x":
            self._source.line(f"{out}.append(0)")
        elif self._codes:
            self._source.line(f"{out} += {self._packed(self._codes, self._values)}")
        self._codes, self._values = "", []

    def _packed(self, codes: str, values: list[str]) -> str:
        return f"{self._source.constant('pack', packer(codes).pack)}({', '.join(values)})"

    # -- values --

    def _value(self, kind: Kind, value: str, path: str, out: str, *, nullable: bool) -> None:
        match kind:
            case Fixed(code=code):
                self._put(code, value)
            case UuidBytes():
                self._put("16s", f"{value}.bytes")
            case Text():
                self._sized("h", f"{value}.encode()", value, path, out, nullable=nullable)
            case Blob():
                self._sized("i", value, value, path, out, nullable=nullable)
            case Array(element=element):
                self._array(element, value, path, out, nullable=nullable)
            case Struct(cls=cls):
                item = self._source.name("item")
                self._source.line(f"{item} = {value}")
                if nullable:
                    self._optional_struct(cls, item, out)
                else:
                    self._struct(cls, item, out)

    def _length(self, code: str, length: str, out: str) -> None:
        """Write the run and a length after it; ``length`` is an expression, -1 for null."""
        if not self._flexible:
            self._put(code, length)
            self._flush(out)
            return
        stated = self._source.name("stated")
        self._source.line(f"{stated} = {length} + 1")
        with self._source.block(f"if {stated} < 128:"):
            self._source.line(f"{out} += {self._packed(self._codes + 'B', [*self._values, stated])}")
        with self._source.block("else:"):
            before = f"{self._packed(self._codes, self._values)} + " if self._codes else ""
            self._source.line(f"{out} += {before}{self._varint}({stated})")
        self._codes, self._values = "", []

    def _sized(self, code: str, raw: str, value: str, path: str, out: str, *, nullable: bool) -> None:
        data = self._source.name("data")
        if nullable:
            length = self._source.name("length")
            with self._source.block(f"if {value} is None:"):
                self._source.line(f'{data} = b""')
                self._source.line(f"{length} = -1")
            with self._source.block("else:"):
                self._source.line(f"{data} = {raw}")
                self._source.line(f"{length} = len({data})")
        else:
            self._source.line(f"assert {value} is not None, {path!r}")
            self._source.line(f"{data} = {raw}")
            length = f"len({data})"
        self._length(code, length, out)
        self._source.line(f"{out} += {data}")

    def _array(self, element: Kind, value: str, path: str, out: str, *, nullable: bool) -> None:
        array = self._source.name("array")
        self._source.line(f"{array} = {value}")
        if isinstance(element, Fixed) and not nullable:
            self._numbers(element.code, array, path, out)
            return
        if nullable:
            length = self._source.name("length")
            self._source.line(f"{length} = -1 if {array} is None else len({array})")
            self._length("i", length, out)
            present = f"if {array}:"
        else:
            self._source.line(f"assert {array} is not None, {path!r}")
            self._length("i", f"len({array})", out)
            present = None
        with self._source.block(present):
            item = self._source.name("item")
            with self._source.block(f"for {item} in {array}:"):
                self._element(element, item, path, out)
                self._flush(out)

    def _numbers(self, code: str, array: str, path: str, out: str) -> None:
        """Write the run, the count and the numbers of an array by one ``pack``, made once for each length there is."""
        self._source.line(f"assert {array} is not None, {path!r}")
        if self._flexible:
            packs = self._source.constant("packs", _CompactArrayPacks(self._codes, len(self._values), code))
        else:
            packs = self._source.constant("packs", _ArrayPacks(self._codes, len(self._values), code))
        values = ", ".join([*self._values, f"len({array})" + " + 1" * self._flexible, f"*{array}"])
        self._source.line(f"{out} += {packs}[len({array})]({values})")
        self._codes, self._values = "", []

    def _element(self, element: Kind, item: str, path: str, out: str) -> None:
        if isinstance(element, Struct):
            self._struct(element.cls, item, out)
        else:
            self._value(element, item, path, out, nullable=False)

    # -- structs --

    def _struct(self, cls: type[object], item: str, out: str) -> None:
        tagged: list[Field] = []
        for field in fields_of(cls):
            if not field.is_in(self._version):
                continue
            if field.tag is not None:
                tagged.append(field)
                continue
            path = f"{cls.__name__}.{field.name} in v{self._version}"
            nullable = field.is_nullable_in(self._version)
            self._value(field.kind, f"{item}.{field.name}", path, out, nullable=nullable)
        if self._flexible and tagged:
            self._flush(out)
            self._tag_buffer(cls, item, tagged, out)
        elif self._flexible:
            self._codes += "x"  # An empty buffer of tagged fields is a zero byte, and so is padding.
        self._flush(out)

    def _optional_struct(self, cls: type[object], item: str, out: str) -> None:
        """Write a struct that may be missing, which a byte before it tells (KIP-893)."""
        self._flush(out)
        with self._source.block(f"if {item} is None:"):
            self._source.line(f'{out} += b"\\xff"')
        with self._source.block("else:"):
            self._source.line(f'{out} += b"\\x01"')
            self._struct(cls, item, out)

    def _tag_buffer(self, cls: type[object], item: str, tagged: list[Field], out: str) -> None:
        """Write those tagged fields that differ from their default, in the order of their tags."""
        count, body, part = self._source.name("count"), self._source.name("body"), self._source.name("part")
        self._source.line(f"{count} = 0")
        self._source.line(f"{body} = {self._bytearray}()")
        for field in sorted(tagged, key=lambda field: field.tag or 0):
            value = f"{item}.{field.name}"
            path = f"{cls.__name__}.{field.name} in v{self._version}"
            with self._source.block(f"if {value} != {self._source.constant('default', field.default)}:"):
                self._source.line(f"{count} += 1")
                self._source.line(f"{part} = {self._bytearray}()")
                self._value(field.kind, value, path, part, nullable=field.is_nullable_in(self._version))
                self._flush(part)
                self._source.line(f"{body} += {self._varint}({field.tag}) + {self._varint}(len({part})) + {part}")
        self._source.line(f"{out} += {self._varint}({count})")
        self._source.line(f"{out} += {body}")


class _ArrayPacks(dict[int, Callable[..., bytes]]):
    """By length: what packs a run, a count and so many numbers; kept for the lengths that recur, as of replica sets."""

    _KEPT_LENGTH_MAX = 64

    def __init__(self, run: str, run_length: int, code: str) -> None:
        super().__init__()
        self._run = run
        self._run_length = run_length
        self._code = code

    def __missing__(self, length: int) -> Callable[..., bytes]:
        pack = self._pack(length)
        if length <= self._KEPT_LENGTH_MAX:
            self[length] = pack
        return pack

    def _pack(self, length: int) -> Callable[..., bytes]:
        return packer(f"{self._run}i{length}{self._code}").pack


class _CompactArrayPacks(_ArrayPacks):
    """The same where the count is a varint of the length plus one."""

    def _pack(self, length: int) -> Callable[..., bytes]:
        if length + 1 < 128:
            return packer(f"{self._run}B{length}{self._code}").pack
        before, after = packer(self._run).pack, packer(f"{length}{self._code}").pack
        split = self._run_length

        def pack(*values: int) -> bytes:
            return before(*values[:split]) + varint(values[split]) + after(*values[split + 1 :])

        return pack


M = TypeVar("M", bound=ApiMessage)


_UNLIMITED: Final = 1 << 62


def decode(
    cls: type[M], version: int, buffer: Buffer, position: int = 0, *, elements_max: int = _UNLIMITED
) -> tuple[M, int]:
    """Read one message; ``ProtocolError`` if the bytes are not one, or if its arrays have more elements together.

    The bytes after it are the caller's business.
    """
    if not cls.api.supports(version):
        raise ProtocolError(f"{cls.__name__} has no version {version} here.")
    read = _reader(cls, version)
    try:
        message, position = read(buffer, position, elements_max)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"{cls.__name__} v{version} is cut short.") from error
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{cls.__name__} v{version} has a string that is not UTF-8.") from error
    return message, position


def encode(message: ApiMessage, version: int) -> bytes:
    """The bytes of a message, without header or frame."""
    out = bytearray()
    encode_into(out, message, version)
    return bytes(out)


def encode_into(out: bytearray, message: ApiMessage, version: int) -> None:
    """Append the bytes of a message, without header or frame."""
    assert message.api.supports(version), f"{type(message).__name__} has no version {version}"
    try:
        _writer(type(message), version)(out, message)
    except struct.error as error:
        raise AssertionError(f"{type(message).__name__} v{version}: {error}") from error


@functools.cache
def _reader(cls: type[ApiMessage], version: int) -> Callable[[Buffer, int, int], tuple[Any, int]]:
    return compile_reader(cls, version, flexible=cls.api.is_flexible(version))


@functools.cache
def _writer(cls: type[ApiMessage], version: int) -> Callable[[bytearray, Any], None]:
    return compile_writer(cls, version, flexible=cls.api.is_flexible(version))
