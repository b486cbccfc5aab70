"""The table of operations: each is declared once, and every door, the client and the description are made from it.

A request type *is* the operation and carries the type of its answer: ``class Receive(Request[Received])``. What a door
needs beside the types stands in its `Operation`: REST's route, what it needs access to, whether it can be repeated,
which node answers. Declarations know no broker and no protocol; `penstock.operations` serves them, doors bind them.

Fields of a request come from the path where it names them, from headers where ``headers`` names them, else from the
query (GET and DELETE, or where ``query`` names them) or the body.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Required, TypedDict, TypeVar, Unpack, get_args

import msgspec

from penstock.errors import PenstockError

A = TypeVar("A", covariant=True)
R = TypeVar("R", bound="type[Request[Any]]")

_NAME_IN_PATH: Final = re.compile(r"{(\w+)}")
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OK: Final = 200
_NO_CONTENT: Final = 204


class Request(msgspec.Struct, Generic[A], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client asks for; ``A`` is what it is answered with. Unknown fields are refused by every text format."""


class Packed(msgspec.Struct, frozen=True):
    """An answer that is MessagePack already, in pieces that are too large to be copied together."""

    pieces: tuple[bytes, ...]


class Repeat(enum.Enum):
    """What happens when a call is made again, because its answer was lost."""

    SAFE = "reads only"
    SAME = "changes nothing more the second time"
    NAMED = "is recognised by a name or number that the call carries"
    AGAIN = "does it again"


class Action(enum.Enum):
    """What an operation does to a resource."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    DESCRIBE = "describe"
    ALTER = "alter"

    def of(self, resource: Resource, name: str | None = None) -> Needs:
        """The need for this action on the resource that the request names in a field; without one, on all of them."""
        return Needs(self, resource, name)


class Admits(enum.Enum):
    """Whom an operation is open to."""

    ALLOWED = "callers with the rights that it needs"
    AUTHENTICATED = "every caller that says who it is"
    EVERYONE = "every caller"


class Resource(enum.Enum):
    """What access is given to."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTION = "transaction"
    SCHEDULE = "schedule"
    PIPELINE = "pipeline"
    CLUSTER = "cluster"
    QUOTA = "quota"  # of clients
    NODE = "node"  # figures of one node: health, metrics, its disk


@dataclass(frozen=True, slots=True)
class Needs:
    """What a caller has to be allowed to do. ``name`` is the field that names the resource, with a dot where it is a
    field of a field; a list names each of its members. None means all of them.
    """

    action: Action
    resource: Resource
    name: str | None = None


class Keeper(enum.Enum):
    """Whose state an operation is about, and so which node answers it."""

    ANYONE = "any node"
    GROUP = "the coordinator of a group"
    TRANSACTION = "the coordinator of a transaction"
    NEW_TRANSACTION = "any coordinator of transactions"
    SERIES = "the coordinator of a series"
    PIPELINES = "the node that keeps what pipelines report"
    LEADER = "the leader of a partition"


@dataclass(frozen=True, slots=True)
class Where:
    """Which node answers. ``name`` is the field that names what is kept there; where it is None, any node does.

    ``makes``: the first call makes the internal topic that keeps it.
    """

    keeper: Keeper
    name: str | None = None
    makes: bool = False


ANYWHERE: Final = Where(Keeper.ANYONE)


