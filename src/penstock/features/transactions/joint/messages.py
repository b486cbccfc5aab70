"""What writers and the coordinator of joint transactions say to each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.errors import InvalidRequest
from penstock.features.transactions.joint.records import StoredCall, StoredPart, StoredWriter
from penstock.features.transactions.joint.states import JointState
from penstock.features.transactions.records import Reason
from penstock.machines.messages import Request

_WRITER: Final = re.compile(r"[A-Za-z0-9._:@/+=-]{1,200}")


def check_writer(name: str) -> None:
    """Refuse what is no name for a writer."""
    if not _WRITER.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} is no name for a writer. Use 1 to 200 letters, digits and any of . _ : @ / + = -"
        )


# -- answers -----------------------------------------------------------------------------------------------------------


class Opened(NamedTuple):
    """The transaction is open, until ``deadline_ms`` unless somebody asks for more time."""

    timeout_ms: int
    deadline_ms: float


class Entered(NamedTuple):
    """The writer may write. ``is_repeat`` says that this call came before and may be written already, or in part."""

    writer: StoredWriter
    is_repeat: bool


class Begun(NamedTuple):
    """The transaction of a number of a series; None if that number is committed already."""

    transaction: str | None


class JointEnd(NamedTuple):
    """How the transaction ended, for every partition of it."""

    state: JointState
    committed: tuple[str, ...]
    aborted: tuple[str, ...]
    reason: Reason | None


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open(Request[Opened]):
    timeout_ms: int
    at_ms: int  # by the wall clock
    part: StoredPart | None = None  # of a series


@dataclass(frozen=True, slots=True)
class Begin(Request[Begun]):
    """A run is about to write number ``number`` of a series; it replaces an earlier run that did."""

    series: str
    number: int
    run: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class ExtendJoint(Request[Opened]):
    """The time starts anew, and becomes another one if it is given."""

    timeout_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Enter(Request[Entered]):
    """A writer is about to write to partitions of a topic. A numbered call says which message goes where."""

    writer: str
    fresh_producer_id: int  # for a writer that is not known yet; no producer has it or ever had
    topic: str
    topic_id: str
    partitions: frozenset[int]
    call: StoredCall | None = None
    acks: bool = False  # it is about to ack messages of queues, which have no numbers


@dataclass(frozen=True, slots=True)
class CommitJoint(Request[None]):
    """Decide to commit what these writers wrote, None for all of them, and to abort the rest."""

    key: str | None
    writers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AbortJoint(Request[None]):
    """Decide to abort what everybody wrote."""

    reason: Reason = Reason.CLIENT


@dataclass(frozen=True, slots=True)
class AwaitEnd(Request[JointEnd]):
    """How did it end? Answered once it has, for every partition."""
