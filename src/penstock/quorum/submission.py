"""How a command reaches the controller: the method that whoever leads the quorum serves."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.cluster.commands import Answer, Command
from penstock.peers.frames import Failure
from penstock.peers.port import Method


class Submit(msgspec.Struct, frozen=True):
    command: Command


class Submitted(msgspec.Struct, frozen=True):
    """The answer, or why there is none, and the index at which all that it speaks of is applied."""

    answer: Answer | None
    index: int
    refusal: Failure | None = None


SUBMIT: Final = Method("controller.submit", Submit, Submitted)
