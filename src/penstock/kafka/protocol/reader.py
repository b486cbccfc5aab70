"""From a described message and a version to the function that reads it.

Neighbouring values of fixed width are read by one ``unpack_from``, together with the length that follows them.
A generated reader trusts no byte: whatever it cannot read ends in ``ProtocolError``, or in the ``struct.error``,
``IndexError`` or ``UnicodeDecodeError`` that ``codec.decode`` turns into one. No count makes it allocate: an array must
fit, at its elements' least size, in the bytes that are left.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from penstock.kafka.protocol.errors import ProtocolError
from penstock.kafka.protocol.schema import Array, Blob, Field, Fixed, Identity, Kind, Message, Struct, Text, fields_of
from penstock.kafka.protocol.source import Source, packer
from penstock.kafka.protocol.varint import Buffer, read_varint, skip_tags


def compile_reader(
    cls: type[Message], version: int, *, flexible: bool
) -> Callable[[Buffer, int, int], tuple[Any, int]]:
    """The function from (buffer, position, most elements of arrays) to (message, position after it)."""
    return _Reader(cls, version, flexible=flexible).function()


class _Reader:
    def __init__(self, cls: type[Message], version: int, *, flexible: bool) -> None:
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
            case Identity():
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
            case Identity():
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
