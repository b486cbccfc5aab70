"""Values of any type that the table of operations uses, for tests that send them somewhere and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import msgspec.inspect
from hypothesis import strategies as st

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values that a type takes, limits included."""
    return _values(msgspec.inspect.type_info(kind))


def _values(info: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case msgspec.inspect.Metadata(type=inner):
            return _values(inner)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of(*map(_values, types))
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            required = {each.name: _values(each.type) for each in fields if each.required}
            optional = {each.name: _values(each.type) for each in fields if not each.required}
            return st.fixed_dictionaries(required, optional=optional).map(lambda given: cls(**given))
        case msgspec.inspect.ListType(item_type=item, min_length=least, max_length=most):
            return st.lists(_values(item), min_size=least or 0, max_size=min(most or 3, 3))
        case msgspec.inspect.TupleType(item_types=items):
            return st.tuples(*map(_values, items))
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_values(key), _values(value), max_size=3)
        case msgspec.inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case msgspec.inspect.StrType(pattern=None, min_length=least, max_length=most):
            return st.text(min_size=least or 0, max_size=min(most or 20, 20))
        case msgspec.inspect.StrType(pattern=str(pattern)):
            return st.from_regex(pattern, fullmatch=True).filter(lambda text: len(text) <= (info.max_length or 1_000))
        case msgspec.inspect.IntType(ge=low, le=high):
            return st.integers(-(1 << 63) if low is None else low, (1 << 63) - 1 if high is None else high)
        case msgspec.inspect.FloatType(ge=low):
            return st.floats(min_value=low, allow_nan=False, allow_infinity=False)
        case msgspec.inspect.DateTimeType():
            return st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC))
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.BytesType():
            return st.binary(max_size=20)
        case msgspec.inspect.ByteArrayType():
            return st.binary(max_size=20).map(bytearray)
        case msgspec.inspect.RawType():
            return _JSON.map(msgspec.json.encode).map(msgspec.Raw)
    raise AssertionError(f"what is a sample of {info}?")
