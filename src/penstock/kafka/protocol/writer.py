"""From a described message and a version to the function that appends it to a bytearray.

As in the reader, neighbouring values of fixed width are one ``pack``, with the length after them and the empty buffer
of tagged fields. What cannot be written is a bug of ours, never the peer's, and ends in ``AssertionError``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.kafka.protocol.schema import Array, Blob, Field, Fixed, Identity, Kind, Message, Struct, Text, fields_of
from penstock.kafka.protocol.source import Source, packer
from penstock.kafka.protocol.varint import varint


def compile_writer(cls: type[Message], version: int, *, flexible: bool) -> Callable[[bytearray, Any], None]:
    """The function that appends a message to a bytearray."""
    return _Writer(cls, version, flexible=flexible).function()


class _Writer:
    def __init__(self, cls: type[Message], version: int, *, flexible: bool) -> None:
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
            case Identity():
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