@dataclass(frozen=True, slots=True)
class Header:
    """A request header that holds a field of the request."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Route:
    """Where REST has an operation. ``omits`` are fields that this route does not take."""

    method: str
    path: str
    name: str
    summary: str
    omits: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """The fields that the path names."""
        return _NAME_IN_PATH.findall(self.path)


Predicate = Callable[[Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One row of the table."""

    name: str
    request: type[Request[Any]]
    answer: Any  # the type of the answer in JSON; None if there is none
    routes: tuple[Route, ...]
    summary: str
    has_packed: bool  # whether the answer can be had in MessagePack
    tag: str
    needs: tuple[Needs, ...]
    repeat: Repeat
    key: str | None = None  # the field that has a repeated call recognised, where it is given
    errors: tuple[type[PenstockError], ...] = ()
    where: Where = ANYWHERE
    status: int = _OK
    # Other statuses of the same answer, and when they apply.
    also: Mapping[int, Predicate] = field(default_factory=dict)
    location: str | None = None  # where to find what was made, with fields of the answer
    shows: str | None = None  # the field of the answer that is REST's body; None if all of it is
    headers: Mapping[str, Header] = field(default_factory=dict)
    query: frozenset[str] = frozenset()
    body: str | None = None  # the field that is the whole body; None if the body has a member for each field
    is_body_packed: bool = False
    is_body_optional: bool = False
    body_max: int | None = None  # None: as large as the door takes
    misnamed: type[PenstockError] | None = None  # for a path in which a number is none; None: as the door tells it
    is_early: bool = False  # whether a node answers before it is one of its cluster
    admits: Admits = Admits.ALLOWED


class Row(TypedDict, total=False):
    """What a declaration says beside its route and its types; `Operation` says what each is."""

    name: str
    tag: Required[str]
    needs: Required[Needs | tuple[Needs, ...]]
    repeat: Required[Repeat]
    key: str
    errors: tuple[type[PenstockError], ...]
    where: Where
    status: int
    also: Mapping[int, Predicate]
    location: str
    shows: str
    headers: Mapping[str, Header]
    query: frozenset[str]
    body: str
    is_body_packed: bool
    is_body_optional: bool
    body_max: int
    misnamed: type[PenstockError]
    is_early: bool
    admits: Admits
    also_at: tuple[Route, ...]
    omits: frozenset[str]


TABLE: Final[dict[type[Request[Any]], Operation]] = {}


def operation(route: str, **row: Unpack[Row]) -> Callable[[R], R]:
    """Put a request type into the table. Its docstring says what it does, to people who read the description."""

    def declare(kind: R) -> R:
        TABLE[kind] = _row(kind, route, row)
        return kind

    return declare


def _row(kind: type[Request[Any]], route: str, row: Row) -> Operation:
    method, path = route.split()
    said: dict[str, Any] = dict(row)
    name = said.pop("name", "") or _WORD.sub("_", kind.__name__).lower()
    summary = " ".join((kind.__doc__ or "").split())
    needs, also_at, omits = said.pop("needs"), said.pop("also_at", ()), said.pop("omits", frozenset())
    (answers,) = (get_args(base)[0] for base in kind.__orig_bases__ if get_args(base))  # type: ignore[attr-defined]
    forms = get_args(answers) or (answers,)
    if type(None) in forms:
        said.setdefault("status", _NO_CONTENT)
    return Operation(
        name=name,
        request=kind,
        answer=next((form for form in forms if form not in (Packed, type(None))), None),
        routes=(Route(method, path, name, summary, omits), *also_at),
        summary=summary,
        has_packed=Packed in forms,
        needs=needs if isinstance(needs, tuple) else (needs,),
        **said,
    )


@dataclass(frozen=True)
class Sources:
    """Where a route finds the fields of a request, each in the order of its declaration."""

    path: dict[str, msgspec.structs.FieldInfo] = field(default_factory=dict)
    query: dict[str, msgspec.structs.FieldInfo] = field(default_factory=dict)
    headers: dict[str, msgspec.structs.FieldInfo] = field(default_factory=dict)
    body: dict[str, msgspec.structs.FieldInfo] = field(default_factory=dict)


def sources_of(declared: Operation, route: Route) -> Sources:
    """Which fields of a request a route takes, and from where."""
    found = Sources()
    in_path = set(route.names)
    has_body = route.method in {"POST", "PUT", "PATCH"}
    for info in msgspec.structs.fields(declared.request):
        if info.name in route.omits:
            continue
        if info.name in in_path:
            found.path[info.name] = info
        elif info.name in declared.headers:
            found.headers[info.name] = info
        elif info.name in declared.query or not has_body:
            found.query[info.name] = info
        else:
            found.body[info.name] = info
    missing = in_path - set(found.path)
    assert not missing, f"{route.path} names {missing}, which {declared.request.__name__} does not have"
    return found
